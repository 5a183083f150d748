//! The fuzz target's seeds, and some random bytes, through the same function; `make fuzz` looks for new ones.
// a finding is a panic
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

#[path = "../fuzz/operations.rs"]
mod operations;

use lorad_sched::Counters;

#[test]
fn seeds_hold() {
    let mut names: Vec<_> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    let runs: Vec<Counters> =
        names.iter().filter_map(|name| operations::run(&std::fs::read(name).unwrap())).collect();
    assert!(runs.len() >= 20, "{} of {} seeds have limits that can be", runs.len(), names.len());
    // they reach what is hard to reach
    let reached = |count: fn(&Counters) -> u64| runs.iter().filter(|&run| count(run) > 0).count();
    assert!(reached(|run| run.preemptions) >= 3 && reached(|run| run.evictions) >= 3, "{runs:?}");
    assert!(reached(|run| run.page_ins_failed) >= 3 && reached(|run| run.failed) >= 3, "{runs:?}");
}

#[test]
fn random_bytes_hold() {
    let mut state = 9u64;
    for length in 0..400 {
        let bytes: Vec<u8> = (0..length * 3)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        operations::run(&bytes);
    }
}
