//! Running a trace on a core: the loop of the engine, on a virtual clock.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};

use lorad_sched::{Config, ConfigError, Stats};

use crate::book::Record;
use crate::error::{Failure, Kind};
use crate::report::Numbers;
use crate::trace::{Action, Input, Trace};
use crate::world::{Manner, World};

/// How the host around the core behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Tell the core what happens while a step runs at that moment, with the plan in flight; otherwise when it's
    /// committed, as the engine does.
    pub during: bool,
    /// A step's time is off by up to so many thousandths.
    pub noise_milli: u64,
    /// Call the core's own check after every so manieth step; 0: in the end only.
    pub check_every: u64,
    /// Keep and compare what each page holds.
    pub audit: bool,
    /// Compare every group's wait with its bound, as often as the core is checked. The core is then told costs as large as
    /// noise and slow page-ins make them.
    pub waits: bool,
    /// After so many steps no more of the trace is told, and what runs may end; 0: all of it is told.
    pub steps_max: u64,
}

impl Default for Host {
    fn default() -> Self {
        Self { during: false, noise_milli: 0, check_every: 100, audit: true, waits: false, steps_max: 0 }
    }
}

/// A condition of the caller's own, looked at after each step; a text is a failure of [`Kind::Watch`].
pub type Watch<'a> = dyn Fn(&Stats) -> Option<String> + 'a;

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The numbers; those of before the failure, if there is one.
    pub numbers: Numbers,
    /// Every request that came, in that order.
    pub records: Vec<Record>,
    /// The core's state in the end; empty after a panic.
    pub dump: String,
    /// The calls as a script, if they were written down.
    pub script: Option<String>,
    /// How many of the trace's inputs were told.
    pub told: usize,
    /// The promise that was broken.
    pub failure: Option<Failure>,
}

/// Runs a trace on a new core. `seed` is that of the noise. Fails only when the core refuses its limits; a broken promise
/// is part of the outcome, and so is a panic of the core.
pub fn run(
    trace: &Trace,
    config: &Config,
    seed: u64,
    host: &Host,
    record: bool,
    watch: Option<&Watch<'_>>,
) -> Result<Outcome, ConfigError> {
    let Host { noise_milli, audit, waits, .. } = *host;
    let slow = |input: &Input| match input.action {
        Action::SlowLoad { percent, .. } => percent,
        _ => 100,
    };
    let load_percent = trace.inputs().iter().map(slow).max().unwrap_or(100).max(100);
    let mut world = World::new(config, Manner { seed, noise_milli, load_percent, audit, waits, record })?;
    let mut inputs = Inputs { inputs: trace.inputs(), told: 0, open: true };
    // the world isn't used after a panic, only what it had counted and written down is read
    let drive = AssertUnwindSafe(|| drive(&mut world, &mut inputs, host, watch));
    let failure = match catch_unwind(drive) {
        Ok(driven) => driven.err(),
        Err(panic) => Some(world.fail(Kind::Panic, message(panic.as_ref()))),
    };
    let panicked = failure.as_ref().is_some_and(|failure| failure.kind == Kind::Panic);
    Ok(Outcome {
        numbers: numbers(&world),
        records: world.book.records().to_vec(),
        dump: if panicked { String::new() } else { world.dump() },
        script: world.script().map(str::to_string),
        told: inputs.told,
        failure,
    })
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn numbers(world: &World) -> Numbers {
    let (totals, counters) = (world.totals, world.stats().counters);
    let virtual_us = world.book.records().iter().filter_map(|record| record.ended_us).max().unwrap_or(0);
    let tokens_out: u64 = world.book.records().iter().map(|record| u64::from(record.answered)).sum();
    let rate = (u128::from(tokens_out) * 1_000_000_000).checked_div(u128::from(virtual_us));
    Numbers {
        virtual_us,
        steps_us: totals.steps_us,
        page_ins_us: world.channel.busy_us(),
        steps: totals.steps,
        rows: totals.rows,
        groups: totals.groups,
        tokens_computed: counters.tokens_computed,
        tokens_out,
        tokens_out_ks: rate.unwrap_or(0) as u64,
        page_ins: counters.page_ins,
        page_ins_failed: counters.page_ins_failed,
        page_in_pages: totals.page_in_pages,
        page_in_bytes: 0,
        evictions: counters.evictions,
        preemptions: counters.preemptions,
        urgent: counters.urgent,
        prefix_tokens: counters.prefix_tokens,
        longest_wait_milli: totals.longest_wait_milli,
        fingerprint: world.fingerprint(),
    }
}

/// The trace and how far it was told.
struct Inputs<'a> {
    inputs: &'a [Input],
    told: usize,
    /// More of it will be told.
    open: bool,
}

impl Inputs<'_> {
    fn next(&self) -> Option<&Input> {
        self.inputs.get(self.told).filter(|_| self.open)
    }

    /// When the next thing happens, from outside or on the copy channel.
    fn next_us(&self, world: &World) -> Option<u64> {
        let next_us = self.next().map(|input| input.at_us);
        [next_us, world.channel.next_us()].into_iter().flatten().min()
    }

    /// Tells all that happened by `until_us`, in the order of its times; with `exact` the clock goes along.
    fn tell(&mut self, world: &mut World, until_us: u64, exact: bool) -> Result<(), Failure> {
        while let Some(at_us) = self.next_us(world).filter(|&at_us| at_us <= until_us) {
            if exact {
                world.clock.advance(at_us);
            }
            // transfers first: their reports are older than what happens at the same time
            if world.channel.next_us() == Some(at_us) {
                world.report_transfer()?;
            } else if let Some(&input) = self.next() {
                self.told += 1;
                world.tell(&input)?;
            }
        }
        Ok(())
    }
}

/// Steps per token that the drain may take: a preempted request computes its tokens again.
const STEPS_PER_TOKEN: u64 = 8;
/// Steps on top.
const STEPS_MORE: u64 = 64;

fn drive(
    world: &mut World,
    inputs: &mut Inputs,
    host: &Host,
    watch: Option<&Watch<'_>>,
) -> Result<(), Failure> {
    let (mut last_step, mut ends) = (None, VecDeque::new());
    loop {
        inputs.tell(world, world.clock.now_us(), false)?;
        if inputs.open
            && (inputs.next().is_none() || (host.steps_max > 0 && world.totals.steps >= host.steps_max))
        {
            inputs.open = false;
            last_step = Some(world.totals.steps + STEPS_MORE + STEPS_PER_TOKEN * world.book.work());
        }
        while world.goes_ahead() {
            let Some(duration_us) = world.step()? else { break };
            // the worker computes one plan after the other
            let begin_us = ends.back().copied().unwrap_or(0).max(world.clock.now_us());
            ends.push_back(begin_us.saturating_add(duration_us));
        }
        match ends.pop_front() {
            Some(end_us) => {
                if host.during {
                    inputs.tell(world, end_us - 1, true)?;
                }
                world.clock.advance(end_us);
                world.commit()?;
            }
            None => match inputs.next_us(world) {
                Some(at_us) => world.clock.advance(at_us),
                None if world.has_work() => {
                    return Err(world.fail(Kind::Stuck, "requests live, and nothing will ever happen"));
                }
                None => break,
            },
        }
        if let Some(what) = watch.and_then(|watch| watch(&world.stats())) {
            return Err(world.fail(Kind::Watch, what));
        }
        if host.check_every > 0 && world.totals.steps.is_multiple_of(host.check_every) {
            world.check()?;
        }
        if last_step.is_some_and(|last| world.totals.steps > last) {
            return Err(world.fail(Kind::Stuck, "no more requests come, and the steps don't end"));
        }
    }
    world.close()
}
