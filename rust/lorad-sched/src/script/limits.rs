//! The limits and the policy of a script's core.

use crate::{Config, Costs, Eviction, Order, Policy, Split};

use super::arguments::{number, Arguments, Mistake};

pub(super) fn policy(arguments: &mut Arguments) -> Result<Policy, Mistake> {
    Ok(Policy {
        order: match arguments.take("order") {
            None | Some("fair") => Order::Fair,
            Some("arrival") => Order::Arrival,
            Some("affinity") => Order::Affinity,
            Some(other) => return Err(format!("no order {other}")),
        },
        eviction: match arguments.take("eviction") {
            None | Some("cost") => Eviction::Cost,
            Some("lru") => Eviction::Lru,
            Some(other) => return Err(format!("no eviction {other}")),
        },
        split: match (arguments.take("adapter_pages"), arguments.take("slots")) {
            (None, None) => Split::Unified,
            (Some(pages), None) => Split::Fixed { adapter_pages: number(pages)? },
            (None, Some(slots)) => {
                let (count, pages) = slots.split_once('x').ok_or("slots=COUNTxPAGES expected")?;
                Split::Slots { count: number(count)?, pages: number(pages)? }
            }
            (Some(_), Some(_)) => return Err("adapter_pages and slots exclude each other".to_string()),
        },
    })
}

/// The limits of a script that names none: small enough to read.
pub(super) fn small() -> Config {
    Config {
        pages: 16,
        pages_reserved: 0,
        page_tokens: 4,
        rows_max: 4,
        plans_max: 1,
        tokens_max: 16,
        prefill_chunk_max: 8,
        slots_max: 2,
        adapters_step_max: 8,
        page_ins_max: 2,
        page_in_first_us: 0,
        adapters_max: 8,
        waiting_max: 8,
        sequence_tokens_max: 64,
        stop_tokens_max: 4,
        vocab: 100_000,
        tenants_max: 8,
        urgent_after_us: 8000,
        preempt_after_tokens: 2,
        preempt_after_us: 0,
        quantum_us: 0,
        rows_reserved: 0,
        wait_us_max: 0,
        pinned_pages_max: 0,
        half_life_us: 1_000_000,
        prefix_cache: false,
        share_base_prefix: false,
        // a step of a script takes 1000 µs
        costs: Costs {
            step_ns: 500_000,
            token_ns: 10_000,
            sample_ns: 10_000,
            context_ns: 100,
            adapter_page_ns: 10_000,
            adapter_token_page_ns: 1000,
            page_in_ns: 500_000,
            page_in_page_ns: 100_000,
            few_tokens: 0,
            many_ns: 0,
            head_ns: 0,
            beside_page_ns: 0,
        },
        policy: Policy::default(),
    }
}
