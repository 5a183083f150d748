//! Why a request took as long as it did: one record for each, and the last of those that ended.

use std::collections::VecDeque;

use crate::adapter::AdapterId;
use crate::core::Core;
use crate::request::RequestId;
use crate::tenant::TenantId;

/// Records of ended requests that are kept, at least.
const KEPT: usize = 1024;

/// What is noted about a request while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Story {
    /// Where the adapter's bytes were when it arrived.
    pub tier: &'static str,
    /// Admissions of all requests before it arrived; then how many came while it waited.
    pub passed_by: u64,
    pub admitted: Option<u64>,
    pub first_token: Option<u64>,
    /// What it lacked when it was last passed over.
    pub lacked: Option<&'static str>,
    pub preemptions: u32,
    pub cached_tokens: u32,
}

/// Why a request took as long as it did. Times are the host's, µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The request.
    pub request: RequestId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its adapter and the tag of its generation, `None` for the base.
    pub adapter: Option<(AdapterId, u32)>,
    /// Where the adapter's bytes were when it arrived: `remote`, `cold`, `loading`, `hot`, `failed`, or `base`.
    pub tier: &'static str,
    /// When it arrived.
    pub arrived: u64,
    /// When it first got a line.
    pub admitted: Option<u64>,
    /// When its first token was sampled.
    pub first_token: Option<u64>,
    /// When it ended.
    pub finished: Option<u64>,
    /// What it lacked when it was last passed over: `line`, `pages`, `slot`, `page_in`, `place`, `tenant_limit`, `prompt`; `None` when it
    /// only waited for its turn.
    pub waited_for: Option<&'static str>,
    /// Requests that were admitted between its arrival and its own first admission (so far, while it waits).
    pub passed_by: u64,
    /// How often it gave up its pages.
    pub preemptions: u32,
    /// Tokens of its prompt whose KV it found.
    pub cached_tokens: u32,
}

/// Records of the last requests that ended. Its memory is taken once.
#[derive(Clone, Debug)]
pub(crate) struct Explained {
    records: VecDeque<Explanation>,
    kept: usize,
}

impl Explained {
    /// Keeps all that can end in one step.
    pub fn new(rows_max: u32) -> Self {
        let kept = KEPT.max(rows_max as usize);
        Self { records: VecDeque::with_capacity(kept), kept }
    }

    pub fn push(&mut self, record: Explanation) {
        if self.records.len() == self.kept {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }
}

impl Core {
    /// Why a request that lives, or one of the last 1024 (or `rows_max`) that ended, took as long as it did.
    pub fn explain(&self, request: RequestId) -> Option<Explanation> {
        match self.requests.find(request) {
            Some(entry) => Some(self.explanation(entry, None)),
            None => self.explained.records.iter().rev().find(|record| record.request == request).copied(),
        }
    }

    pub(crate) fn explanation(&self, entry: u32, finished: Option<u64>) -> Explanation {
        let request = &self.requests[entry];
        let story = request.story;
        let name = self.groups[request.group].name;
        let passed_by = match story.admitted {
            Some(_) => story.passed_by,
            None => self.counters.admissions - story.passed_by,
        };
        Explanation {
            request: request.id,
            tenant: self.tenants[name.tenant].id,
            adapter: request.adapter.map(|entry| (self.adapters[entry].id, self.adapters[entry].spec.tag)),
            tier: story.tier,
            arrived: request.arrived,
            admitted: story.admitted,
            first_token: story.first_token,
            finished,
            waited_for: story.lacked,
            passed_by,
            preemptions: story.preemptions,
            cached_tokens: story.cached_tokens,
        }
    }
}
