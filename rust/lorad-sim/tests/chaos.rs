//! The long check, short: worlds in which everything collides, checked after each step.
// a test ends by panicking, helpers of tests too
#![allow(clippy::panic, clippy::unwrap_used, clippy::print_stdout)]

use lorad_sim::{chaos, simulate, Report};

fn chaos_run(seed: u64, steps: u64) -> Report {
    let scenario = chaos::scenario(seed, steps);
    simulate(&scenario).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

#[test]
fn ten_worlds_hold() {
    // LORAD_SEEDS=n runs that many instead
    let seeds = std::env::var("LORAD_SEEDS").map_or(10, |text| text.parse().unwrap());
    let (mut steps, mut page_ins, mut page_ins_failed, mut evictions, mut preemptions) = (0, 0, 0, 0, 0);
    let (mut finished, mut aborted, mut failed, mut refused) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let Report { numbers, all, .. } = chaos_run(seed, 2000);
        assert_eq!(all.requests, all.finished + all.aborted + all.failed + all.refused, "seed {seed}");
        steps += numbers.steps;
        page_ins += numbers.page_ins;
        page_ins_failed += numbers.page_ins_failed;
        evictions += numbers.evictions;
        preemptions += numbers.preemptions;
        finished += all.finished;
        aborted += all.aborted;
        failed += all.failed;
        refused += all.refused;
    }
    println!("steps {steps} page-ins {page_ins}, failed {page_ins_failed}, evictions {evictions}");
    println!(
        "preemptions {preemptions} finished {finished} aborted {aborted} failed {failed} refused {refused}"
    );
    // all of it happens, and often
    assert!(steps >= 1800 * seeds && page_ins >= 100 * seeds && evictions >= 50 * seeds);
    assert!(page_ins_failed >= 5 * seeds && preemptions >= 30 * seeds);
    assert!(
        finished >= 200 * seeds && aborted >= 20 * seeds && failed >= 20 * seeds && refused >= 50 * seeds
    );
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 20..24 {
        let (one, two) = (chaos_run(seed, 1000), chaos_run(seed, 1000));
        assert_eq!(one.numbers.fingerprint, two.numbers.fingerprint, "seed {seed}");
        assert_eq!(one, two, "seed {seed}");
        assert_ne!(one.numbers.fingerprint, chaos_run(seed + 1, 1000).numbers.fingerprint);
    }
}
