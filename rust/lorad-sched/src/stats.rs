//! Figures about the core.

use crate::adapter::AdapterId;
use crate::tenant::TenantId;

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub struct Counters {
    pub plans: u64,
    pub added: u64,
    pub refused: u64,
    pub admissions: u64,
    pub preemptions: u64,
    pub page_ins: u64,
    pub page_ins_failed: u64,
    pub page_in_pages: u64,
    pub evictions: u64,
    pub evicted_pages: u64,
    pub prefix_evictions: u64,
    pub prefix_tokens: u64,
    pub prefix_pages: u64,
    pub urgent: u64,
    pub tokens_computed: u64,
    pub tokens_sampled: u64,
    pub finished: u64,
    pub aborted: u64,
    pub failed: u64,
}

impl Counters {
    /// Names and figures, for hosts that export them.
    pub fn named(&self) -> [(&'static str, u64); 19] {
        let Counters {
            plans,
            added,
            refused,
            admissions,
            preemptions,
            page_ins,
            page_ins_failed,
            page_in_pages,
            evictions,
            evicted_pages,
            prefix_evictions,
            prefix_tokens,
            prefix_pages,
            urgent,
            tokens_computed,
            tokens_sampled,
            finished,
            aborted,
            failed,
        } = *self;
        [
            ("plans", plans),
            ("added", added),
            ("refused", refused),
            ("admissions", admissions),
            ("preemptions", preemptions),
            ("page_ins", page_ins),
            ("page_ins_failed", page_ins_failed),
            ("page_in_pages", page_in_pages),
            ("evictions", evictions),
            ("evicted_pages", evicted_pages),
            ("prefix_evictions", prefix_evictions),
            ("prefix_tokens", prefix_tokens),
            ("prefix_pages", prefix_pages),
            ("urgent", urgent),
            ("tokens_computed", tokens_computed),
            ("tokens_sampled", tokens_sampled),
            ("finished", finished),
            ("aborted", aborted),
            ("failed", failed),
        ]
    }
}

/// What is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub struct Stats {
    pub running: u32,
    pub waiting: u32,
    pub adapters: u32,
    pub adapters_loading: u32,
    pub adapters_active: u32,
    pub slots_free: u32,
    pub pages_total: u32,
    pub pages_free: u32,
    pub pages_sequence: u32,
    pub pages_adapter: u32,
    pub pages_cached: u32,
    pub pages_reserved: u32,
    pub counters: Counters,
}

/// What one adapter does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterStats {
    /// The adapter.
    pub adapter: AdapterId,
    /// Its tag.
    pub tag: u32,
    /// `cold`, `loading`, `hot`, `failed`; `draining` once it was unregistered.
    pub state: &'static str,
    /// Its slot, while loading or hot.
    pub slot: Option<u32>,
    /// Pages that it holds now.
    pub pages: u32,
    /// Its running requests.
    pub running: u32,
    /// Its waiting requests.
    pub waiting: u32,
}

/// What one tenant has and was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantStats {
    /// The tenant.
    pub tenant: TenantId,
    /// What it was charged over its weight, in nanoseconds of the cost model: who comes next. It rises to the others' when the
    /// tenant comes back.
    pub service: u64,
    /// Its running requests.
    pub running: u32,
    /// Its waiting requests.
    pub waiting: u32,
    /// Pages that count against its limit.
    pub pages: u32,
}
