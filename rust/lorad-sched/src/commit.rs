//! Applying what the worker computed.

use crate::core::Core;
use crate::error::CommitError;
use crate::event::{Event, FailReason, FinishReason};
use crate::request::{RequestState, SampledToken, SAMPLE_FAILED};
use crate::step::Chosen;

impl Core {
    /// Applies plan `number`: one entry per row that samples, in the plan's order. A refused commit changes nothing, the
    /// plan stays in flight.
    pub fn commit(&mut self, now: u64, number: u64, sampled: &[SampledToken]) -> Result<(), CommitError> {
        self.expect_in_flight(number)?;
        let expected = self.samples();
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
        self.count_computed(sampled);
        self.keep_all_filled();
        let mut sampled = sampled.iter();
        for index in 0..self.chosen.len() {
            let Chosen { request, sample, .. } = self.chosen[index];
            let token = if sample { sampled.next().copied() } else { None };
            match self.requests[request].state {
                RequestState::Running { .. } => {
                    if let Some(token) = token {
                        self.take_token(request, token);
                    }
                }
                RequestState::Ending { line } => {
                    self.release(request, line, None);
                    self.close(request);
                }
                RequestState::Vacant | RequestState::Waiting | RequestState::Preempted { .. } => {}
            }
        }
        self.chosen.clear();
        self.end_copies();
        Ok(())
    }

    /// Moves the rows on by what was computed, and lists those that have filled a page.
    fn count_computed(&mut self, sampled: &[SampledToken]) {
        let (mut sampled, page_tokens) = (sampled.iter(), self.config.page_tokens);
        let keeps = self.config.prefix_cache;
        for row in &self.chosen {
            self.counters.tokens_computed += u64::from(row.count);
            let failed = row.sample && sampled.next() == Some(&SAMPLE_FAILED);
            if let RequestState::Running { line, computed, planned, .. } =
                &mut self.requests[row.request].state
            {
                *computed += row.count;
                *planned = 0;
                if keeps && !failed && (self.lines.cached(*line).0 + 1) * page_tokens <= *computed {
                    self.filled.push(row.request);
                }
            }
        }
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
        request.push(token);
        let event = Event::Token { request: request.id, token };
        let stopped = request.is_stop(token);
        let full = request.length() >= request.length_max;
        if request.answered() == 1 {
            request.story.first_token = Some(self.now);
        }
        self.counters.tokens_sampled += 1;
        self.events.push(event); // not kept among the recent ones: a step's tokens would drive everything else out
        if stopped {
            self.finish(entry, FinishReason::Stop);
        } else if full {
            self.finish(entry, FinishReason::Length);
        }
    }
}
