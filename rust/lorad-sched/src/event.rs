//! What happened, in order.

use crate::adapter::AdapterId;
use crate::request::RequestId;

/// Why something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailReason {
    /// The adapter's bytes didn't arrive.
    PageIn,
    /// The worker refused this row (its sampled token was [`crate::SAMPLE_FAILED`]).
    Row,
    /// The worker lost the whole plan ([`crate::Core::commit_failed`]).
    Plan,
    /// The adapter's bytes couldn't be brought to the host.
    Fetch,
    /// Its deadline came before its last token.
    Deadline,
}

impl FailReason {
    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            FailReason::PageIn => "failed_page_in",
            FailReason::Row => "failed_row",
            FailReason::Plan => "failed_plan",
            FailReason::Fetch => "failed_fetch",
            FailReason::Deadline => "failed_deadline",
        }
    }
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// One of its stop tokens was sampled; it is its last token.
    Stop,
    /// It has `max_tokens` tokens.
    Length,
    /// The host took it back.
    Aborted,
    /// It couldn't be computed.
    Failed {
        /// What failed.
        why: FailReason,
    },
}

impl FinishReason {
    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Aborted => "aborted",
            FinishReason::Failed { why } => why.name(),
        }
    }
}

/// One thing that happened. The host takes them with [`crate::Core::drain_events`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request got a line and pages; again after a preemption.
    Admitted {
        /// The request.
        request: RequestId,
        /// Its line in the page table, until it's finished or preempted.
        line: u32,
    },
    /// A token of a request's answer.
    Token {
        /// The request.
        request: RequestId,
        /// The token id; a stop token is given too.
        token: u32,
    },
    /// A running request gave up its pages and waits again; its tokens stay.
    Preempted {
        /// The request.
        request: RequestId,
    },
    /// The last word about a request. Its id may be used again.
    Finished {
        /// The request.
        request: RequestId,
        /// Why it ended.
        reason: FinishReason,
    },
    /// Somebody waits for an adapter whose bytes aren't on the host: bring them and say [`crate::Core::arrived`].
    AdapterWanted {
        /// The adapter.
        adapter: AdapterId,
    },
    /// Nobody waits any more for an adapter that is being paged in. A host that can stops the copy and says
    /// [`crate::Core::page_in_dropped`]; one that can't reports as ever.
    AdapterDropped {
        /// The adapter.
        adapter: AdapterId,
    },
    /// An adapter was given a slot and pages, its page-in is part of the plan.
    AdapterLoading {
        /// The adapter.
        adapter: AdapterId,
        /// Its slot in the device table.
        slot: u32,
    },
    /// An adapter's bytes are in its pages.
    AdapterHot {
        /// The adapter.
        adapter: AdapterId,
        /// Its slot in the device table.
        slot: u32,
    },
    /// An idle adapter gave up its slot and pages.
    AdapterEvicted {
        /// The adapter.
        adapter: AdapterId,
    },
    /// An adapter's bytes didn't arrive; its next request tries again.
    AdapterFailed {
        /// The adapter.
        adapter: AdapterId,
    },
    /// An unregistered adapter is forgotten; nothing names it any more.
    AdapterGone {
        /// The adapter.
        adapter: AdapterId,
    },
}

/// As in scripts, after the word `event`.
impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::Admitted { request, line } => write!(f, "{request} admitted line {line}"),
            Event::Token { request, token } => write!(f, "{request} token {token}"),
            Event::Preempted { request } => write!(f, "{request} preempted"),
            Event::Finished { request, reason } => write!(f, "{request} finished {}", reason.name()),
            Event::AdapterWanted { adapter } => write!(f, "adapter {adapter} wanted"),
            Event::AdapterDropped { adapter } => write!(f, "adapter {adapter} dropped"),
            Event::AdapterLoading { adapter, slot } => write!(f, "adapter {adapter} loading slot {slot}"),
            Event::AdapterHot { adapter, slot } => write!(f, "adapter {adapter} hot slot {slot}"),
            Event::AdapterEvicted { adapter } => write!(f, "adapter {adapter} evicted"),
            Event::AdapterFailed { adapter } => write!(f, "adapter {adapter} failed"),
            Event::AdapterGone { adapter } => write!(f, "adapter {adapter} gone"),
        }
    }
}
