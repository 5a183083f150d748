//! A step and its commit allocate nothing once the core is warm, and cost the same whoever waits.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lorad_sched::{AdapterSpec, Config, Core, RequestSpec};

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
