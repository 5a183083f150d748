//! A hundred thousand random operations with a naive host beside the core, which is checked after each.
// a test ends by panicking, helpers of tests too
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::collections::BTreeMap;

use common::{Host, Random};
use lorad_sched::{AdapterId, Config, Costs};

/// Pools and limits so small that everything collides.
fn config(seed: u64) -> Config {
    let mut random = Random::new(seed ^ 0x00c0_ffee);
    let rows_max = 1 + random.below(6);
    Config {
        pages: 7 + random.below(8),
        pages_reserved: random.below(2),
        page_tokens: 1 + random.below(4),
        rows_max,
        rows_reserved: random.below(rows_max.div_ceil(2)),
        plans_max: 1 + (seed % 2) as u32,
        tokens_max: 6 + random.below(8),
        prefill_chunk_max: 1 + random.below(7),
        slots_max: 1 + random.below(4),
        adapters_step_max: 1 + random.below(4),
        page_ins_max: 1 + random.below(3),
        page_in_first_us: [0, 1200][random.below(2) as usize],
        adapters_max: 6,
        waiting_max: 8,
        sequence_tokens_max: 24,
        stop_tokens_max: 2,
        vocab: 10,
        prefix_cache: random.chance(75),
        urgent_after_us: u64::from(random.below(6000)),
        preempt_after_tokens: 1 + random.below(3),
        preempt_after_us: random.below(1000).into(),
        quantum_us: random.below(6000).into(),
        // a step of the host takes 1000 µs at most, and its page-ins are done by the next one
        costs: Costs {
            step_ns: 1_000_000,
            token_ns: 0,
            sample_ns: 0,
            few_tokens: 0,
            many_ns: 0,
            head_ns: 0,
            context_ns: 0,
            adapter_page_ns: 4_000,
            adapter_token_page_ns: 1_000,
            page_in_ns: 1_000_000,
            page_in_page_ns: 50_000,
            beside_page_ns: 0,
        },
        ..Config::default()
    }
}

fn run(seed: u64, operations: u32) -> Host {
    let mut random = Random::new(seed);
    let mut host = Host::new(config(seed));
    for _ in 0..4 {
        host.register(1 + random.below(3));
    }
    for _ in 0..operations {
        let some_adapter = |host: &Host, random: &mut Random| -> Option<AdapterId> {
            let known: Vec<AdapterId> = host.adapters.keys().chain(host.draining.keys()).copied().collect();
            (!known.is_empty()).then(|| known[random.below(known.len() as u32) as usize])
        };
        match random.below(100) {
            0..=24 => {
                let adapter = some_adapter(&host, &mut random).filter(|_| random.chance(75));
                let (prompt, max) = (random.below(13), random.below(12));
                let stops = random.chance(40);
                host.add(adapter, prompt, max, stops);
            }
            25..=56 => {
                host.step(&mut random);
            }
            57..=81 => host.commit(),
            82..=91 => host.report_page_in(&mut random, false),
            92 => {
                let failed = random.chance(60);
                host.report_page_in(&mut random, failed);
            }
            93..=95 => {
                let ids: Vec<u64> = host.book.keys().copied().collect();
                if !ids.is_empty() {
                    let id = ids[random.below(ids.len() as u32) as usize];
                    host.abort(id);
                    host.abort(id);
                }
            }
            96 | 97 => host.register(random.below(8)),
            98 => {
                if let Some(adapter) = some_adapter(&host, &mut random) {
                    host.unregister(adapter);
                }
            }
            _ => {
                if random.chance(20) {
                    host.lose_plan();
                }
            }
        }
        if let Err(fault) = host.core.check() {
            panic!("seed {seed}: {fault}\n{}", host.core.dump());
        }
    }
    host.drain(&mut random);
    host
}

#[test]
fn a_hundred_thousand_random_operations_hold() {
    let (mut totals, mut finished, mut refused) = ([0u64; 8], BTreeMap::new(), BTreeMap::new());
    // LORAD_SEEDS=n runs that many worlds instead of the usual fifty
    let seeds = std::env::var("LORAD_SEEDS").map_or(50, |text| text.parse().unwrap());
    for seed in 0..seeds {
        let host = run(seed, 2000);
        let counters = host.core.stats().counters;
        let said: u64 = host.finished.values().sum();
        assert_eq!(said, counters.added, "seed {seed}: every request is answered once");
        for (total, figure) in totals.iter_mut().zip([
            counters.evictions,
            counters.preemptions,
            counters.refused,
            counters.urgent,
            counters.page_ins_failed,
            counters.added,
            counters.prefix_tokens,
            counters.prefix_evictions,
        ]) {
            *total += figure;
        }
        for (name, count) in host.finished {
            *finished.entry(name).or_insert(0) += count;
        }
        for (name, count) in host.refused {
            *refused.entry(name).or_insert(0) += count;
        }
    }
    let [evictions, preemptions, refusals, urgent, failed, added, reused, dropped] = totals;
    println!("evictions {evictions} preemptions {preemptions} refusals {refusals} urgent {urgent}");
    println!("page-ins failed {failed} added {added} finished {finished:?} refused {refused:?}");
    assert!(evictions >= 500 && preemptions >= 500 && refusals >= 500 && urgent >= 500, "{totals:?}");
    println!("prefix tokens {reused}, pages {dropped} evicted");
    assert!(failed >= 50 && reused >= 1000 && dropped >= 500, "{totals:?}");
    for reason in ["stop", "length", "aborted", "failed_page_in", "failed_row", "failed_plan"] {
        assert!(finished.get(reason).is_some_and(|&count| count >= 20), "{reason}: {finished:?}");
    }
    for code in
        ["queue_full", "adapter_draining", "empty_prompt", "no_tokens_wanted", "never_fits", "adapters_full"]
    {
        assert!(refused.get(code).is_some_and(|&count| count >= 20), "{code}: {refused:?}");
    }
}

#[test]
fn the_same_calls_give_the_same_plans_events_and_dump() {
    for seed in 100..110 {
        let (one, two) = (run(seed, 1000), run(seed, 1000));
        assert_eq!(one.transcript, two.transcript, "seed {seed}");
        assert_eq!(one.core.dump(), two.core.dump(), "seed {seed}");
        assert_eq!(one.core.stats(), two.core.stats(), "seed {seed}");
    }
}

/// The same requests, one plan at a time and with a plan ahead, whatever the steps and commits are between: tokens are a function of
/// request and position, and everybody gets the same ones.
#[test]
fn answers_are_the_same_with_a_plan_ahead() {
    let (mut ahead, mut dropped, mut preempted, mut reused, mut stopped) = (0, 0, 0, 0, 0);
    for seed in 0..40 {
        let answers = [1, 2].map(|plans_max| {
            let config = Config { plans_max, waiting_max: 1000, ..config(seed) };
            let (mut random, mut asked) =
                (Random::new(seed + 1000 * u64::from(plans_max)), Random::new(seed));
            let mut host = Host::new(config);
            host.fails = 0;
            for _ in 0..4 {
                host.register(1 + asked.below(3));
            }
            let adapters: Vec<AdapterId> = host.adapters.keys().copied().collect();
            for _ in 0..60 {
                let adapter = Some(adapters[asked.below(4) as usize]).filter(|_| asked.chance(75));
                let (prompt, max) = (1 + asked.below(12), 1 + asked.below(11));
                host.add(adapter, prompt, max, asked.chance(60));
                for _ in 0..random.below(12) {
                    match random.below(3) {
                        0 => host.commit(),
                        1 => host.report_page_in(&mut random, false),
                        _ => {
                            host.step(&mut random);
                        }
                    }
                    host.core.check().unwrap();
                }
            }
            host.drain(&mut random);
            assert_eq!(host.ahead > 0, plans_max == 2, "seed {seed}");
            let counters = host.core.stats().counters;
            ahead += host.ahead;
            dropped += host.dropped;
            preempted += counters.preemptions;
            reused += counters.prefix_tokens;
            stopped += host.finished.get("stop").copied().unwrap_or(0);
            host.answers
        });
        assert!(answers[0].len() > 5, "seed {seed}");
        assert_eq!(answers[0], answers[1], "seed {seed}");
    }
    println!(
        "{ahead} plans ahead, {dropped} tokens in vain, {preempted} preemptions, {reused} tokens reused"
    );
    assert!(ahead > 1000 && dropped > 100 && preempted > 300 && reused > 1000 && stopped > 200);
}

/// Two adapters and the base are flooded so that their queues never empty; others ask once in a while. No first request
/// of a group ever waits longer than the bound.
#[test]
fn nobody_starves_under_a_flood() {
    let (mut longest, mut urgent) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let config =
            Config { pages: 14 + random.below(20), adapters_max: 8, waiting_max: 64, ..config(seed) };
        let mut host = Host::new(config.clone());
        for _ in 0..4 {
            host.register(1 + random.below(3));
        }
        let adapters: Vec<AdapterId> = host.adapters.keys().copied().collect();
        for _ in 0..1500 {
            while host.core.stats().waiting < 12 {
                let flood = [None, Some(adapters[0]), Some(adapters[1])][random.below(3) as usize];
                host.add(flood, 1 + random.below(6), 1 + random.below(8), false);
            }
            if random.chance(10) {
                let adapter = adapters[2 + random.below(2) as usize];
                host.add(Some(adapter), 1 + random.below(6), 1 + random.below(8), false);
            }
            host.step(&mut random);
            if host.flights.len() == config.plans_max as usize || random.chance(20) {
                host.commit();
            }
            while !host.loading.is_empty() {
                host.report_page_in(&mut random, false);
            }
            host.core.check().unwrap();
            if let Err(fault) = host.core.check_waits() {
                panic!("seed {seed}: {fault}\n{}", host.core.dump());
            }
            longest = longest.max(host.core.longest_wait_permille());
        }
        urgent += host.core.stats().counters.urgent;
        host.drain(&mut random);
    }
    println!("the longest wait was {longest} ‰ of its bound, {urgent} groups were urgent");
    assert!(urgent > 500 && longest > 50);
}
