//! Scenarios in which everything collides: tiny pools and limits, all faults at once. The long check runs them.

use lorad_sched::{Config, Costs};

use crate::faults::Faults;
use crate::load::{Arrivals, Lengths, Load};
use crate::random::Random;
use crate::run::Host;
use crate::scenario::{Scenario, Sizes};

/// Microseconds that a step takes at most, roughly: so much load is made for each.
const STEP_US: u64 = 160_000;

/// The scenario of a seed, about so many steps long, checked after each.
pub fn scenario(seed: u64, steps: u64) -> Scenario {
    let mut random = Random::fork(seed, 41);
    let mut between = |least: u64, most: u64| random.between(least, most);
    let rows_max = between(1, 6) as u32;
    let config = Config {
        pages: between(7, 14) as u32,
        pages_reserved: between(0, 1) as u32,
        page_tokens: between(1, 4) as u32,
        rows_max,
        tokens_max: between(6, 13) as u32,
        prefill_chunk_max: between(1, 7) as u32,
        slots_max: between(1, 4) as u32,
        adapters_step_max: between(1, 4) as u32,
        page_ins_max: between(1, 3) as u32,
        adapters_max: 6,
        waiting_max: 8,
        sequence_tokens_max: 24,
        stop_tokens_max: 2,
        urgent_after_us: between(0, 400_000),
        preempt_after_tokens: between(1, 4) as u32,
        preempt_after_us: between(0, 50_000),
        quantum_us: between(0, 400_000),
        rows_reserved: between(0, u64::from(rows_max - 1) / 2) as u32,
        prefix_cache: !seed.is_multiple_of(4),
        plans_max: if seed.is_multiple_of(5) { 2 } else { 1 },
        page_in_first_us: if seed.is_multiple_of(3) { 20_000 } else { 0 },
        costs: Costs {
            // from far less than a step to several of them
            page_in_ns: between(100_000, 60_000_000),
            // given, so that the worlds stay the same when the built-in costs are fitted again
            step_ns: 12_000_000,
            token_ns: 1_500_000,
            sample_ns: 500_000,
            context_ns: 200,
            adapter_page_ns: 4_000,
            adapter_token_page_ns: 1_000,
            page_in_page_ns: 50_000,
            few_tokens: 3,
            many_ns: 1_000_000,
            head_ns: 500_000,
            beside_page_ns: 20_000,
        },
        ..Config::default()
    };
    let gap_us = between(20_000, 160_000);
    let arrivals = match between(0, 2) {
        0 => Arrivals::Bursts { gap_us: gap_us / 4, on_us: 200_000, off_us: 600_000 },
        _ => Arrivals::Poisson { gap_us },
    };
    Scenario {
        name: format!("chaos-{seed}"),
        seed,
        sizes: Sizes::Pages(vec![1, 2, 3, 7]),
        config,
        load: Load {
            tenants: 3,
            requests: steps * STEP_US / gap_us + 10,
            arrivals,
            flood_tenant: 1,
            flood_times: between(1, 4),
            adapters: between(4, 6),
            zipf_milli: between(0, 1500),
            drift_us: 1_000_000,
            base_milli: 250,
            prompt: Lengths::Uniform(0, 12),
            answer: Lengths::Uniform(0, 11),
            stop_milli: 400,
            repeat_milli: 500,
        },
        faults: Faults {
            abort_milli: 60,
            abort_after_us: 150_000,
            storm_us: 3_000_000,
            storm_requests: 8,
            load_fail_us: 1_000_000,
            load_slow_us: 800_000,
            load_slow_percent: 700,
            row_fail_milli: 30,
            plan_fail_us: 4_000_000,
            churn_us: 1_500_000,
            churn_after_us: 300_000,
        },
        host: Host {
            during: seed % 2 == 1,
            noise_milli: 300,
            check_every: 1,
            audit: true,
            waits: true,
            steps_max: steps,
        },
        ..Scenario::default()
    }
}
