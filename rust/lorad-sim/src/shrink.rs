//! From a long trace that breaks a promise to a short one that breaks the same, and to a script of the core's calls.

use lorad_sched::{Config, ConfigError};

use crate::error::{Failure, Kind, SimError};
use crate::run::{run, Host, Outcome, Watch};
use crate::trace::{Action, Ask, Input, Trace};

/// What is left of a failing trace.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The inputs that are needed.
    pub trace: Trace,
    /// The calls that they make, for `lorad_sched::script`.
    pub script: String,
    /// What they break.
    pub failure: Failure,
    /// Runs that it took.
    pub runs: u64,
}

/// Removes what a failing trace doesn't need: inputs first, then tokens, pages and times. Takes `runs_max` runs at most.
/// What counts is the kind of the failure. Fails with [`SimError::NoFailure`] when the trace runs through.
pub fn shrink(
    trace: &Trace,
    config: &Config,
    seed: u64,
    host: &Host,
    watch: Option<&Watch<'_>>,
    runs_max: u64,
) -> Result<Shrunk, SimError> {
    let first = run(trace, config, seed, host, false, watch)?;
    let failure = first.failure.ok_or(SimError::NoFailure)?;
    let mut smaller = Smaller {
        config,
        seed,
        host: host.clone(),
        watch,
        kind: failure.kind,
        // what came later has nothing to do with it
        inputs: trace.inputs()[..first.told].to_vec(),
        runs: 1,
        runs_max,
    };
    // with a check after each step a fault shows where it happens; if it does then, it's that one we follow
    let closer = Host { check_every: 1, steps_max: 0, ..host.clone() };
    if let Some(outcome) = smaller.failing(&smaller.inputs, &closer)? {
        smaller.inputs.truncate(outcome.told);
        smaller.host = closer;
    }
    smaller.remove()?;
    smaller.simplify()?;
    smaller.remove()?;
    smaller.renumber()?;

    let trace = Trace::new(smaller.inputs);
    let last = run(&trace, config, seed, &smaller.host, true, watch)?;
    let failure = last.failure.ok_or(SimError::NoFailure)?;
    let mut script = format!("# {failure}\n");
    script.push_str(last.script.as_deref().unwrap_or(""));
    Ok(Shrunk { trace, script, failure, runs: smaller.runs })
}

struct Smaller<'a> {
    config: &'a Config,
    seed: u64,
    host: Host,
    watch: Option<&'a Watch<'a>>,
    kind: Kind,
    inputs: Vec<Input>,
    runs: u64,
    runs_max: u64,
}

impl Smaller<'_> {
    fn failing(&self, inputs: &[Input], host: &Host) -> Result<Option<Outcome>, ConfigError> {
        let outcome = run(&Trace::new(inputs.to_vec()), self.config, self.seed, host, false, self.watch)?;
        let same = outcome.failure.as_ref().is_some_and(|failure| failure.kind == self.kind);
        Ok(same.then_some(outcome))
    }

    /// Takes these inputs if they fail the same way, cut where they do.
    fn try_inputs(&mut self, inputs: Vec<Input>) -> Result<bool, ConfigError> {
        if self.runs >= self.runs_max {
            return Ok(false);
        }
        self.runs += 1;
        let found = self.failing(&inputs, &self.host)?;
        if let Some(outcome) = &found {
            self.inputs = inputs;
            self.inputs.truncate(outcome.told);
        }
        Ok(found.is_some())
    }

    /// Leaves ever smaller pieces out, until not one input can go.
    fn remove(&mut self) -> Result<(), ConfigError> {
        let mut piece = self.inputs.len().div_ceil(2);
        while piece > 0 {
            let (mut start, mut removed) = (0, false);
            while start < self.inputs.len() {
                let mut inputs = self.inputs.clone();
                inputs.drain(start..(start + piece).min(inputs.len()));
                if self.try_inputs(inputs)? {
                    removed = true;
                } else {
                    start += piece;
                }
            }
            if piece > 1 || !removed {
                piece /= 2;
            }
        }
        Ok(())
    }

    /// Makes each input as plain as it can be, until none changes.
    fn simplify(&mut self) -> Result<(), ConfigError> {
        let mut changed = true;
        while changed && self.runs < self.runs_max {
            changed = false;
            let mut index = 0;
            while index < self.inputs.len() {
                let earlier_us = index.checked_sub(1).map_or(0, |before| self.inputs[before].at_us);
                let gap_us = self.inputs[index].at_us - earlier_us;
                let mut sooner = self.inputs.clone();
                sooner[index..].iter_mut().for_each(|input| input.at_us -= gap_us);
                changed |= gap_us > 0 && self.try_inputs(sooner)?;
                let forms = self.inputs.get(index).map_or(Vec::new(), |&input| plainer(input, earlier_us));
                for plainer in forms {
                    let mut inputs = self.inputs.clone();
                    inputs[index] = plainer;
                    if self.try_inputs(inputs)? {
                        changed = true;
                        break;
                    }
                }
                index += 1;
            }
        }
        Ok(())
    }

    /// Counts requests and adapters from 1.
    fn renumber(&mut self) -> Result<(), ConfigError> {
        let (mut ids, mut names) = (Vec::new(), Vec::new());
        for input in &self.inputs {
            match input.action {
                Action::Add(ask) => ids.push(ask.id),
                Action::Register { adapter, .. } => names.push(adapter),
                _ => {}
            }
        }
        names.dedup();
        let new_id = |id: u64| ids.iter().zip(1..).find(|(old, _)| **old == id).map_or(id, |(_, new)| new);
        let new_name =
            |name: u32| names.iter().zip(1..).find(|(old, _)| **old == name).map_or(name, |(_, new)| new);
        let renamed = |input: &Input| {
            let mut input = *input;
            match &mut input.action {
                Action::Add(ask) => {
                    ask.id = new_id(ask.id);
                    ask.adapter = ask.adapter.map(new_name);
                }
                Action::Abort { id } | Action::FailRow { id } => *id = new_id(*id),
                Action::Register { adapter, .. }
                | Action::Unregister { adapter }
                | Action::FailLoad { adapter }
                | Action::SlowLoad { adapter, .. } => *adapter = new_name(*adapter),
                Action::FailPlan => {}
            }
            input
        };
        let inputs = self.inputs.iter().map(renamed).collect();
        self.try_inputs(inputs)?;
        Ok(())
    }
}

/// Plainer forms of an input, the plainest first; never the input itself, so that this comes to an end.
fn plainer(input: Input, earlier_us: u64) -> Vec<Input> {
    let mut forms = Vec::new();
    let mut form = |action: Action, at_us: u64| {
        let form = Input { at_us, action };
        if form != input && !forms.contains(&form) {
            forms.push(form);
        }
    };
    form(input.action, earlier_us);
    match input.action {
        Action::Add(ask) => {
            let fewer = |tokens: u32| {
                [1.min(tokens), tokens.div_ceil(2), tokens.saturating_sub(1).max(1.min(tokens))]
            };
            form(Action::Add(Ask { tenant: 0, ..ask }), input.at_us);
            form(Action::Add(Ask { adapter: None, ..ask }), input.at_us);
            form(Action::Add(Ask { stop_after: 0, ..ask }), input.at_us);
            form(Action::Add(Ask { like: 0, ..ask }), input.at_us);
            for prompt in fewer(ask.prompt) {
                form(Action::Add(Ask { prompt, ..ask }), input.at_us);
            }
            for max_tokens in fewer(ask.max_tokens) {
                form(Action::Add(Ask { max_tokens, ..ask }), input.at_us);
            }
        }
        Action::Register { adapter, pages, layers } => {
            for pages in [1.min(pages), pages.div_ceil(2), pages] {
                form(Action::Register { adapter, pages, layers: 1.min(layers) }, input.at_us);
            }
        }
        _ => {}
    }
    forms
}
