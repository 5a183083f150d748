//! Redaction: a trace without its text, that plays the same.
//!
//! A token becomes a number that depends on the key, on the token and on all tokens before it in its request:
//!
//! ```text
//!   ids below the vocabulary   0 ....... stops | stops ................ vocab
//!   a stop token of the trace  one place each, the same everywhere
//!   any other token            a permutation of these, another one after each prefix
//! ```
//!
//! After the same prefix, different tokens become different numbers and equal ones equal: two requests share exactly the
//! prefixes that they shared before. A stop token is one everywhere, so answers end where they ended. Lengths,
//! times, tenants, adapters and the numbers of requests stay. Remarks are left out.

use std::collections::{BTreeSet, HashMap};

use super::error::{Mistake, TraceError};
use super::fields::Writer;
use super::input::Input;
use super::limits;
use super::permute::Key;
use super::replay::Replay;
use super::{Outcome, CORE, END, HEADER};
use crate::core::Core;
use crate::event::Event;
use crate::request::{RequestId, RequestState};
use crate::RequestSpec;

/// The trace with other token ids. It's played on the way, because only the core knows whose a sampled token is: one that
/// plays otherwise than it was recorded is refused. A last line that was cut off is left out.
pub fn redact(text: &str, key: &Key) -> Result<String, TraceError> {
    let mut replay = Replay::new(text)?;
    let mut out = format!("{HEADER}\n{CORE}");
    let mut config = replay.core().config().clone();
    limits::core(&mut Writer(&mut out), &mut config);
    out.push('\n');
    let mut redaction = Redaction::new(key, config.vocab, stop_tokens(text, config.vocab));
    loop {
        let rows = sampling_rows(replay.core());
        let played = match replay.step() {
            Ok(Some(played)) => played,
            Ok(None) => break,
            Err(TraceError { mistake: Mistake::Cut, .. }) => return Ok(out),
            Err(error) => return Err(error),
        };
        if let Some(mistake) = played.diverged() {
            return Err(TraceError { line: played.line, mistake });
        }
        redaction.input(played.input, played.outcome == Outcome::Done, &rows).write(&mut out);
        if let Some(saw) = played.recorded {
            saw.write(&mut out);
        }
        for event in replay.events() {
            if let Event::Finished { request, .. } = event {
                redaction.prefixes.remove(request);
            }
        }
    }
    if replay.is_cut() {
        out.push_str(END);
        out.push('\n');
    }
    Ok(out)
}

/// All stop tokens of a trace that a model can sample.
fn stop_tokens(text: &str, vocab: u32) -> BTreeSet<u32> {
    let mut stops = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("add ")) {
        if let Ok(Input::Add { spec, .. }) = Input::read(line) {
            stops.extend(spec.stop_tokens.into_iter().filter(|&token| token < vocab));
        }
    }
    stops
}

/// Whose each sampled token will be, in the order of a commit; `None` where it will be dropped.
fn sampling_rows(core: &Core) -> Vec<Option<RequestId>> {
    let rows = core.flights.flying().first().map_or(&[][..], |flight| &flight.rows);
    let requests = rows.iter().filter(|row| row.sample).map(|row| &core.requests[row.request]);
    requests
        .map(|request| match request.state {
            RequestState::Running { .. } => Some(request.id),
            RequestState::Vacant
            | RequestState::Waiting
            | RequestState::Preempted { .. }
            | RequestState::Ending { .. } => None,
        })
        .collect()
}

struct Redaction<'a> {
    key: &'a Key,
    vocab: u32,
    /// Stop tokens in order, and the place of each.
    stops: Vec<(u32, u32)>,
    /// What stands for all tokens so far of each living request.
    prefixes: HashMap<RequestId, u64>,
}

/// Before the first token.
const EMPTY: u64 = 0;
/// The context in which the stop tokens get their places.
const STOPS: u64 = 1;

impl<'a> Redaction<'a> {
    fn new(key: &'a Key, vocab: u32, stops: BTreeSet<u32>) -> Self {
        let count = stops.len() as u32;
        let place = |(index, token)| (token, key.permute(STOPS, index, count));
        let stops = (0..).zip(stops).map(place).collect();
        Self { key, vocab, stops, prefixes: HashMap::new() }
    }

    /// A token after `prefix`, which then has it too. Ids that no token has stay such.
    fn token(&self, prefix: &mut u64, token: u32) -> u32 {
        if token >= self.vocab {
            return self.vocab;
        }
        let stops = self.stops.len() as u32;
        let number = match self.stops.binary_search_by_key(&token, |stop| stop.0) {
            Ok(index) => self.stops[index].1,
            // counted without the stop tokens before it, so that the rest has no gaps
            Err(before) => stops + self.key.permute(*prefix, token - before as u32, self.vocab - stops),
        };
        *prefix = self.key.mix([*prefix, token.into(), u64::MAX]);
        number
    }

    /// `done`: was the call taken? Only then does it say how a request goes on.
    fn input(&mut self, mut input: Input, done: bool, rows: &[Option<RequestId>]) -> Input {
        match &mut input {
            Input::Add { spec, .. } => {
                let prefix = self.request(spec);
                if done {
                    self.prefixes.insert(spec.id, prefix);
                }
            }
            Input::Commit { sampled, .. } => {
                for (index, token) in sampled.iter_mut().enumerate() {
                    // the core refuses negative ones and takes one of them as a failed row: no text in either
                    let Ok(sampled) = u32::try_from(*token) else { continue };
                    let request = rows.get(index).copied().flatten().filter(|_| done);
                    let mut prefix = request.and_then(|id| self.prefixes.get(&id).copied()).unwrap_or(EMPTY);
                    *token = self.token(&mut prefix, sampled) as i32;
                    if let Some(id) = request {
                        self.prefixes.insert(id, prefix);
                    }
                }
            }
            Input::Register { .. }
            | Input::SetTenant { .. }
            | Input::Pin { .. }
            | Input::Prewarm { .. }
            | Input::Unregister { .. }
            | Input::Abort { .. }
            | Input::Step { .. }
            | Input::CommitFailed { .. }
            | Input::PageInDone { .. }
            | Input::PageInFailed { .. }
            | Input::PageInDropped { .. }
            | Input::PageInReached { .. }
            | Input::Arrived { .. }
            | Input::FetchFailed { .. } => {}
        }
        input
    }

    fn request(&self, spec: &mut RequestSpec) -> u64 {
        let mut prefix = EMPTY;
        for token in &mut spec.prompt {
            *token = self.token(&mut prefix, *token);
        }
        for token in &mut spec.stop_tokens {
            *token = match self.stops.binary_search_by_key(token, |stop| stop.0) {
                Ok(index) => self.stops[index].1,
                Err(_) => self.vocab,
            };
        }
        prefix
    }
}
