//! The limits of a core: the line `core`.

use super::fields::Fields;
use crate::{Config, Costs, Policy};

pub(crate) fn core(fields: &mut impl Fields, config: &mut Config) {
    // taken apart so that a new field of the struct doesn't compile before it's recorded
    let Config {
        pages,
        pages_reserved,
        page_tokens,
        rows_max,
        plans_max,
        tokens_max,
        prefill_chunk_max,
        slots_max,
        adapters_step_max,
        page_ins_max,
        page_in_first_us,
        adapters_max,
        waiting_max,
        sequence_tokens_max,
        stop_tokens_max,
        vocab,
        tenants_max,
        urgent_after_us,
        preempt_after_tokens,
        preempt_after_us,
        quantum_us,
        rows_reserved,
        wait_us_max,
        pinned_pages_max,
        half_life_us,
        prefix_cache,
        share_base_prefix,
        costs,
        policy,
    } = config;
    fields.field("pages", pages);
    fields.field("pages_reserved", pages_reserved);
    fields.field("page_tokens", page_tokens);
    fields.field("rows_max", rows_max);
    fields.field("plans_max", plans_max);
    fields.field("tokens_max", tokens_max);
    fields.field("prefill_chunk_max", prefill_chunk_max);
    fields.field("slots_max", slots_max);
    fields.field("adapters_step_max", adapters_step_max);
    fields.field("page_ins_max", page_ins_max);
    fields.field("page_in_first_us", page_in_first_us);
    fields.field("adapters_max", adapters_max);
    fields.field("waiting_max", waiting_max);
    fields.field("sequence_tokens_max", sequence_tokens_max);
    fields.field("stop_tokens_max", stop_tokens_max);
    fields.field("vocab", vocab);
    fields.field("tenants_max", tenants_max);
    fields.field("urgent_after_us", urgent_after_us);
    fields.field("preempt_after_tokens", preempt_after_tokens);
    fields.field("preempt_after_us", preempt_after_us);
    fields.field("quantum_us", quantum_us);
    fields.field("rows_reserved", rows_reserved);
    fields.field("wait_us_max", wait_us_max);
    fields.field("pinned_pages_max", pinned_pages_max);
    fields.field("half_life_us", half_life_us);
    fields.field("prefix_cache", prefix_cache);
    fields.field("share_base_prefix", share_base_prefix);
    let Costs {
        step_ns,
        few_tokens,
        many_ns,
        head_ns,
        token_ns,
        sample_ns,
        context_ns,
        adapter_page_ns,
        adapter_token_page_ns,
        page_in_ns,
        page_in_page_ns,
        beside_page_ns,
    } = costs;
    fields.field("step_ns", step_ns);
    fields.field("token_ns", token_ns);
    fields.field("sample_ns", sample_ns);
    fields.field("context_ns", context_ns);
    fields.field("adapter_page_ns", adapter_page_ns);
    fields.field("adapter_token_page_ns", adapter_token_page_ns);
    fields.field("page_in_ns", page_in_ns);
    fields.field("page_in_page_ns", page_in_page_ns);
    // traces of the first version have none of these
    fields.unless("few_tokens", few_tokens, 0);
    fields.unless("many_ns", many_ns, 0);
    fields.unless("head_ns", head_ns, 0);
    fields.unless("beside_page_ns", beside_page_ns, 0);
    let Policy { order, eviction, split } = policy;
    fields.field("order", order);
    fields.field("eviction", eviction);
    fields.field("split", split);
}
