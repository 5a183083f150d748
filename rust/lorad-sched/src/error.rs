//! Answers to calls that the core refuses. Each says its numbers; a refused call changes nothing.

use std::fmt;

use crate::adapter::AdapterId;
use crate::request::RequestId;

/// Why a request or a registration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are the limit and the value that broke it, as `Display` says
pub enum Refusal {
    /// The queue is full; try later.
    QueueFull { limit: u32, waiting: u32 },
    /// A request of this id lives.
    DuplicateRequest { request: RequestId },
    /// No such adapter, or no longer.
    UnknownAdapter { adapter: AdapterId },
    /// The adapter was unregistered and only finishes what it has.
    AdapterDraining { adapter: AdapterId },
    /// A prompt without tokens.
    EmptyPrompt,
    /// `max_tokens` is zero.
    NoTokensWanted,
    /// A token id outside the vocabulary.
    TokenOutOfRange { limit: u32, token: u32 },
    /// Prompt and answer are longer than any sequence may be.
    SequenceTooLong { limit: u32, tokens: u64 },
    /// Prompt, answer and adapter need more pages than there are.
    NeverFits { limit: u32, pages: u64 },
    /// Too many stop tokens.
    TooManyStopTokens { limit: u32, count: u64 },
    /// The table of adapters is full.
    AdaptersFull { limit: u32, adapters: u32 },
    /// The adapter and one page of KV need more pages than there are.
    AdapterTooLarge { limit: u32, pages: u32 },
    /// An adapter without pages.
    EmptyAdapter,
    /// Tag 0 means the base.
    ZeroTag,
    /// All adapter ids were given out.
    AdapterIdsSpent { limit: u32 },
    /// The table of tenants is full.
    TenantsFull { limit: u32, tenants: u32 },
    /// The tenant's queue is full; try later.
    TenantQueueFull { limit: u32, waiting: u32 },
    /// The tenant has registered as many adapters as it may.
    TenantAdaptersFull { limit: u32, adapters: u32 },
    /// Prompt, answer and adapter need more pages than the tenant may have.
    TenantNeverFits { limit: u32, pages: u64 },
    /// The wait could become longer than is accepted; try later.
    WaitTooLong { limit: u64, bound: u64 },
    /// A weight of 0, or a larger one than there is.
    WeightOutOfRange { limit: u32, weight: u32 },
    /// The deadline isn't after now.
    DeadlinePassed { deadline: u64, now: u64 },
    /// Pinned adapters would have more pages than they may.
    PinsFull { limit: u32, pages: u64 },
    /// The request to come after is another tenant's, adapter's or priority's.
    AfterAnother { request: RequestId },
}

impl Refusal {
    /// All stable names, for hosts that map each of them.
    pub const CODES: [&'static str; 24] = [
        "queue_full",
        "duplicate_request",
        "unknown_adapter",
        "adapter_draining",
        "empty_prompt",
        "no_tokens_wanted",
        "token_out_of_range",
        "sequence_too_long",
        "never_fits",
        "too_many_stop_tokens",
        "adapters_full",
        "adapter_too_large",
        "empty_adapter",
        "zero_tag",
        "adapter_ids_spent",
        "tenants_full",
        "tenant_queue_full",
        "tenant_adapters_full",
        "tenant_never_fits",
        "wait_too_long",
        "weight_out_of_range",
        "deadline_passed",
        "pins_full",
        "after_another",
    ];

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::QueueFull { .. } => "queue_full",
            Refusal::DuplicateRequest { .. } => "duplicate_request",
            Refusal::UnknownAdapter { .. } => "unknown_adapter",
            Refusal::AdapterDraining { .. } => "adapter_draining",
            Refusal::EmptyPrompt => "empty_prompt",
            Refusal::NoTokensWanted => "no_tokens_wanted",
            Refusal::TokenOutOfRange { .. } => "token_out_of_range",
            Refusal::SequenceTooLong { .. } => "sequence_too_long",
            Refusal::NeverFits { .. } => "never_fits",
            Refusal::TooManyStopTokens { .. } => "too_many_stop_tokens",
            Refusal::AdaptersFull { .. } => "adapters_full",
            Refusal::AdapterTooLarge { .. } => "adapter_too_large",
            Refusal::EmptyAdapter => "empty_adapter",
            Refusal::ZeroTag => "zero_tag",
            Refusal::AdapterIdsSpent { .. } => "adapter_ids_spent",
            Refusal::TenantsFull { .. } => "tenants_full",
            Refusal::TenantQueueFull { .. } => "tenant_queue_full",
            Refusal::TenantAdaptersFull { .. } => "tenant_adapters_full",
            Refusal::TenantNeverFits { .. } => "tenant_never_fits",
            Refusal::WaitTooLong { .. } => "wait_too_long",
            Refusal::WeightOutOfRange { .. } => "weight_out_of_range",
            Refusal::DeadlinePassed { .. } => "deadline_passed",
            Refusal::PinsFull { .. } => "pins_full",
            Refusal::AfterAnother { .. } => "after_another",
        }
    }

    /// The limit that was broken and the value that broke it.
    pub fn numbers(&self) -> (Option<u64>, Option<u64>) {
        let (limit, value) = match *self {
            Refusal::QueueFull { limit, waiting } => (limit, u64::from(waiting)),
            Refusal::TokenOutOfRange { limit, token } => (limit, token.into()),
            Refusal::SequenceTooLong { limit, tokens } => (limit, tokens),
            Refusal::NeverFits { limit, pages } => (limit, pages),
            Refusal::TooManyStopTokens { limit, count } => (limit, count),
            Refusal::AdaptersFull { limit, adapters } => (limit, adapters.into()),
            Refusal::AdapterTooLarge { limit, pages } => (limit, pages.into()),
            Refusal::AdapterIdsSpent { limit } => (limit, limit.into()),
            Refusal::TenantsFull { limit, tenants } => (limit, tenants.into()),
            Refusal::TenantQueueFull { limit, waiting } => (limit, waiting.into()),
            Refusal::TenantAdaptersFull { limit, adapters } => (limit, adapters.into()),
            Refusal::TenantNeverFits { limit, pages } | Refusal::PinsFull { limit, pages } => (limit, pages),
            Refusal::WeightOutOfRange { limit, weight } => (limit, weight.into()),
            Refusal::WaitTooLong { limit, bound } => return (Some(limit), Some(bound)),
            Refusal::DeadlinePassed { deadline, now } => return (Some(now), Some(deadline)),
            Refusal::DuplicateRequest { request } | Refusal::AfterAnother { request } => {
                return (None, Some(request))
            }
            Refusal::UnknownAdapter { adapter } | Refusal::AdapterDraining { adapter } => {
                return (None, Some(adapter.number().into()))
            }
            Refusal::EmptyPrompt | Refusal::NoTokensWanted | Refusal::EmptyAdapter | Refusal::ZeroTag => {
                return (None, Some(0))
            }
        };
        (Some(limit.into()), Some(value))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::QueueFull { limit, waiting } => {
                write!(f, "the queue is full: {waiting} requests wait, at most {limit} may")
            }
            Refusal::DuplicateRequest { request } => write!(f, "request {request} is there already"),
            Refusal::UnknownAdapter { adapter } => write!(f, "no adapter {adapter}"),
            Refusal::AdapterDraining { adapter } => write!(f, "adapter {adapter} was unregistered"),
            Refusal::EmptyPrompt => write!(f, "the prompt has no tokens"),
            Refusal::NoTokensWanted => write!(f, "max_tokens is 0"),
            Refusal::TokenOutOfRange { limit, token } => write!(f, "token {token}: ids are below {limit}"),
            Refusal::SequenceTooLong { limit, tokens } => {
                write!(f, "prompt and max_tokens are {tokens} tokens, at most {limit} fit a sequence")
            }
            Refusal::NeverFits { limit, pages } => {
                write!(f, "prompt, max_tokens and adapter need {pages} pages, there are {limit}")
            }
            Refusal::TooManyStopTokens { limit, count } => write!(f, "{count} stop tokens, at most {limit}"),
            Refusal::AdaptersFull { limit, adapters } => {
                write!(f, "{adapters} adapters are registered, at most {limit} may be")
            }
            Refusal::AdapterTooLarge { limit, pages } => {
                write!(f, "the adapter and one page of KV need {pages} pages, there are {limit}")
            }
            Refusal::EmptyAdapter => write!(f, "the adapter has no pages"),
            Refusal::ZeroTag => write!(f, "tag 0 means the base"),
            Refusal::AdapterIdsSpent { limit } => write!(f, "all {limit} adapter ids were given out"),
            Refusal::TenantsFull { limit, tenants } => {
                write!(f, "{tenants} tenants are known, at most {limit} may be")
            }
            Refusal::TenantQueueFull { limit, waiting } => {
                write!(f, "the tenant's queue is full: {waiting} requests wait, at most {limit} may")
            }
            Refusal::TenantAdaptersFull { limit, adapters } => {
                write!(f, "the tenant has registered {adapters} adapters, at most {limit} may be")
            }
            Refusal::TenantNeverFits { limit, pages } => {
                write!(f, "prompt, max_tokens and adapter need {pages} pages, the tenant may have {limit}")
            }
            Refusal::WaitTooLong { limit, bound } => {
                write!(f, "the wait could become {bound} µs, at most {limit} µs are accepted")
            }
            Refusal::WeightOutOfRange { limit, weight } => write!(f, "weight {weight}: 1 to {limit}"),
            Refusal::DeadlinePassed { deadline, now } => {
                write!(f, "the deadline {deadline} µs isn't after now, {now} µs")
            }
            Refusal::AfterAnother { request } => {
                write!(f, "request {request}, to come after, has another tenant, adapter or priority")
            }
            Refusal::PinsFull { limit, pages } => {
                write!(f, "pinned adapters would have {pages} pages, at most {limit} may be")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Why no plan could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepError {
    /// The last plan wasn't committed yet.
    PlanInFlight {
        /// Its number.
        number: u64,
    },
    /// The plan's buffer hasn't the length of the layout.
    BufferLength {
        /// Elements that the layout has.
        needed: u64,
        /// Elements given.
        given: u64,
    },
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepError::PlanInFlight { number } => write!(f, "plan {number} is in flight"),
            StepError::BufferLength { needed, given } => {
                write!(f, "a plan has {needed} elements, the buffer {given}")
            }
        }
    }
}

impl std::error::Error for StepError {}

/// Why a commit was refused; the plan is still in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitError {
    /// No plan is in flight.
    NothingInFlight {
        /// The number given.
        given: u64,
    },
    /// Another plan is in flight.
    WrongPlan {
        /// The plan in flight.
        expected: u64,
        /// The number given.
        given: u64,
    },
    /// Not one entry per sampled row.
    WrongCount {
        /// Rows that sample.
        expected: u64,
        /// Entries given.
        given: u64,
    },
    /// A token id outside the vocabulary.
    TokenOutOfRange {
        /// Which entry.
        index: u64,
        /// Ids are below this.
        limit: u32,
        /// The entry.
        token: i32,
    },
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommitError::NothingInFlight { given } => write!(f, "plan {given}: no plan is in flight"),
            CommitError::WrongPlan { expected, given } => {
                write!(f, "plan {given}: plan {expected} is in flight")
            }
            CommitError::WrongCount { expected, given } => {
                write!(f, "{given} sampled tokens for {expected} rows that sample")
            }
            CommitError::TokenOutOfRange { index, limit, token } => {
                write!(f, "sampled token {index} is {token}: ids are below {limit}")
            }
        }
    }
}

impl std::error::Error for CommitError {}

/// Why the report of a page-in was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageInError {
    /// No such adapter.
    UnknownAdapter {
        /// The adapter named.
        adapter: AdapterId,
    },
    /// The adapter isn't being paged in.
    NotLoading {
        /// The adapter named.
        adapter: AdapterId,
    },
    /// The adapter's bytes are on the host.
    NotRemote {
        /// The adapter named.
        adapter: AdapterId,
    },
    /// The core didn't say that the page-in may be stopped.
    NotDropped {
        /// The adapter named.
        adapter: AdapterId,
    },
}

impl fmt::Display for PageInError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageInError::UnknownAdapter { adapter } => write!(f, "no adapter {adapter}"),
            PageInError::NotLoading { adapter } => write!(f, "adapter {adapter} isn't being paged in"),
            PageInError::NotRemote { adapter } => write!(f, "the bytes of adapter {adapter} are on the host"),
            PageInError::NotDropped { adapter } => {
                write!(f, "the page-in of adapter {adapter} wasn't dropped")
            }
        }
    }
}

impl std::error::Error for PageInError {}
