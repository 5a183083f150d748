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
//! | `core limit=n …` | a new core; limits as in [`Config`], small by default |
//! | `register name pages=n layers=n tag=n` | an adapter, called `name` in this script |
//! | `unregister name` | |
//! | `add id adapter=name prompt=n max=n stop=t,t tenant=n` | a request with a prompt of n tokens: id·1000, id·1000 + 1, … |
//! | `abort id` | |
//! | `step` | makes a plan and prints it |
//! | `commit id=t … plan=n` | applies it; a row's token is id·1000 + its position unless given, `id=failed` refuses the row |
//! | `commit_failed` | the worker lost the plan |
//! | `done name`, `failed name` | reports a page-in |
//! | `run steps=n` | n times: step, commit, all page-ins done; one line per plan, and its events |
//! | `dump`, `stats`, `adapters` | print the state |
//!
//! Each `step` is 1000 µs after the last; `at=n` on any command sets the time.

use std::collections::HashMap;
use std::fmt::Write;

use crate::{AdapterId, AdapterSpec, Config, ConfigError, Core, Event, RequestSpec, SAMPLE_FAILED};

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
        let mut printed = session.command(line);
        while let Some(line) = lines.next_if(|line| !line.trim().is_empty() && *line != "----") {
            out.push_str(line);
            out.push('\n');
            if !line.starts_with('#') {
                printed.push_str(&session.command(line));
            }
        }
        // what it printed when the script was written
        while lines.next_if(|line| !line.trim().is_empty()).is_some() {}
        out.push_str("----\n");
        out.push_str(if printed.is_empty() { "ok\n" } else { &printed });
    }
    out
}

/// A mistake in the script.
type Mistake = String;

/// `key=value` and bare words of a command.
struct Arguments<'a> {
    words: Vec<&'a str>,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Arguments<'a> {
    fn new(line: &'a str) -> Self {
        let (mut words, mut pairs) = (Vec::new(), Vec::new());
        for part in line.split_whitespace() {
            match part.split_once('=') {
                Some(pair) => pairs.push(pair),
                None => words.push(part),
            }
        }
        Self { words, pairs }
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let index = self.pairs.iter().position(|(other, _)| *other == key)?;
        Some(self.pairs.remove(index).1)
    }

    fn number<T: std::str::FromStr>(&mut self, key: &str, default: T) -> Result<T, Mistake> {
        match self.take(key) {
            None => Ok(default),
            Some(text) => number(text),
        }
    }

    fn word(&mut self) -> Result<&'a str, Mistake> {
        if self.words.is_empty() {
            return Err("a name or number is missing".to_string());
        }
        Ok(self.words.remove(0))
    }

    fn end(self) -> Result<(), Mistake> {
        match (self.words.first(), self.pairs.first()) {
            (None, None) => Ok(()),
            (Some(word), _) => Err(format!("unknown word {word}")),
            (None, Some((key, _))) => Err(format!("unknown argument {key}")),
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Mistake> {
    text.parse().map_err(|_| format!("{text} isn't a number that fits here"))
}

struct Session {
    core: Core,
    names: HashMap<String, AdapterId>,
    plan: Vec<i32>,
    events: Vec<Event>,
    now: u64,
}

impl Session {
    fn new() -> Result<Self, ConfigError> {
        let core = Core::new(small())?;
        let plan = vec![0; core.plan_layout().length()];
        Ok(Self { core, names: HashMap::new(), plan, events: Vec::new(), now: 0 })
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
            "done" | "failed" => {
                let adapter = self.adapter(arguments.word()?)?;
                arguments.end()?;
                let report = match name {
                    "done" => self.core.page_in_done(self.now, adapter),
                    _ => self.core.page_in_failed(self.now, adapter),
                };
                report.err().map(|error| error.to_string())
            }
            "run" => {
                let steps = arguments.number("steps", 1u32)?;
                arguments.end()?;
                self.run(steps, out)
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
        for (name, field) in [
            ("pages", &mut config.pages),
            ("pages_reserved", &mut config.pages_reserved),
            ("page_tokens", &mut config.page_tokens),
            ("rows_max", &mut config.rows_max),
            ("tokens_max", &mut config.tokens_max),
            ("prefill_chunk_max", &mut config.prefill_chunk_max),
            ("slots_max", &mut config.slots_max),
            ("adapters_step_max", &mut config.adapters_step_max),
            ("page_ins_max", &mut config.page_ins_max),
            ("adapters_max", &mut config.adapters_max),
            ("waiting_max", &mut config.waiting_max),
            ("sequence_tokens_max", &mut config.sequence_tokens_max),
            ("stop_tokens_max", &mut config.stop_tokens_max),
            ("vocab", &mut config.vocab),
            ("pass_overs_max", &mut config.pass_overs_max),
        ] {
            *field = arguments.number(name, *field)?;
        }
        arguments.end()?;
        match Core::new(config) {
            Ok(core) => {
                self.plan = vec![0; core.plan_layout().length()];
                self.core = core;
                self.names.clear();
                Ok(None)
            }
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    fn register(&mut self, mut arguments: Arguments, out: &mut String) -> Result<Option<String>, Mistake> {
        let name = arguments.word()?.to_string();
        let spec = AdapterSpec {
            tag: arguments.number("tag", 100 + self.names.len() as u32 + 1)?,
            pages: arguments.number("pages", 2)?,
            layers: arguments.number("layers", 1)?,
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
        let first = id.wrapping_mul(1000) as u32;
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
        };
        arguments.end()?;
        Ok(self.core.add(self.now, spec).err().map(|refusal| refusal.to_string()))
    }

    fn step(&mut self, out: &mut String) -> Option<String> {
        self.now = self.now.saturating_add(1000);
        match self.core.step(self.now, &mut self.plan) {
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
        let sampled = self.core.chosen.iter().filter(|row| row.sample);
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
            self.now = self.now.saturating_add(1000);
            let number = match self.core.step(self.now, &mut self.plan) {
                Ok(Some(number)) => number,
                Ok(None) => {
                    let _ = writeln!(out, "nothing can run");
                    return None;
                }
                Err(error) => return Some(error.to_string()),
            };
            let rows = self.core.chosen.iter().map(|row| {
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
            let _ = match event {
                Event::Admitted { request, line } => writeln!(out, "event {request} admitted line {line}"),
                Event::Token { request, token } => writeln!(out, "event {request} token {token}"),
                Event::Preempted { request } => writeln!(out, "event {request} preempted"),
                Event::Finished { request, reason } => {
                    writeln!(out, "event {request} finished {}", reason.name())
                }
                Event::AdapterLoading { adapter, slot } => {
                    writeln!(out, "event adapter {adapter} loading slot {slot}")
                }
                Event::AdapterHot { adapter, slot } => {
                    writeln!(out, "event adapter {adapter} hot slot {slot}")
                }
                Event::AdapterEvicted { adapter } => writeln!(out, "event adapter {adapter} evicted"),
                Event::AdapterFailed { adapter } => writeln!(out, "event adapter {adapter} failed"),
                Event::AdapterGone { adapter } => writeln!(out, "event adapter {adapter} gone"),
            };
        }
    }
}

/// The limits of a script that names none: small enough to read.
fn small() -> Config {
    Config {
        pages: 16,
        pages_reserved: 0,
        page_tokens: 4,
        rows_max: 4,
        tokens_max: 16,
        prefill_chunk_max: 8,
        slots_max: 2,
        adapters_step_max: 8,
        page_ins_max: 2,
        adapters_max: 8,
        waiting_max: 8,
        sequence_tokens_max: 64,
        stop_tokens_max: 4,
        vocab: 100_000,
        pass_overs_max: 4,
        ..Config::default()
    }
}
