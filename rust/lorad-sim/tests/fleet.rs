//! The chapter's exercise, and what can be said of it without running it.
#![allow(clippy::unwrap_used)]

use lorad_sim::fleet::{run, FleetReport, FleetScenario, Routing};

const ASSIGNED: Routing = Routing::Assigned { everywhere: 5 };
const COST: Routing = cost(1);
const fn cost(away_loads: u64) -> Routing {
    Routing::Cost { rebalance_us: 5_000_000, moves_max: 8, away_loads }
}

const MIB: u64 = 1 << 10;

fn chapter(routing: Routing, seed: u64) -> FleetReport {
    run(&FleetScenario::chapter(routing, seed)).unwrap()
}

/// Σ over adapters of replicas × (1 − (1 − p)^(requests ÷ replicas)): the pairs that so many requests touch when they go round.
fn touched(adapters: usize, replicas: f64, requests: f64) -> f64 {
    let sum: f64 = (1..=adapters).map(|rank| 1.0 / rank as f64).sum();
    let part = |rank: usize| 1.0 / rank as f64 / sum;
    (1..=adapters).map(|rank| replicas * (1.0 - (1.0 - part(rank)).powf(requests / replicas))).sum()
}

fn mean(seeds: std::ops::Range<u64>, of: impl Fn(u64) -> u64) -> f64 {
    let count = (seeds.end - seeds.start) as f64;
    seeds.map(|seed| of(seed) as f64).sum::<f64>() / count
}

#[test]
fn going_round_loads_every_pair_that_is_touched_and_no_more() {
    let expected = touched(50, 8.0, 1000.0);
    assert!((270.0..290.0).contains(&expected), "{expected}: 1,000 requests don't touch all 400 pairs");
    let found = mean(0..40, |seed| chapter(Routing::RoundRobin, seed).cold_loads);
    assert!((found - expected).abs() < 3.0, "{found} of {expected}");
}

#[test]
fn all_pairs_are_loaded_if_it_goes_on_for_long_enough() {
    let endless = FleetScenario { requests: 60_000, ..FleetScenario::chapter(Routing::RoundRobin, 1) };
    let report = run(&endless).unwrap();
    assert_eq!(report.cold_loads, 8 * 50);
    assert_eq!(report.kib_most(), 50 * 160 * MIB, "the chapter's 8 GB: 7.8 GiB");
    let assigned = run(&FleetScenario { routing: ASSIGNED, ..endless }).unwrap();
    assert_eq!((assigned.preloads, assigned.cold_loads), (40, 45), "85, where the chapter counts 88");
    assert_eq!(assigned.kib_max.iter().sum::<u64>(), 85 * 160 * MIB);
}

#[test]
fn a_load_alone_is_no_reason_to_be_late() {
    for routing in [Routing::RoundRobin, ASSIGNED, COST] {
        // nobody waits for anybody
        let calm = FleetScenario { gap_us: 1_000_000_000, ..FleetScenario::chapter(routing, 3) };
        let report = run(&calm).unwrap();
        let (cold, warm) = (450_000, 400_000);
        assert_eq!(report.late, 0, "{}", routing);
        assert_eq!(report.ttft_us.iter().filter(|&&ttft| ttft == cold).count() as u64, report.cold_loads);
        assert!(report.ttft_us.iter().all(|ttft| [cold, warm].contains(ttft)));
    }
}

#[test]
fn every_request_is_served_once() {
    for routing in [Routing::RoundRobin, Routing::LeastQueue, ASSIGNED, COST] {
        for seed in 0..5 {
            let report = chapter(routing, seed);
            assert_eq!(report.served.iter().sum::<u64>(), 1000, "{}", routing);
            assert_eq!(report.ttft_us.len(), 1000);
            assert!(report.ttft_us.iter().all(|&ttft| ttft >= 400_000));
            assert_eq!(report, chapter(routing, seed), "the same seed is the same run");
        }
    }
}

/// Loads against queues: what a load away from home is taken to cost decides, and both ends beat what the chapter has.
#[test]
fn the_least_cost_loads_less_and_waits_less() {
    let cold = |routing| mean(0..40, |seed| chapter(routing, seed).cold_loads);
    let p99 = |routing| mean(0..40, |seed| chapter(routing, seed).ttft_us(99));
    let round = (cold(Routing::RoundRobin), p99(Routing::RoundRobin));
    let assigned = (cold(ASSIGNED) + 40.0, p99(ASSIGNED));
    let quick = (cold(cost(2)), p99(cost(2)));
    assert!(1.6 * quick.0 < round.0 && quick.1 < round.1, "{quick:?} {round:?}");
    let frugal = (cold(cost(12)), p99(cost(12)));
    assert!(3.0 * frugal.0 < round.0, "{frugal:?} {round:?}");
    assert!(frugal.0 < assigned.0 + 3.0 && 1.5 * frugal.1 < assigned.1, "{frugal:?} {assigned:?}");
}

#[test]
fn room_for_few_makes_loads_come_again() {
    let of = |room| {
        let scenario = FleetScenario { room, ..FleetScenario::chapter(Routing::RoundRobin, 2) };
        run(&scenario).unwrap()
    };
    let (small, all) = (of(10), of(0));
    assert!(small.cold_loads > all.cold_loads);
    assert_eq!(small.kib_most(), 10 * 160 * MIB);
}

#[test]
fn no_replicas_is_refused() {
    let none = FleetScenario { replicas: 0, ..FleetScenario::chapter(Routing::RoundRobin, 1) };
    assert_eq!(run(&none).unwrap_err().code(), "no_replica");
}

#[test]
fn scenarios_are_read_and_refused_by_key_and_value() {
    let read = FleetScenario::parse("replicas=4 room=9 # few\nrouting=cost:3 seed=7").unwrap();
    let cost = Routing::Cost { rebalance_us: 5_000_000, moves_max: 8, away_loads: 3 };
    assert_eq!(read, FleetScenario { replicas: 4, room: 9, ..FleetScenario::chapter(cost, 7) });
    for routing in ["round-robin", "least-queue", "assigned:7", "cost:2:1000:3"] {
        assert_eq!(Routing::parse(routing).unwrap().to_string(), routing);
    }
    for (text, message) in [
        ("replicas=0", "line 1: replicas=0: 1 to 10000"),
        ("\nspeed=1", "line 2: unknown key speed"),
        ("routing=cost:1:2:3:4", "routing=cost:1:2:3:4: round-robin, least-queue"),
        ("routing=round-robin:1", "routing=round-robin:1: round-robin"),
        ("gap_us=1.5", "gap_us=1.5: 1 to"),
        ("oops", "unknown word oops"),
    ] {
        let refused = FleetScenario::parse(text).unwrap_err().to_string();
        assert!(refused.contains(message), "{refused}");
    }
}
