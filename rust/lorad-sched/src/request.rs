//! Requests: what the host asks for, and the table of those that live.

use std::collections::HashMap;

use crate::explain::Story;

/// The host's number of a request.
pub type RequestId = u64;

/// One sampled token: its id, or [`SAMPLE_FAILED`].
pub type SampledToken = i32;

/// Instead of a sampled token: the worker couldn't compute this row. The request ends, nobody else's.
pub const SAMPLE_FAILED: SampledToken = -1;

/// A request, as the host gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestSpec {
    /// The host's number; unique among the requests that live.
    pub id: RequestId,
    /// Who asks. Kept for the fairness between tenants.
    pub tenant: u32,
    /// The adapter, `None` for the base.
    pub adapter: Option<crate::AdapterId>,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens of the answer at most.
    pub max_tokens: u32,
    /// Token ids that end the answer.
    pub stop_tokens: Vec<u32>,
    /// How much of its tenant's service it gets relative to the tenant's other requests.
    pub priority: Priority,
    /// It ends as failed when this moment comes first, µs.
    pub deadline: Option<u64>,
    /// A request of the same tenant, adapter and priority with the same prompt: this one isn't admitted before that one has
    /// computed it, and finds its pages. For several answers to one prompt; unknown and ended ones are ignored.
    pub after: Option<RequestId>,
    /// It finds no cached prefix: every token of its prompt is computed, for who wants to look at each. What it computes is
    /// cached for others.
    pub fresh: bool,
}

/// Priority classes ride on weights: within a tenant, and only there, one class gets four times the service of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// A quarter of the usual.
    Low,
    /// The usual.
    #[default]
    Normal,
    /// Four times the usual.
    High,
}

impl Priority {
    /// Factor of the adapter's weight.
    pub fn weight(&self) -> u32 {
        match self {
            Priority::Low => 1,
            Priority::Normal => 4,
            Priority::High => 16,
        }
    }

    /// 0 comes first.
    pub(crate) fn rank(&self) -> u64 {
        match self {
            Priority::High => 0,
            Priority::Normal => 1,
            Priority::Low => 2,
        }
    }

    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }
}

/// Where a request stands.
///
/// ```text
///   tokens   0 ........ computed ........ tokens.len()
///            | KV in pages | known, not computed |          decode: exactly one token isn't computed
///   pages    0 .................... lines.pages · page_tokens     taken for all known tokens at admission
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// No request in this entry.
    Vacant,
    /// In its group's queue, never admitted.
    Waiting,
    /// Has a line and pages.
    Running {
        /// Line of the page table.
        line: u32,
        /// Tokens whose KV is in the pages.
        computed: u32,
        /// New tokens in the plans in flight; 0 when it isn't part of any.
        planned: u32,
        /// Tokens of the answer when it was admitted.
        from: u32,
    },
    /// Gave its pages up; at the head of its group's queue with all its tokens.
    Preempted {
        /// Because there were no pages, not to make way: it comes back before others come.
        starved: bool,
    },
    /// Ended while in a plan in flight: line and pages go back at the commit of the last one. The id is free already.
    Ending {
        /// Line of the page table.
        line: u32,
        /// New tokens in the plans in flight.
        planned: u32,
        /// Tokens whose KV is right, where it ended by its own last token.
        right: Option<u32>,
    },
}

impl RequestState {
    /// The name in dumps.
    pub fn name(&self) -> &'static str {
        match self {
            RequestState::Vacant => "vacant",
            RequestState::Waiting => "waiting",
            RequestState::Running { .. } => "running",
            RequestState::Preempted { .. } => "preempted",
            RequestState::Ending { .. } => "ending",
        }
    }
}

/// A request in the table. What each step reads of it comes first, in one line of the CPU's cache.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Request {
    /// Prompt and answer so far.
    pub tokens: Vec<u32>,
    /// The last of them.
    pub last: u32,
    /// Tokens when the answer is as long as it may be.
    pub length_max: u32,
    pub state: RequestState,
    /// Entry of the group.
    pub group: u32,
    /// Entry of the adapter, `None` for the base.
    pub adapter: Option<u32>,
    pub id: RequestId,
    pub prompt_length: u32,
    pub max_tokens: u32,
    /// A bit for each stop token's last six bits, so that most tokens need no look at the list.
    pub stop_bits: u64,
    pub stop_tokens: Vec<u32>,
    /// Its place in the order of arrival.
    pub serial: u64,
    pub arrived: u64,
    pub deadline: Option<u64>,
    /// Not admitted before this request has computed its prompt.
    pub after: Option<RequestId>,
    /// No cached prefix is for it.
    pub fresh: bool,
    pub story: Story,
}

// the line ends where the id begins
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::offset_of!(Request, id) == 64);

impl Request {
    /// Tokens known so far.
    pub fn length(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Tokens of the answer so far.
    pub fn answered(&self) -> u32 {
        self.length() - self.prompt_length
    }

    /// Tokens that the next plan has to compute: known ones that aren't planned, or the one that the plan in flight samples,
    /// unless that is the last.
    pub fn missing(&self) -> u32 {
        let RequestState::Running { computed, planned, .. } = self.state else { return 0 };
        match self.length() - (computed + planned).min(self.length()) {
            0 => u32::from(self.length() + 1 < self.length_max && computed + planned == self.length()),
            known => known,
        }
    }

    /// Tokens that it needs pages for: all known ones, and the one that the plan in flight samples.
    pub fn extent(&self) -> u32 {
        match self.state {
            RequestState::Running { computed, planned, .. } => {
                self.length().max(computed + planned + self.missing().min(1))
            }
            _ => self.length(),
        }
    }

    /// Takes a token of the answer.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.last = token;
    }

    /// Does this token end it?
    pub fn is_stop(&self, token: u32) -> bool {
        self.stop_bits >> (token % 64) & 1 == 1 && self.stop_tokens.contains(&token)
    }
}

/// The table of requests. Entries are reused, ids aren't mixed up because only living requests are in the index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    entries: Vec<Request>,
    vacant: Vec<u32>,
    index: HashMap<RequestId, u32>,
    serial: u64,
}

impl Requests {
    /// The entry of a request that the host may still name.
    pub fn find(&self, id: RequestId) -> Option<u32> {
        self.index.get(&id).copied()
    }

    /// Entries, vacant ones included.
    pub fn entries(&self) -> &[Request] {
        &self.entries
    }

    /// Puts a request into an entry; its memory for the whole answer is taken here, so that no step allocates.
    pub fn insert(
        &mut self,
        spec: RequestSpec,
        group: u32,
        adapter: Option<u32>,
        now: u64,
        story: Story,
    ) -> u32 {
        let RequestSpec { id, mut prompt, max_tokens, stop_tokens, deadline, after, fresh, .. } = spec;
        self.serial += 1;
        let prompt_length = prompt.len() as u32;
        prompt.reserve_exact(max_tokens as usize);
        let request = Request {
            id,
            group,
            adapter,
            serial: self.serial,
            last: prompt.last().copied().unwrap_or(0),
            length_max: prompt_length + max_tokens,
            tokens: prompt,
            prompt_length,
            max_tokens,
            stop_bits: stop_tokens.iter().fold(0, |bits, token| bits | 1 << (token % 64)),
            stop_tokens,
            arrived: now,
            deadline,
            after,
            fresh,
            story,
            state: RequestState::Waiting,
        };
        let entry = match self.vacant.pop() {
            Some(entry) => {
                self.entries[entry as usize] = request;
                entry
            }
            None => {
                self.entries.push(request);
                // so that giving an entry back never allocates
                self.vacant.reserve(self.entries.capacity());
                (self.entries.len() - 1) as u32
            }
        };
        self.index.insert(id, entry);
        entry
    }

    /// Frees the id at once; the entry stays until [`Requests::vacate`].
    pub fn forget(&mut self, entry: u32) {
        let id = self.entries[entry as usize].id;
        if self.index.get(&id) == Some(&entry) {
            self.index.remove(&id);
        }
    }

    /// Frees the entry and its memory.
    pub fn vacate(&mut self, entry: u32) {
        self.forget(entry);
        let request = &mut self.entries[entry as usize];
        request.state = RequestState::Vacant;
        request.tokens = Vec::new();
        request.stop_tokens = Vec::new();
        self.vacant.push(entry);
    }

    /// Compares index, entries and the list of vacant ones.
    pub fn check(&self) -> Result<(), String> {
        for (&id, &entry) in &self.index {
            let request = &self.entries[entry as usize];
            let nameable = matches!(
                request.state,
                RequestState::Waiting | RequestState::Preempted { .. } | RequestState::Running { .. }
            );
            if request.id != id || !nameable {
                return Err(format!(
                    "requests: id {id} leads to {} in state {}",
                    request.id,
                    request.state.name()
                ));
            }
        }
        let mut vacant = 0;
        for request in &self.entries {
            match request.state {
                RequestState::Vacant => vacant += 1,
                RequestState::Ending { .. } => {}
                RequestState::Waiting | RequestState::Preempted { .. } | RequestState::Running { .. } => {
                    if self.find(request.id).is_none() {
                        return Err(format!("requests: id {} isn't in the index", request.id));
                    }
                    let length_max = request.prompt_length + request.max_tokens;
                    if request.tokens.last() != Some(&request.last) || request.length_max != length_max {
                        let (last, most) = (request.last, request.length_max);
                        return Err(format!(
                            "requests: id {} with last token {last}, length {most}",
                            request.id
                        ));
                    }
                }
            }
        }
        if vacant != self.vacant.len() {
            return Err(format!("requests: {vacant} vacant entries, {} listed", self.vacant.len()));
        }
        Ok(())
    }
}

impl std::ops::Index<u32> for Requests {
    type Output = Request;
    fn index(&self, entry: u32) -> &Request {
        &self.entries[entry as usize]
    }
}

impl std::ops::IndexMut<u32> for Requests {
    fn index_mut(&mut self, entry: u32) -> &mut Request {
        &mut self.entries[entry as usize]
    }
}
