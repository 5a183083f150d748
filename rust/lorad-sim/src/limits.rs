//! The core's limits and costs by name: one table for scenarios and scripts.

use lorad_sched::{Config, Costs};

/// The limits that scenarios set and scripts name.
pub fn limits(config: &mut Config) -> [(&'static str, &mut u32); 15] {
    [
        ("pages", &mut config.pages),
        ("pages_reserved", &mut config.pages_reserved),
        ("page_tokens", &mut config.page_tokens),
        ("rows_max", &mut config.rows_max),
        ("tokens_max", &mut config.tokens_max),
        ("prefill_chunk_max", &mut config.prefill_chunk_max),
        ("slots_max", &mut config.slots_max),
        ("adapters_step_max", &mut config.adapters_step_max),
        ("page_ins_max", &mut config.page_ins_max),
        ("adapters_max", &mut config.adapters_max),
        ("waiting_max", &mut config.waiting_max),
        ("sequence_tokens_max", &mut config.sequence_tokens_max),
        ("stop_tokens_max", &mut config.stop_tokens_max),
        ("vocab", &mut config.vocab),
        ("pass_overs_max", &mut config.pass_overs_max),
    ]
}

/// The costs, in nanoseconds.
pub fn costs(costs: &mut Costs) -> [(&'static str, &mut u64); 8] {
    [
        ("step_ns", &mut costs.step_ns),
        ("token_ns", &mut costs.token_ns),
        ("sample_ns", &mut costs.sample_ns),
        ("context_ns", &mut costs.context_ns),
        ("adapter_page_ns", &mut costs.adapter_page_ns),
        ("adapter_token_page_ns", &mut costs.adapter_token_page_ns),
        ("page_in_ns", &mut costs.page_in_ns),
        ("page_in_page_ns", &mut costs.page_in_page_ns),
    ]
}
