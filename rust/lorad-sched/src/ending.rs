//! Requests end: by their last token, by the host, by their deadline, by a fault.

use crate::core::Core;
use crate::event::{Event, FailReason, FinishReason};
use crate::request::{RequestId, RequestState};

impl Core {
    /// Ends all requests whose deadline has come.
    pub(crate) fn expire(&mut self) {
        while let Some(entry) =
            self.deadlines.front(0).filter(|&entry| self.deadlines.key(entry).0 <= self.now)
        {
            self.deadlines.remove(entry);
            self.finish(entry, FinishReason::Failed { why: FailReason::Deadline });
        }
    }

    /// Ends a request, in any state; unknown ids are ignored. [`Event::Finished`] comes at once and the id is free, but
    /// what the plan in flight uses goes back at its commit, and its token is dropped.
    pub fn abort(&mut self, now: u64, request: RequestId) {
        if let Some(entry) = self.requests.find(request) {
            self.now = self.now.max(now);
            self.finish(entry, FinishReason::Aborted);
        }
    }

    /// Ends a request: out of its queue, or line and pages back, or, when the plan in flight uses them, at the commit.
    pub(crate) fn finish(&mut self, entry: u32, reason: FinishReason) {
        let (request, state) = (self.requests[entry].id, self.requests[entry].state);
        if matches!(state, RequestState::Vacant | RequestState::Ending { .. }) {
            return;
        }
        match reason {
            FinishReason::Stop | FinishReason::Length => self.counters.finished += 1,
            FinishReason::Aborted => self.counters.aborted += 1,
            FinishReason::Failed { .. } => self.counters.failed += 1,
        }
        self.deadlines.remove(entry);
        self.explained.push(self.explanation(entry, Some(self.now)));
        // before its adapter can be forgotten: the last word about a request comes before that about its adapter
        self.tell(Event::Finished { request, reason });
        match state {
            RequestState::Vacant | RequestState::Ending { .. } => {}
            RequestState::Waiting | RequestState::Preempted { .. } => {
                let (group, adapter) = (self.requests[entry].group, self.requests[entry].adapter);
                let head = self.groups.queues.front(group) == Some(entry);
                self.groups.queues.remove(entry);
                self.waiting -= 1;
                self.tenants[self.groups[group].name.tenant].waiting -= 1;
                if let Some(adapter) = adapter {
                    self.adapters[adapter].waiting -= 1;
                    self.drop_unwanted_load(adapter);
                }
                if head {
                    self.stop_waiting(group); // the next one's wait at the head begins
                }
                self.close(entry);
            }
            RequestState::Running { line, planned, computed, .. } => {
                self.running.retain(|&other| other != entry);
                if planned > 0 {
                    let right = match reason {
                        FinishReason::Stop | FinishReason::Length => Some(computed),
                        FinishReason::Aborted | FinishReason::Failed { .. } => None,
                    };
                    self.requests[entry].state = RequestState::Ending { line, planned, right };
                    self.requests.forget(entry);
                } else {
                    // KV that the worker couldn't compute is no use to others
                    let right = match reason {
                        FinishReason::Failed { why: FailReason::Row | FailReason::Plan } => None,
                        FinishReason::Stop
                        | FinishReason::Length
                        | FinishReason::Aborted
                        | FinishReason::Failed { .. } => Some(computed),
                    };
                    self.release(entry, line, right);
                    self.close(entry);
                }
            }
        }
    }

    /// Gives a request's entry back and lets go of its adapter.
    pub(crate) fn close(&mut self, entry: u32) {
        let (group, adapter) = (self.requests[entry].group, self.requests[entry].adapter);
        self.requests.vacate(entry);
        self.leave(self.groups[group].name.tenant);
        self.settle(group);
        self.groups.let_go(group);
        if let Some(adapter) = adapter {
            self.adapters[adapter].holders -= 1;
            self.relist(adapter);
            self.forget_if_drained(adapter);
        }
    }

    /// Ends all waiting requests of an adapter.
    pub(crate) fn fail_waiting(&mut self, entry: u32, why: FailReason) {
        // holds the entry while its requests end, so that the last one doesn't forget it under our feet
        self.adapters[entry].holders += 1;
        let mut next = self.groups.of_adapter.front(entry);
        while let Some(group) = next {
            next = self.groups.of_adapter.after(group);
            while let Some(request) = self.groups.queues.front(group) {
                self.finish(request, FinishReason::Failed { why });
            }
        }
        self.adapters[entry].holders -= 1;
        self.settle_adapter(entry);
        self.forget_if_drained(entry);
    }
}
