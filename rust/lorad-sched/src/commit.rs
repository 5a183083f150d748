//! Applying what the worker computed.

use crate::core::Core;
use crate::error::CommitError;
use crate::event::{Event, FailReason, FinishReason};
use crate::flight::Flight;
use crate::request::{RequestState, SampledToken, SAMPLE_FAILED};
use crate::step::Chosen;

impl Core {
    /// Applies plan `number`, the oldest in flight: one entry per row that samples, in the plan's order. A refused commit
    /// changes nothing, the plan stays in flight.
    pub fn commit(&mut self, now: u64, number: u64, sampled: &[SampledToken]) -> Result<(), CommitError> {
        self.expect_in_flight(number)?;
        let expected = self.flights.flying()[0].samples();
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
        let flight = self.flights.take();
        self.count_computed(&flight.rows, sampled);
        self.keep_all_filled();
        let mut sampled = sampled.iter();
        for &Chosen { request, count, sample, .. } in &flight.rows {
            let token = if sample { sampled.next().copied() } else { None };
            match (self.requests[request].state, token) {
                (RequestState::Running { .. }, Some(token)) => self.take_token(request, token),
                (RequestState::Ending { .. }, _) => self.land(request, count),
                _ => {}
            }
        }
        self.end_flight(flight);
        Ok(())
    }

    /// So many tokens of a request that has ended are no longer in flight.
    fn land(&mut self, entry: u32, count: u32) {
        let RequestState::Ending { line, planned, right } = &mut self.requests[entry].state else { return };
        *planned -= count;
        if *planned == 0 {
            let (line, right) = (*line, *right);
            if let Some(computed) = right {
                self.keep_filled(entry, line, computed, false);
            }
            self.release(entry, line, right);
            self.close(entry);
        }
    }

    fn end_flight(&mut self, flight: Flight) {
        flight.copies.iter().for_each(|copy| self.release_node(copy.source));
        self.flights.end(flight);
    }

    /// Moves the rows on by what was computed, and lists those that have filled a page.
    fn count_computed(&mut self, rows: &[Chosen], sampled: &[SampledToken]) {
        let (mut sampled, page_tokens) = (sampled.iter(), self.config.page_tokens);
        let keeps = self.config.prefix_cache;
        for row in rows {
            self.counters.tokens_computed += u64::from(row.count);
            let failed = row.sample && sampled.next() == Some(&SAMPLE_FAILED);
            if let RequestState::Running { line, computed, planned, .. } =
                &mut self.requests[row.request].state
            {
                *computed += row.count;
                *planned -= row.count;
                if keeps && !failed && (self.lines.cached(*line).0 + 1) * page_tokens <= *computed {
                    self.filled.push(row.request);
                }
            }
        }
    }

    /// The worker lost plan `number`: each of its requests ends with [`FailReason::Plan`], everything else goes on, also in a
    /// plan that was made ahead of this commit.
    /// Page-ins of the plan are reported by themselves.
    pub fn commit_failed(&mut self, now: u64, number: u64) -> Result<(), CommitError> {
        self.expect_in_flight(number)?;
        self.now = self.now.max(now);
        let flight = self.flights.take();
        for &Chosen { request, count, .. } in &flight.rows {
            match &mut self.requests[request].state {
                RequestState::Running { planned, .. } => {
                    *planned -= count;
                    self.finish(request, FinishReason::Failed { why: FailReason::Plan });
                }
                RequestState::Ending { .. } => self.land(request, count),
                RequestState::Vacant | RequestState::Waiting | RequestState::Preempted { .. } => {}
            }
        }
        self.end_flight(flight);
        Ok(())
    }

    fn expect_in_flight(&self, given: u64) -> Result<(), CommitError> {
        match self.in_flight() {
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
