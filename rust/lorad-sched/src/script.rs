//! Scripts: commands, and below each the state that it printed.
//!
//! ```text
//! # a comment
//! core pages=8 page_tokens=4
//! register a pages=2
//! add 1 adapter=a prompt=5 max=3
//! step
//! ----
//! adapter 1
//! plan 1: rows 0 tokens 0
//!   page-in adapter 1 slot 0 pages [0 1]
//! event adapter 1 loading slot 0
//! ```
//!
//! A block is command lines, `----` and what they printed, up to a blank line. [`run`] gives the script back with what
//! the commands print now: a script is right when it comes back unchanged. After each command the core is checked.
//!
//! | command | meaning |
//! | --- | --- |
//! | `core limit=n …` | a new core; limits, times and costs as in [`crate::Config`], small by default; `order=fair|arrival|affinity`, `eviction=cost|lru`, `adapter_pages=n`, `slots=NxP` |
//! | `register name pages=n layers=n tag=n tenant=n weight=n remote=1` | an adapter, called `name` in this script |
//! | `unregister name` | |
//! | `tenant id weight=n pages_max=n adapters_max=n running_max=n waiting_max=n` | sets share and limits |
//! | `add id adapter=name prompt=n max=n stop=t,t tenant=n priority=high deadline=t after=id fresh=1` | a request with a prompt of n tokens: id·1000, id·1000 + 1, …, or from `from=t` on |
//! | `abort id` | |
//! | `step` | makes a plan and prints it |
//! | `commit id=t … plan=n` | applies it; a row's token is id·1000 + its position unless given, `id=failed` refuses the row |
//! | `commit_failed` | the worker lost the plan |
//! | `done name`, `failed name`, `dropped name`, `reached name layers=n` | reports about a page-in; `done all` about every one that runs |
//! | `arrived name`, `fetch_failed name` | reports about a remote adapter's bytes |
//! | `pin name`, `unpin name`, `prewarm name` | |
//! | `run steps=n` | n times: step, commit, all page-ins done; one line per plan, and its events |
//! | `repeat times=n` … `end` | the lines between, n times, `$` in them being the round; prints how often each line came, without its numbers |
//! | `dump`, `stats`, `adapters`, `explain id` | print the state |
//! | `expect figure=n figure<=n figure>=n …` | a mistake unless it's so: figures of [`crate::Stats`], and the most that a plan had, `step_rows`, `step_tokens`, `step_adapters`; what a script proves stays when its state is written anew |
//! | `expect id figure=n … answer=t..t` | the same of one request: `wait`, `first_token` (µs since its arrival), `cached_tokens`, `passed_by`, `preemptions`, `answered` (tokens that it emitted), `answer` (exactly these) |
//!
//! Each `step` is 1000 µs after the last; `at=n` on any command sets the time.

mod arguments;
mod expect;
mod limits;
mod repeat;

use std::collections::HashMap;
use std::fmt::Write;

use crate::adapter::{Adapter, Residency};
use crate::plan::{Head, Part};
use crate::{
    AdapterId, AdapterSpec, ConfigError, Core, Event, Explanation, Priority, RequestId, RequestSpec,
    StepError, TenantSpec, SAMPLE_FAILED,
};

use arguments::{number, Arguments, Mistake};
use limits::{policy, small};

/// Runs a script and returns it with what its commands printed.
pub fn run(text: &str) -> String {
    let mut session = match Session::new() {
        Ok(session) => session,
        Err(error) => return error.to_string(),
    };
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        // the rest of the block's commands
        let mut commands = vec![line];
        while let Some(line) = lines.next_if(|line| !line.trim().is_empty() && *line != "----") {
            out.push_str(line);
            out.push('\n');
            if !line.starts_with('#') {
                commands.push(line);
            }
        }
        let printed = session.block(&commands);
        // what it printed when the script was written
        while lines.next_if(|line| !line.trim().is_empty()).is_some() {}
        out.push_str("----\n");
        out.push_str(if printed.is_empty() { "ok\n" } else { &printed });
    }
    out
}

struct Session {
    core: Core,
    names: HashMap<String, AdapterId>,
    plan: Vec<i32>,
    events: Vec<Event>,
    /// Tokens that each request has emitted, by id.
    answers: HashMap<RequestId, Vec<u32>>,
    largest: Largest,
    now: u64,
}

/// The most that any plan of this core had.
#[derive(Clone, Copy, Default)]
struct Largest {
    rows: u64,
    tokens: u64,
    adapters: u64,
}

impl Session {
    fn new() -> Result<Self, ConfigError> {
        let core = Core::new(small())?;
        let plan = vec![0; core.plan_layout().length()];
        Ok(Self {
            core,
            names: HashMap::new(),
            plan,
            events: Vec::new(),
            answers: HashMap::new(),
            largest: Largest::default(),
            now: 0,
        })
    }

    /// Runs a command and says what it printed.
    fn command(&mut self, line: &str) -> String {
        let mut out = String::new();
        if let Err(mistake) = self.apply(line, &mut out) {
            let _ = writeln!(out, "error: {mistake}");
        }
        self.print_events(&mut out);
        if let Err(fault) = self.core.check() {
            let _ = writeln!(out, "check: {fault}");
        }
        out
    }

    fn apply(&mut self, line: &str, out: &mut String) -> Result<(), Mistake> {
        let mut arguments = Arguments::new(line);
        let name = arguments.word()?;
        self.now = arguments.number("at", self.now)?;
        let refusal = match name {
            "core" => self.new_core(arguments)?,
            "register" => self.register(arguments, out)?,
            "unregister" => {
                let adapter = self.adapter(arguments.word()?)?;
                arguments.end()?;
                self.core.unregister(self.now, adapter);
                None
            }
            "add" => self.add(arguments)?,
            "abort" => {
                let request = number(arguments.word()?)?;
                arguments.end()?;
                self.core.abort(self.now, request);
                None
            }
            "step" => {
                arguments.end()?;
                self.step(out)
            }
            "commit" => self.commit(arguments)?,
            "commit_failed" => {
                let number = arguments.number("plan", self.core.in_flight().unwrap_or(0))?;
                arguments.end()?;
                self.core.commit_failed(self.now, number).err().map(|error| error.to_string())
            }
            "tenant" => self.tenant(arguments)?,
            "done" if arguments.words == ["all"] => {
                let adapters = self.core.adapters.entries().iter();
                let loads = |adapter: &&Adapter| matches!(adapter.residency, Residency::Loading { .. });
                let loading: Vec<AdapterId> = adapters.filter(loads).map(|adapter| adapter.id).collect();
                let mut done = loading.into_iter().map(|adapter| self.core.page_in_done(self.now, adapter));
                done.find_map(Result::err).map(|error| error.to_string())
            }
            "done" | "failed" | "dropped" | "arrived" | "fetch_failed" | "reached" => {
                let adapter = self.adapter(arguments.word()?)?;
                let layers = arguments.number("layers", 0)?;
                arguments.end()?;
                let report = match name {
                    "done" => self.core.page_in_done(self.now, adapter),
                    "dropped" => self.core.page_in_dropped(self.now, adapter),
                    "arrived" => self.core.arrived(self.now, adapter),
                    "fetch_failed" => self.core.fetch_failed(self.now, adapter),
                    "reached" => self.core.page_in_reached(self.now, adapter, layers),
                    _ => self.core.page_in_failed(self.now, adapter),
                };
                report.err().map(|error| error.to_string())
            }
            "pin" | "unpin" | "prewarm" => {
                let adapter = self.adapter(arguments.word()?)?;
                arguments.end()?;
                let result = match name {
                    "prewarm" => self.core.prewarm(self.now, adapter),
                    _ => self.core.pin(self.now, adapter, name == "pin"),
                };
                result.err().map(|refusal| refusal.to_string())
            }
            "run" => {
                let steps = arguments.number("steps", 1u32)?;
                arguments.end()?;
                self.run(steps, out)
            }
            "explain" => {
                let request = number(arguments.word()?)?;
                arguments.end()?;
                match self.core.explain(request) {
                    Some(found) => print_explanation(&found, out),
                    None => {
                        let _ = writeln!(out, "nothing is known of request {request}");
                    }
                }
                None
            }
            "expect" => {
                self.expect(arguments)?;
                None
            }
            "dump" | "stats" | "adapters" => {
                arguments.end()?;
                self.print(name, out);
                None
            }
            _ => return Err(format!("unknown command {name}")),
        };
        if let Some(refusal) = refusal {
            let _ = writeln!(out, "refused: {refusal}");
        }
        Ok(())
    }

    fn new_core(&mut self, mut arguments: Arguments) -> Result<Option<String>, Mistake> {
        let mut config = small();
        for (name, field) in config.fields_mut() {
            *field = arguments.number(name, *field)?;
        }
        for (name, field) in config.times_mut() {
            *field = arguments.number(name, *field)?;
        }
        for (name, field) in config.costs.fields_mut() {
            *field = arguments.number(name, *field)?;
        }
        for (name, field) in config.switches_mut() {
            *field = arguments.number(name, u8::from(*field))? != 0;
        }
        config.policy = policy(&mut arguments)?;
        arguments.end()?;
        match Core::new(config) {
            Ok(core) => {
                self.plan = vec![0; core.plan_layout().length()];
                self.core = core;
                self.names.clear();
                self.answers.clear();
                self.largest = Largest::default();
                Ok(None)
            }
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    fn tenant(&mut self, mut arguments: Arguments) -> Result<Option<String>, Mistake> {
        let tenant = number(arguments.word()?)?;
        let usual = TenantSpec::default();
        let spec = TenantSpec {
            weight: arguments.number("weight", usual.weight)?,
            pages_max: arguments.number("pages_max", usual.pages_max)?,
            adapters_max: arguments.number("adapters_max", usual.adapters_max)?,
            running_max: arguments.number("running_max", usual.running_max)?,
            waiting_max: arguments.number("waiting_max", usual.waiting_max)?,
        };
        arguments.end()?;
        Ok(self.core.set_tenant(tenant, spec).err().map(|refusal| refusal.to_string()))
    }

    fn register(&mut self, mut arguments: Arguments, out: &mut String) -> Result<Option<String>, Mistake> {
        let name = arguments.word()?.to_string();
        let spec = AdapterSpec {
            tag: arguments.number("tag", 100 + self.names.len() as u32 + 1)?,
            pages: arguments.number("pages", 2)?,
            layers: arguments.number("layers", 1)?,
            tenant: arguments.number("tenant", 0)?,
            weight: arguments.number("weight", 100)?,
            remote: arguments.number("remote", 0u8)? != 0,
        };
        arguments.end()?;
        Ok(match self.core.register(spec) {
            Ok(adapter) => {
                self.names.insert(name, adapter);
                let _ = writeln!(out, "adapter {adapter}");
                None
            }
            Err(refusal) => Some(refusal.to_string()),
        })
    }

    fn adapter(&self, name: &str) -> Result<AdapterId, Mistake> {
        self.names.get(name).copied().ok_or_else(|| format!("no adapter was called {name}"))
    }

    fn add(&mut self, mut arguments: Arguments) -> Result<Option<String>, Mistake> {
        let id: u64 = number(arguments.word()?)?;
        let length = arguments.number("prompt", 4u32)?.min(1 << 20);
        let first = arguments.number("from", id.wrapping_mul(1000) as u32)?;
        let spec = RequestSpec {
            id,
            tenant: arguments.number("tenant", 0)?,
            adapter: arguments.take("adapter").map(|name| self.adapter(name)).transpose()?,
            prompt: (0..length).map(|index| first.wrapping_add(index)).collect(),
            max_tokens: arguments.number("max", 4)?,
            stop_tokens: match arguments.take("stop") {
                None => Vec::new(),
                Some(tokens) => tokens.split(',').map(number).collect::<Result<_, _>>()?,
            },
            priority: match arguments.take("priority") {
                None | Some("normal") => Priority::Normal,
                Some("low") => Priority::Low,
                Some("high") => Priority::High,
                Some(other) => return Err(format!("no priority {other}")),
            },
            deadline: arguments.take("deadline").map(number).transpose()?,
            after: arguments.take("after").map(number).transpose()?,
            fresh: arguments.number("fresh", 0u8)? != 0,
        };
        arguments.end()?;
        let refusal = self.core.add(self.now, spec).err();
        if refusal.is_none() {
            self.answers.insert(id, Vec::new());
        }
        Ok(refusal.map(|refusal| refusal.to_string()))
    }

    /// Makes a plan and keeps its size.
    fn plan(&mut self) -> Result<Option<u64>, StepError> {
        self.now = self.now.saturating_add(1000);
        let number = self.core.step(self.now, &mut self.plan)?;
        if number.is_some() {
            let view = self.core.plan_layout().view(&self.plan);
            let adapters = view.part(Part::Header)[Head::Groups as usize];
            let largest = &mut self.largest;
            largest.rows = largest.rows.max(view.rows() as u64);
            largest.tokens = largest.tokens.max(view.tokens() as u64);
            largest.adapters = largest.adapters.max(adapters as u64);
        }
        Ok(number)
    }

    fn step(&mut self, out: &mut String) -> Option<String> {
        match self.plan() {
            Ok(Some(_)) => {
                let _ = writeln!(out, "{}", self.core.plan_layout().view(&self.plan));
                None
            }
            Ok(None) => {
                let _ = writeln!(out, "nothing can run");
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    /// The rows that sample, in the plan's order: request and the token it gets by default.
    fn samples(&self) -> Vec<(u64, i32)> {
        let rows = self.core.flights.flying().first().map_or(&[][..], |flight| &flight.rows);
        let sampled = rows.iter().filter(|row| row.sample);
        sampled
            .map(|row| {
                let id = self.core.requests[row.request].id;
                let token = id.wrapping_mul(1000).wrapping_add(u64::from(row.start + row.count));
                (id, (token % u64::from(self.core.config().vocab)) as i32)
            })
            .collect()
    }

    fn commit(&mut self, mut arguments: Arguments) -> Result<Option<String>, Mistake> {
        let plan = arguments.number("plan", self.core.in_flight().unwrap_or(0))?;
        let mut tokens = Vec::new();
        for (id, token) in self.samples() {
            tokens.push(match arguments.take(&id.to_string()) {
                None => token,
                Some("failed") => SAMPLE_FAILED,
                Some(text) => number(text)?,
            });
        }
        arguments.end()?;
        Ok(self.core.commit(self.now, plan, &tokens).err().map(|error| error.to_string()))
    }

    fn run(&mut self, steps: u32, out: &mut String) -> Option<String> {
        for _ in 0..steps {
            let number = match self.plan() {
                Ok(Some(number)) => number,
                Ok(None) => {
                    let _ = writeln!(out, "nothing can run");
                    return None;
                }
                Err(error) => return Some(error.to_string()),
            };
            let rows = self.core.flights.flying().last().map_or(&[][..], |flight| &flight.rows);
            let rows = rows.iter().map(|row| {
                let id = self.core.requests[row.request].id;
                format!(" {id}[{}..{}]", row.start, row.start + row.count)
            });
            let _ = writeln!(out, "plan {number}:{}", rows.collect::<String>());
            let tokens: Vec<i32> = self.samples().into_iter().map(|(_, token)| token).collect();
            let view = self.core.plan_layout().view(&self.plan);
            let loads: Vec<AdapterId> = view.page_ins().map(|load| load.adapter).collect();
            if let Err(error) = self.core.commit(self.now, number, &tokens) {
                return Some(error.to_string());
            }
            for adapter in loads {
                if let Err(error) = self.core.page_in_done(self.now, adapter) {
                    return Some(error.to_string());
                }
            }
            self.print_events(out);
        }
        None
    }

    fn print(&self, what: &str, out: &mut String) {
        match what {
            "dump" => out.push_str(&self.core.dump()),
            "adapters" => {
                for adapter in self.core.adapter_stats() {
                    let (pages, running, waiting) = (adapter.pages, adapter.running, adapter.waiting);
                    let _ = write!(out, "adapter {} {} pages {pages}", adapter.adapter, adapter.state);
                    let _ = writeln!(out, " running {running} waiting {waiting}");
                }
            }
            _ => {
                for (name, figure) in self.core.stats().counters.named() {
                    let _ = writeln!(out, "{name} {figure}");
                }
            }
        }
    }

    fn print_events(&mut self, out: &mut String) {
        self.core.drain_events(&mut self.events);
        for event in self.events.drain(..) {
            if let Event::Token { request, token } = event {
                self.answers.entry(request).or_default().push(token);
            }
            let _ = writeln!(out, "event {event}");
        }
    }
}

fn print_explanation(found: &Explanation, out: &mut String) {
    let _ = write!(out, "request {} of tenant {} on {}", found.request, found.tenant, found.tier);
    let _ = write!(out, ": arrived {}", found.arrived);
    let times =
        [("admitted", found.admitted), ("first token", found.first_token), ("finished", found.finished)];
    for (name, time) in times {
        if let Some(time) = time {
            let _ = write!(out, ", {name} {time}");
        }
    }
    let _ = write!(out, ", passed by {}", found.passed_by);
    if let Some(lack) = found.waited_for {
        let _ = write!(out, ", lacked {lack}");
    }
    let _ = writeln!(out, ", preempted {}, cached tokens {}", found.preemptions, found.cached_tokens);
}
