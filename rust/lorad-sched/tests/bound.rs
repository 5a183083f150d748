//! The wait bound: an adversary comes close to it, and never past it.
// a test ends by panicking
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

#[allow(dead_code)] // this file needs its numbers only
mod common;

use common::Random;
use lorad_sched::{AdapterId, AdapterSpec, Config, Core, Costs, Priority, RequestSpec, TenantSpec};

/// A step takes `step_ns` whatever it computes, so that each step is as long as the longest; page-ins go one by one.
struct Clock {
    core: Core,
    plan: Vec<i32>,
    now: u64,
    loads: Vec<AdapterId>,
    load_ends: u64,
    longest: u64,
}

impl Clock {
    fn new(config: Config) -> Self {
        let core = Core::new(config).unwrap();
        let plan = vec![0; core.plan_layout().length()];
        Self { core, plan, now: 0, loads: Vec::new(), load_ends: 0, longest: 0 }
    }

    fn step(&mut self) {
        let costs = self.core.config().costs;
        let number = self.core.step(self.now, &mut self.plan).unwrap();
        match number {
            Some(number) => {
                let view = self.core.plan_layout().view(&self.plan);
                let began: Vec<(AdapterId, u32)> =
                    view.page_ins().map(|load| (load.adapter, load.pages.len() as u32)).collect();
                let sampled = vec![7; view.samples()];
                let rows = view.rows();
                for (adapter, pages) in began {
                    if self.loads.is_empty() {
                        self.load_ends = self.now;
                    }
                    self.loads.push(adapter);
                    if self.loads.len() == 1 {
                        self.load_ends = self.now + costs.page_in_ns(pages) / 1000;
                    }
                }
                self.now += if rows > 0 { costs.step_ns / 1000 } else { 0 };
                self.core.commit(self.now, number, &sampled).unwrap();
            }
            None => self.now = self.now.max(self.load_ends),
        }
        while !self.loads.is_empty() && self.load_ends <= self.now {
            let adapter = self.loads.remove(0);
            self.core.page_in_done(self.now, adapter).unwrap();
            self.load_ends += costs.page_in_ns(8) / 1000;
        }
        self.core.check().unwrap();
        if let Err(fault) = self.core.check_waits() {
            panic!("{fault}\n{}", self.core.dump());
        }
        self.longest = self.longest.max(self.core.longest_wait_permille());
        self.core.drain_events(&mut Vec::new());
    }
}

fn config(rows_max: u32) -> Config {
    Config {
        pages: 64,
        page_tokens: 16,
        rows_max,
        tokens_max: 64,
        prefill_chunk_max: 64,
        slots_max: 8,
        page_ins_max: 1,
        sequence_tokens_max: 2048,
        urgent_after_us: 10_000,
        preempt_after_tokens: 8,
        preempt_after_us: 0,
        quantum_us: 0,
        prefix_cache: false,
        costs: Costs {
            step_ns: 1_000_000,
            token_ns: 0,
            sample_ns: 0,
            context_ns: 0,
            adapter_page_ns: 0,
            adapter_token_page_ns: 0,
            page_in_ns: 2_000_000,
            page_in_page_ns: 1_000_000,
            few_tokens: 0,
            many_ns: 0,
            head_ns: 0,
            beside_page_ns: 0,
        },
        ..Config::default()
    }
}

/// Each request wants the whole pool, and each has an adapter of its own: every turn takes as long as it can.
#[test]
fn an_adversary_comes_close_to_the_bound() {
    let mut clock = Clock::new(config(1));
    let adapters: Vec<AdapterId> = (1..=12)
        .map(|tag| clock.core.register(AdapterSpec { tag, pages: 8, ..AdapterSpec::default() }).unwrap())
        .collect();
    for (id, &adapter) in adapters.iter().enumerate() {
        let prompt = vec![1; 800];
        let spec = RequestSpec {
            id: id as u64,
            adapter: Some(adapter),
            prompt,
            max_tokens: 90,
            ..RequestSpec::default()
        };
        clock.core.add(0, spec).unwrap();
    }
    while clock.core.has_work() {
        clock.step();
    }
    println!("the longest wait was {} ‰ of its bound", clock.longest);
    assert!(clock.longest >= 500, "{} ‰", clock.longest);
}

/// The same with a tenant beside it that doesn't wait and is present all the same: prompts have a quarter of each step's tokens.
#[test]
fn a_present_tenant_counts_though_it_does_not_wait() {
    let mut clock = Clock::new(Config { rows_reserved: 1, tokens_max: 10, ..config(3) });
    clock.core.set_tenant(1, TenantSpec { weight: 1000, ..TenantSpec::default() }).unwrap();
    clock
        .core
        .add(0, RequestSpec { tenant: 1, prompt: vec![1], max_tokens: 1, ..RequestSpec::default() })
        .unwrap();
    while clock.core.has_work() {
        clock.step();
    }
    for tag in 1..=12 {
        let adapter = clock.core.register(AdapterSpec { tag, pages: 8, ..AdapterSpec::default() }).unwrap();
        let spec = RequestSpec {
            id: tag.into(),
            adapter: Some(adapter),
            prompt: vec![1; 800],
            max_tokens: 90,
            ..RequestSpec::default()
        };
        clock.core.add(clock.now, spec).unwrap();
    }
    while clock.core.has_work() {
        clock.step();
    }
}

/// Tenant 9 always has something running, so that the long prompts of its other groups have no room beside it by its own limit.
/// They mustn't fill the list of urgent groups: tenant 2's cold adapter comes all the same.
#[test]
fn who_waits_for_its_own_limit_keeps_nobody_from_a_turn() {
    let mut clock = Clock::new(Config { pages: 96, ..config(6) });
    clock.core.set_tenant(9, TenantSpec { pages_max: 20, ..TenantSpec::default() }).unwrap();
    let [first, second, cold] = [1, 2, 3]
        .map(|tag| clock.core.register(AdapterSpec { tag, pages: 8, ..AdapterSpec::default() }).unwrap());
    let mut id = 0;
    let mut ask = |clock: &mut Clock, tenant, adapter, prompt, max_tokens, priority| {
        id += 1;
        let prompt = vec![1; prompt];
        let spec =
            RequestSpec { id, tenant, adapter, prompt, max_tokens, priority, ..RequestSpec::default() };
        clock.core.add(clock.now, spec).unwrap();
    };
    ask(&mut clock, 9, None, 4, 100, Priority::Normal);
    clock.step();
    ask(&mut clock, 9, None, 316, 4, Priority::High);
    ask(&mut clock, 9, None, 316, 4, Priority::Low);
    for step in 0..700 {
        if step % 6 == 0 {
            // hot adapters that somebody always asks for, so that the cold one has to wait for its turn
            ask(&mut clock, 0, Some(first), 4, 20, Priority::Normal);
            ask(&mut clock, 0, Some(second), 4, 20, Priority::Normal);
        }
        if step % 80 == 79 {
            ask(&mut clock, 9, None, 4, 100, Priority::Normal);
        }
        if step == 40 {
            ask(&mut clock, 2, Some(cold), 4, 4, Priority::Normal);
        }
        clock.step();
    }
    assert!(!clock.core.dump().contains("queue tenant 2 "), "{}", clock.core.dump());
}

/// Tenant 0's row may be preempted, tenant 1's not yet, and that one grows: room for it is left, so that who makes way does it for a
/// group that then comes.
#[test]
fn nobody_makes_way_for_nothing() {
    for prompt in (880..1000).step_by(8) {
        let mut clock = Clock::new(Config { preempt_after_tokens: 30, ..config(3) });
        let ask = |clock: &mut Clock, tenant: u32, prompt, max_tokens| {
            let (id, prompt) = (tenant.into(), vec![1; prompt]);
            let spec = RequestSpec { id, tenant, prompt, max_tokens, ..RequestSpec::default() };
            clock.core.add(clock.now, spec).unwrap();
        };
        ask(&mut clock, 0, 160, 200);
        for step in 0..80 {
            match step {
                25 => ask(&mut clock, 1, 16, 400),
                26 => ask(&mut clock, 2, prompt, 2),
                _ => {}
            }
            clock.step();
            let waits = clock.core.dump().contains("queue tenant 2 ");
            if step > 26 && waits {
                assert_eq!(clock.core.stats().counters.preemptions, 0, "{prompt}: {}", clock.core.dump());
            }
        }
    }
}

/// Several tenants of different weights, random sizes, whatever comes.
#[test]
fn nobody_waits_longer_than_the_bound() {
    let mut longest = 0;
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let mut clock = Clock::new(Config { prefix_cache: seed % 2 == 0, ..config(1 + random.below(6)) });
        for tenant in 0..3 {
            let spec = TenantSpec { weight: 50 + random.below(200), ..Default::default() };
            clock.core.set_tenant(tenant, spec).unwrap();
        }
        let adapters: Vec<AdapterId> = (1..=10)
            .map(|tag| {
                clock
                    .core
                    .register(AdapterSpec { tag, pages: 8, tenant: tag % 3, ..AdapterSpec::default() })
                    .unwrap()
            })
            .collect();
        let mut id = 0;
        for _ in 0..4000 {
            if random.chance(12) {
                let adapter = adapters[(random.below(10) * random.below(10) / 10) as usize];
                let (prompt, max_tokens) = (1 + random.below(500), 1 + random.below(100));
                id += 1;
                let spec = RequestSpec {
                    id,
                    tenant: random.below(3),
                    adapter: random.chance(85).then_some(adapter),
                    prompt: vec![1 + random.below(3); prompt as usize],
                    max_tokens,
                    ..RequestSpec::default()
                };
                let _ = clock.core.add(clock.now, spec);
            }
            if clock.core.has_work() {
                clock.step();
            } else {
                clock.now += 1000;
            }
        }
        longest = longest.max(clock.longest);
    }
    println!("the longest wait was {longest} ‰ of its bound");
    assert!(longest >= 100, "{longest} ‰");
}
