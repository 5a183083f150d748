//! The replay: a fresh core that gets the lines of a trace.

use super::apply::{apply, Outcome, Rejected};
use super::error::{short, Mistake, TraceError};
use super::fields::Reader;
use super::input::{split, Input};
use super::limits;
use super::saw::{Saw, SAW};
use super::{CORE, END, HEADER};
use crate::plan::PlanView;
use crate::{Config, Core, Event};

/// One line that was played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    /// The line's number, from 1.
    pub line: u64,
    /// What it gave the core.
    pub input: Input,
    /// What the core answered.
    pub outcome: Outcome,
    /// What a step made now.
    pub made: Option<Saw>,
    /// What it had made when it was recorded, if that was written.
    pub recorded: Option<Saw>,
}

impl Played {
    /// Did this core make something else than the recorded one?
    pub fn diverged(&self) -> Option<Mistake> {
        match (self.recorded, self.made) {
            (Some(recorded), Some(made)) if recorded != made => Some(Mistake::Diverged { recorded, made }),
            _ => None,
        }
    }
}

/// Plays a trace, line by line or to its end. After each line the core, its plan and its events are there to look at.
#[derive(Clone, Debug)]
pub struct Replay<T> {
    text: T,
    /// Where the next line begins.
    offset: usize,
    /// Lines taken.
    line: u64,
    core: Core,
    plan: Vec<i32>,
    planned: Option<u64>,
    events: Vec<Event>,
    ended: bool,
}

impl<T: AsRef<str>> Replay<T> {
    /// Reads the first two lines.
    pub fn new(text: T) -> Result<Self, TraceError> {
        let mut lines = Lines { text: text.as_ref(), offset: 0, line: 0 };
        let core = lines.start().map_err(|mistake| lines.at(mistake))?;
        let (offset, line, plan) = (lines.offset, lines.line, vec![0; core.plan_layout().length()]);
        Ok(Self { text, offset, line, core, plan, planned: None, events: Vec::new(), ended: false })
    }

    /// Gives the core the next input. `None` at the end of the trace. After an error the replay stands before the line.
    pub fn step(&mut self) -> Result<Option<Played>, TraceError> {
        let mut lines = Lines { text: self.text.as_ref(), offset: self.offset, line: self.line };
        let input = lines.input(&mut self.ended);
        // remarks are passed even where a wrong line comes after them
        (self.offset, self.line) = (lines.offset, lines.line);
        let Some(input) = input.map_err(|mistake| lines.at(mistake))? else { return Ok(None) };
        let line = lines.line;
        let outcome = apply(&mut self.core, &mut self.plan, &input);
        let made = match (&input, outcome) {
            (Input::Step { .. }, Outcome::Planned { plan }) => Some(Ok(Some(plan))),
            (Input::Step { .. }, Outcome::Rejected { why: Rejected::Step(why) }) => Some(Err(why)),
            (Input::Step { .. }, _) => Some(Ok(None)),
            _ => None,
        };
        let made = made.map(|made| Saw::new(&self.core, &self.plan, made));
        self.planned = made.and_then(|made| made.plan).or(self.planned);
        let recorded = if made.is_some() { lines.saw() } else { None };
        (self.offset, self.line) = (lines.offset, lines.line);
        self.events.clear();
        self.core.drain_events(&mut self.events);
        Ok(Some(Played { line, input, outcome, made, recorded }))
    }

    /// Plays all that is left; `each` is called after every line. Another plan than the recorded one is an error.
    pub fn run(&mut self, mut each: impl FnMut(&Self, &Played)) -> Result<(), TraceError> {
        while let Some(played) = self.step()? {
            each(self, &played);
            if let Some(mistake) = played.diverged() {
                return Err(TraceError { line: played.line, mistake });
            }
        }
        Ok(())
    }

    /// The core as it is after the last line.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The last plan that was made.
    pub fn plan(&self) -> Option<PlanView<'_>> {
        self.planned.map(|_| self.core.plan_layout().view(&self.plan))
    }

    /// The plan's buffer: of the last plan, zeros before the first.
    pub fn plan_array(&self) -> &[i32] {
        &self.plan
    }

    /// What happened with the last line.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Lines taken.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Did the log end because it reached its limit? The recorded core went on.
    pub fn is_cut(&self) -> bool {
        self.ended
    }
}

/// A text and a place in it.
struct Lines<'a> {
    text: &'a str,
    offset: usize,
    line: u64,
}

impl<'a> Lines<'a> {
    /// A mistake of the next line.
    fn at(&self, mistake: Mistake) -> TraceError {
        TraceError { line: self.line + 1, mistake }
    }

    /// The next line without its end, and where the one after it begins.
    fn peek(&self) -> Result<Option<(&'a str, usize)>, Mistake> {
        let rest = self.text.get(self.offset..).unwrap_or("");
        match rest.find('\n') {
            Some(end) => Ok(Some((rest[..end].trim_end_matches('\r'), self.offset + end + 1))),
            None if rest.is_empty() => Ok(None),
            None => Err(Mistake::Cut),
        }
    }

    fn pass(&mut self, next: usize) {
        self.offset = next;
        self.line += 1;
    }

    /// The core of the first two lines.
    fn start(&mut self) -> Result<Core, Mistake> {
        let Some((line, next)) = self.peek().map_err(|_| Mistake::NotATrace)? else {
            return Err(Mistake::NotATrace);
        };
        if line != HEADER {
            let (name, _) = split(HEADER);
            return Err(match line.strip_prefix(name) {
                Some(found) => Mistake::Version { found: short(found.trim()) },
                None => Mistake::NotATrace,
            });
        }
        self.pass(next);
        let (line, next) = self.peek()?.ok_or(Mistake::NoCore)?;
        let (name, rest) = split(line);
        if name != CORE {
            return Err(Mistake::NoCore);
        }
        let (mut config, mut reader) = (Config::default(), Reader::new(rest));
        limits::core(&mut reader, &mut config);
        reader.end()?;
        let core = Core::new(config).map_err(|error| Mistake::Config { error })?;
        self.pass(next);
        Ok(core)
    }

    /// The next input, remarks passed over.
    fn input(&mut self, ended: &mut bool) -> Result<Option<Input>, Mistake> {
        while let Some((line, next)) = self.peek()? {
            if line.is_empty() || line.starts_with('#') {
                self.pass(next);
            } else if *ended {
                return Err(Mistake::AfterEnd);
            } else if line == END {
                *ended = true;
                self.pass(next);
            } else {
                let input = Input::read(line)?;
                self.pass(next);
                return Ok(Some(input));
            }
        }
        Ok(None)
    }

    /// What was recorded about the step before, if that comes next. A line that can't be read is left: it's the next
    /// call's mistake.
    fn saw(&mut self) -> Option<Saw> {
        let (line, next) = self.peek().ok()??;
        let (name, rest) = split(line);
        let saw = if name == SAW { Saw::read(rest).ok() } else { None };
        if saw.is_some() {
            self.pass(next);
        }
        saw
    }
}
