//! Applying what the worker computed.

use crate::core::Core;
use crate::error::CommitError;
use crate::event::{Event, FailReason, FinishReason};
use crate::request::{RequestState, SampledToken, SAMPLE_FAILED};

impl Core {
    /// Applies plan `number`: one entry per row that samples, in the plan's order. A refused commit changes nothing, the
    /// plan stays in flight.
    pub fn commit(&mut self, now: u64, number: u64, sampled: &[SampledToken]) -> Result<(), CommitError> {
        self.expect_in_flight(number)?;
        let expected = self.chosen.iter().filter(|row| row.sample).count();
        if sampled.len() != expected {
            return Err(CommitError::WrongCount { expected: expected as u64, given: sampled.len() as u64 });
        }
        let limit = self.config.vocab;
        let valid =
            |token: i32| token == SAMPLE_FAILED || u32::try_from(token).is_ok_and(|token| token < limit);
        if let Some((index, &token)) = sampled.iter().enumerate().find(|(_, &token)| !valid(token)) {
            return Err(CommitError::TokenOutOfRange { index: index as u64, limit, token });
        }
        self.now = self.now.max(now);
        self.flight = None;
        let mut sampled = sampled.iter();
        for index in 0..self.chosen.len() {
            let row = self.chosen[index];
            let token = if row.sample { sampled.next().copied() } else { None };
            self.counters.tokens_computed += u64::from(row.count);
            match &mut self.requests[row.request].state {
                RequestState::Running { computed, planned, .. } => {
                    *computed += row.count;
                    *planned = 0;
                    if token != Some(SAMPLE_FAILED) {
                        self.keep_filled(row.request);
                    }
                    if let Some(token) = token {
                        self.take_token(row.request, token);
                    }
                }
                RequestState::Ending { line } => {
                    let line = *line;
                    self.release(row.request, line, None);
                    self.close(row.request);
                }
                RequestState::Vacant | RequestState::Waiting | RequestState::Preempted { .. } => {}
            }
        }
        self.chosen.clear();
        self.end_copies();
        Ok(())
    }

    /// The worker lost plan `number`: each of its requests ends with [`FailReason::Plan`], everything else goes on.
    /// Page-ins of the plan are reported by themselves.
    pub fn commit_failed(&mut self, now: u64, number: u64) -> Result<(), CommitError> {
        self.expect_in_flight(number)?;
        self.now = self.now.max(now);
        self.flight = None;
        for index in 0..self.chosen.len() {
            let entry = self.chosen[index].request;
            match &mut self.requests[entry].state {
                RequestState::Running { planned, .. } => {
                    *planned = 0;
                    self.finish(entry, FinishReason::Failed { why: FailReason::Plan });
                }
                RequestState::Ending { line } => {
                    let line = *line;
                    self.release(entry, line, None);
                    self.close(entry);
                }
                RequestState::Vacant | RequestState::Waiting | RequestState::Preempted { .. } => {}
            }
        }
        self.chosen.clear();
        self.end_copies();
        Ok(())
    }

    fn expect_in_flight(&self, given: u64) -> Result<(), CommitError> {
        match self.flight {
            None => Err(CommitError::NothingInFlight { given }),
            Some(expected) if expected != given => Err(CommitError::WrongPlan { expected, given }),
            Some(_) => Ok(()),
        }
    }

    fn take_token(&mut self, entry: u32, token: SampledToken) {
        let Ok(token) = u32::try_from(token) else {
            return self.finish(entry, FinishReason::Failed { why: FailReason::Row });
        };
        let request = &mut self.requests[entry];
        request.tokens.push(token);
        request.story.first_token.get_or_insert(self.now);
        let event = Event::Token { request: request.id, token };
        let stopped = request.is_stop(token);
        let full = request.answered() >= request.max_tokens;
        self.counters.tokens_sampled += 1;
        self.tell(event);
        if stopped {
            self.finish(entry, FinishReason::Stop);
        } else if full {
            self.finish(entry, FinishReason::Length);
        }
    }
}
