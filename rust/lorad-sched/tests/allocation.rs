//! A step and its commit allocate nothing once the core is warm, and cost the same whoever waits.

// a test ends by panicking, helpers of tests too
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

#[allow(dead_code)] // this file needs its numbers only
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::Random;
use lorad_sched::{
    AdapterSpec, Config, Core, Eviction, Order, Policy, Priority, RequestSpec, Split, SAMPLE_FAILED,
};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator; the counter is a plain thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promised
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

#[test]
fn a_warm_step_allocates_nothing() {
    let config = Config {
        pages: 160,
        page_tokens: 4,
        rows_max: 16,
        tokens_max: 64,
        prefill_chunk_max: 16,
        slots_max: 3,
        adapters_step_max: 6,
        page_ins_max: 2,
        urgent_after_us: 8,
        preempt_after_tokens: 2,
        preempt_after_us: 0,
        quantum_us: 0,
        ..Config::default()
    };
    let mut core = Core::new(config).unwrap();
    let mut plan = vec![0; core.plan_layout().length()];
    let adapters: Vec<_> = (1..=20)
        .map(|tag| core.register(AdapterSpec { tag, pages: 1 + tag % 7, ..AdapterSpec::default() }).unwrap())
        .collect();
    for id in 0..600 {
        let adapter = (id % 7 != 0).then(|| adapters[(id * id % 20) as usize]);
        let (prompt, max_tokens) = (vec![1; 1 + (id * 7 % 60) as usize], 1 + (id * 5 % 40) as u32);
        core.add(0, RequestSpec { id, adapter, prompt, max_tokens, ..RequestSpec::default() }).unwrap();
    }
    let (mut events, mut sampled, mut loads) = (Vec::with_capacity(1024), Vec::new(), Vec::with_capacity(16));
    let (mut steps, mut inside) = (0u64, 0);
    while core.has_work() {
        steps += 1;
        let before = ALLOCATIONS.with(Cell::get);
        let number = core.step(steps, &mut plan).unwrap();
        let stepped = ALLOCATIONS.with(Cell::get);
        let Some(number) = number else { panic!("stuck:\n{}", core.dump()) };
        let view = core.plan_layout().view(&plan);
        sampled.clear();
        sampled.resize(view.samples(), 7);
        loads.extend(view.page_ins().map(|load| load.adapter));
        let before_commit = ALLOCATIONS.with(Cell::get);
        core.commit(steps, number, &sampled).unwrap();
        let committed = ALLOCATIONS.with(Cell::get);
        inside += stepped - before + committed - before_commit;
        while let Some(adapter) = loads.pop() {
            core.page_in_done(steps, adapter).unwrap();
        }
        core.drain_events(&mut events);
        events.clear();
    }
    let counters = core.stats().counters;
    assert!(counters.preemptions > 0 && counters.evictions > 20, "{counters:?}");
    assert_eq!(inside, 0, "allocations in {steps} steps");
}

/// Several tenants, priorities, deadlines, aborted requests, failed rows and lost plans, each policy: the paths that the
/// test above doesn't take. Tables and heaps reach their size while requests come; a step never makes them grow.
#[test]
fn a_step_of_many_tenants_allocates_nothing() {
    let mut counters = [0; 5];
    for seed in 0..48u64 {
        let mut random = Random::new(seed);
        let rows_max = 1 + random.below(12);
        let config = Config {
            pages: 48 + random.below(64),
            page_tokens: 1 + random.below(5),
            rows_max,
            rows_reserved: random.below(rows_max.div_ceil(2)),
            tokens_max: rows_max + random.below(40),
            prefill_chunk_max: 1 + random.below(16),
            slots_max: 1 + random.below(5),
            adapters_step_max: 1 + random.below(5),
            page_ins_max: 1 + random.below(3),
            page_in_first_us: [0, 5000][random.below(2) as usize],
            sequence_tokens_max: 64,
            urgent_after_us: random.below(40).into(),
            preempt_after_tokens: 1 + random.below(3),
            preempt_after_us: 0,
            quantum_us: random.below(6000).into(),
            prefix_cache: random.chance(80),
            policy: Policy {
                order: [Order::Fair, Order::Fair, Order::Arrival, Order::Affinity][random.below(4) as usize],
                eviction: [Eviction::Cost, Eviction::Lru][random.below(2) as usize],
                split: [Split::Unified, Split::Fixed { adapter_pages: 16 }][random.below(2) as usize],
            },
            ..Config::default()
        };
        let mut core = Core::new(config).unwrap();
        let mut plan = vec![0; core.plan_layout().length()];
        let mut adapters = Vec::new();
        for tag in 1..=12 {
            let spec = AdapterSpec { tag, pages: 1 + tag % 5, tenant: tag % 5, ..AdapterSpec::default() };
            adapters.push(core.register(spec).unwrap());
        }
        let (mut events, mut sampled, mut loads) = (Vec::new(), Vec::new(), Vec::new());
        let (mut now, mut inside, mut id) = (0, 0, 0);
        while id < 500 || core.has_work() {
            for _ in 0..if id < 500 { random.below(5) } else { 0 } {
                id += 1;
                let adapter = random.chance(80).then(|| adapters[random.below(12) as usize]);
                let spec = RequestSpec {
                    id,
                    tenant: random.below(5),
                    adapter,
                    prompt: (0..1 + random.below(30)).map(|at| (id as u32 >> (at % 4)) & 1).collect(),
                    max_tokens: 1 + random.below(20),
                    stop_tokens: vec![2],
                    priority: [Priority::Low, Priority::Normal, Priority::High][random.below(3) as usize],
                    // many end at the same moment
                    deadline: random.chance(40).then(|| (now / 400 + 1) * 400),
                    ..RequestSpec::default()
                };
                let _ = core.add(now, spec); // the draining adapter's are refused
            }
            if random.chance(10) {
                core.abort(now, 1 + u64::from(random.below(id as u32 + 1)));
            }
            if id == 250 {
                core.unregister(now, adapters[3]);
            }
            core.drain_events(&mut events);
            events.clear();
            now += 1 + u64::from(random.below(4));
            let before = ALLOCATIONS.with(Cell::get);
            let number = core.step(now, &mut plan).unwrap();
            inside += ALLOCATIONS.with(Cell::get) - before;
            if let Some(number) = number {
                let view = core.plan_layout().view(&plan);
                let token = |_| if random.chance(3) { SAMPLE_FAILED } else { random.below(3) as i32 };
                sampled.clear();
                sampled.extend((0..view.samples()).map(token));
                loads.extend(view.page_ins().map(|load| load.adapter));
                let lost = random.chance(3);
                let before = ALLOCATIONS.with(Cell::get);
                if lost {
                    core.commit_failed(now, number).unwrap();
                } else {
                    core.commit(now, number, &sampled).unwrap();
                }
                inside += ALLOCATIONS.with(Cell::get) - before;
            }
            assert_eq!(inside, 0, "seed {seed}, at {now}");
            while let Some(adapter) = loads.pop() {
                match random.below(20) {
                    0 => core.page_in_failed(now, adapter).unwrap(),
                    _ => core.page_in_done(now, adapter).unwrap(),
                }
            }
        }
        let all = core.stats().counters;
        let figures = [all.preemptions, all.evictions, all.urgent, all.prefix_evictions, all.failed];
        counters.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
    }
    assert!(counters.iter().all(|&figure| figure > 500), "{counters:?}");
}

#[test]
fn as_many_groups_may_be_urgent_as_page_ins_run() {
    let config = Config { page_ins_max: 200, slots_max: 200, urgent_after_us: 0, ..Config::default() };
    let mut core = Core::new(config).unwrap();
    let mut plan = vec![0; core.plan_layout().length()];
    for tag in 1..=200 {
        let adapter = core.register(AdapterSpec { tag, pages: 1, ..AdapterSpec::default() }).unwrap();
        let spec = RequestSpec {
            id: tag.into(),
            adapter: Some(adapter),
            prompt: vec![1],
            max_tokens: 1,
            ..RequestSpec::default()
        };
        core.add(0, spec).unwrap();
    }
    let before = ALLOCATIONS.with(Cell::get);
    core.step(1, &mut plan).unwrap();
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
    assert!(core.stats().counters.urgent >= 200);
}
