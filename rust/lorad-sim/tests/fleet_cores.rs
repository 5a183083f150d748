//! Fleets of real cores: nothing is lost, the same seed is the same run, and the router helps where loads take long.
#![allow(clippy::unwrap_used)]

use lorad_sim::fleet::{run_cores, CoresScenario, FleetReport};

/// Four replicas whose pages hold some 12 of 40 adapters beside their KV; a load takes 50 ms, a prompt's token 1 ms.
const FOUR: &str = "model=none audit=1 replicas=4 adapters=40 adapter_pages=8 zipf_milli=1000 requests=600 arrivals=poisson:60000\n\
                    prompt=uniform:20:60 answer=uniform:4:12 pages=130 rows_max=8 slots_max=32 tokens_max=64\n\
                    prefill_chunk_max=64 adapters_step_max=8 sequence_tokens_max=128 page_ins_max=1\n\
                    step_ns=5000000 token_ns=1000000 page_in_ns=50000000 page_in_page_ns=0 late_us=300000";

fn four(more: &str) -> FleetReport {
    run_cores(&CoresScenario::parse(&format!("{FOUR}\n{more}")).unwrap()).unwrap()
}

#[test]
fn every_request_is_answered_once() {
    for routing in ["round-robin", "least-queue", "assigned:4", "cost:1", "cost:4"] {
        for seed in 1..4 {
            let more = format!("routing={routing} seed={seed}");
            let report = four(&more);
            assert_eq!(report.served.iter().sum::<u64>(), 600, "{more}");
            assert_eq!(
                (report.answered.len(), report.cut, report.refused, report.retried),
                (600, 0, 0, 0),
                "{more}"
            );
            assert!(
                report.kib_max.iter().all(|&kib| (8..=130).contains(&kib)),
                "pages are KiB without a model: {more}"
            );
            assert_eq!(four(&more), report, "the same seed is the same run");
        }
    }
}

#[test]
fn the_least_cost_loads_less_than_going_round_and_is_no_later() {
    let sums = |routing: &str| {
        let reports: Vec<FleetReport> =
            (1..6).map(|seed| four(&format!("routing={routing} seed={seed}"))).collect();
        let cold = reports.iter().map(|report| report.cold_loads).sum::<u64>();
        (cold, reports.iter().map(|report| report.ttft_us(99)).sum::<u64>())
    };
    let (round, cost) = (sums("round-robin"), sums("cost:0"));
    assert!(cost.0 * 4 < round.0, "{cost:?} {round:?}");
    assert!(cost.1 < round.1, "{cost:?} {round:?}");
}

#[test]
fn a_replica_that_dies_loses_only_what_it_had_begun() {
    for routing in ["round-robin", "cost:2"] {
        for seed in 1..6 {
            let more = format!("routing={routing} seed={seed} down=1:9000000:20000000,2:15000000:16000000");
            let report = four(&more);
            assert_eq!(report.answered.len() as u64 + report.cut, 600, "{more}");
            assert!(report.cut <= 2 * 8, "no more than the rows of two replicas: {more}");
            assert!(report.retried > 0 && report.refused == 0, "{more}");
            assert_eq!(four(&more), report, "the same seed is the same run");
        }
    }
}

#[test]
fn a_replica_that_joins_draws_its_part() {
    let report = four("routing=cost:2:1000000 seed=3 down=3:0:12000000");
    assert_eq!((report.answered.len(), report.cut, report.refused), (600, 0, 0));
    let (joined, all) = (report.served[3], report.served.iter().sum::<u64>());
    assert!(joined * 10 > all, "{:?}", report.served);
    assert!(report.moves_us.iter().any(|&at_us| at_us >= 12_000_000), "homes move to it");
}

#[test]
fn old_inventories_cost_time_and_lose_nothing() {
    let report = four("routing=cost:2 seed=2 publish_us=1000000 delay_us=900000");
    assert_eq!((report.answered.len(), report.cut, report.refused), (600, 0, 0));
}

#[test]
fn mistakes_are_named() {
    for (text, what) in [
        ("replicas=0", "line 1: replicas=0: 1 to 1000"),
        ("\ndown=1:5:5", "line 2: down=1:5:5: replica:from_us:until_us"),
        ("replicas=2 down=2:1:5", "line 1: down=2:1:5: a replica from 0 to 1"),
        ("\npags=3", "line 2: unknown key pags"),
        ("routing=fast", "line 1: routing=fast: round-robin, least-queue"),
    ] {
        let error = CoresScenario::parse(text).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|found| found.starts_with(what)), "{error:?}");
    }
}

#[test]
fn a_fleet_of_gpus_is_what_isnt_named() {
    let run = |routing: &str| {
        run_cores(&CoresScenario::parse(&format!("routing={routing} requests=1000")).unwrap()).unwrap()
    };
    let (round, cost) = (run("round-robin"), run("cost"));
    assert_eq!((round.answered.len(), cost.answered.len()), (1000, 1000));
    assert!(cost.cold_loads < round.cold_loads, "{} {}", cost.cold_loads, round.cold_loads);
    assert!(cost.kib_max.len() == 8 && cost.kib_most() < 3700 * 2048);
}
