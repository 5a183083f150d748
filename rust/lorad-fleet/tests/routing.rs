//! Where requests go.

#![allow(clippy::unwrap_used)]

mod common;

use common::{asks, fleet, idle};
use lorad_fleet::{Cost, FleetError, Inventory, LoadTime, LoadTimes, Policy, Request, Settings, Tier};

const MS: u64 = 1000;

/// Load times of 50 ms from the host's memory and 800 ms from elsewhere, whatever the size.
fn loads() -> LoadTimes {
    let of = |ms: u64| LoadTime { us: ms * MS, ns_kib: 0 };
    LoadTimes { warm: of(50), cold: of(200), absent: of(800) }
}

/// The chapter's example: R0 has the adapter and a queue of 200 ms, R1 nothing to do and 50 ms of load, R2 a queue of 130 ms and
/// the adapter.
#[test]
fn the_adapter_term_changes_the_winner() {
    let (mut fleet, replicas, adapters) = fleet(Settings::default(), 3, 1);
    let adapter = adapters[0];
    fleet.set_homes(adapter, &replicas).unwrap();
    for (replica, queue_us, tier) in [(0, 200 * MS, Tier::Hot), (1, 0, Tier::Warm), (2, 130 * MS, Tier::Hot)]
    {
        let tiers = vec![(adapter, tier)];
        let inventory = Inventory { number: 2, queue_us, tiers, loads: loads(), token_ns: 0, ..idle() };
        fleet.publish(replicas[replica], 0, &inventory).unwrap();
    }
    let costs: Vec<u64> =
        fleet.candidates(&asks(adapter), 0).unwrap().iter().map(|one| one.cost.total() / MS).collect();
    assert_eq!(costs, [200, 50, 130]);
    let choice = fleet.route(&asks(adapter), 0).unwrap();
    assert_eq!(choice.replica, replicas[1]);
    assert_eq!(choice.cost, Cost { load: 50 * MS, ..Cost::default() });
    let second = choice.runner_up.unwrap();
    assert_eq!((second.replica, second.cost.queue), (replicas[2], 130 * MS));
}

#[test]
fn an_adapter_spills_over_when_its_homes_wait_longer_than_two_loads() {
    for (queue_ms, spills) in [(0, false), (99, false), (101, true)] {
        let (mut fleet, replicas, adapters) = fleet(Settings::default(), 2, 1);
        let adapter = adapters[0];
        fleet.set_homes(adapter, &replicas[..1]).unwrap();
        for (replica, queue_us, tier) in [(0, queue_ms * MS, Tier::Hot), (1, 0, Tier::Warm)] {
            let tiers = vec![(adapter, tier)];
            let inventory = Inventory { number: 2, queue_us, tiers, loads: loads(), ..idle() };
            fleet.publish(replicas[replica], 0, &inventory).unwrap();
        }
        let choice = fleet.route(&asks(adapter), 0).unwrap();
        assert_eq!(choice.replica == replicas[1], spills, "{queue_ms} ms");
    }
}

#[test]
fn what_was_sent_counts_until_the_replica_has_seen_it() {
    let (mut fleet, replicas, _) = fleet(Settings::default(), 2, 0);
    let prompt = Request { tokens: 1000, ..Request::default() }; // 60 ms
    let queues = |fleet: &mut lorad_fleet::Fleet, now| -> Vec<u64> {
        fleet.candidates(&prompt, now).unwrap().iter().map(|one| one.cost.queue / MS).collect()
    };
    let first = fleet.route(&prompt, 0).unwrap();
    let second = fleet.route(&prompt, 0).unwrap();
    assert_ne!(first.replica, second.replica);
    assert_eq!(queues(&mut fleet, 0), [60, 60]);
    assert_eq!(queues(&mut fleet, 20 * MS), [40, 40], "time passes");
    // an inventory made before it came, then one with it
    let unseen = Inventory { number: 2, seen: 0, queue_us: 0, ..idle() };
    fleet.publish(first.replica, 20 * MS, &unseen).unwrap();
    let seen = Inventory { number: 2, seen: second.number, queue_us: 35 * MS, ..idle() };
    fleet.publish(second.replica, 20 * MS, &seen).unwrap();
    assert_eq!(queues(&mut fleet, 20 * MS), [60, 35]);
    assert_eq!(replicas.len(), 2);
}

#[test]
fn requests_for_an_adapter_that_is_being_loaded_follow_it() {
    let (mut fleet, _, adapters) = fleet(Settings::default(), 8, 1);
    let first = fleet.route(&asks(adapters[0]), 0).unwrap();
    assert!(first.cost.load > 0);
    for now in 1..5 {
        let next = fleet.route(&asks(adapters[0]), now).unwrap();
        assert_eq!(next.replica, first.replica);
        assert_eq!(
            (next.cost.load, next.cost.displaced),
            ((first.cost.load - now) / 2, 0),
            "half of what is left"
        );
    }
}

#[test]
fn a_load_waits_for_those_before_it() {
    let (mut fleet, replicas, adapters) = fleet(Settings::default(), 2, 3);
    let of = |loads_wait_us| Inventory { number: 2, loads: loads(), loads_wait_us, ..idle() };
    fleet.publish(replicas[0], 0, &of(120 * MS)).unwrap();
    fleet.publish(replicas[1], 0, &of(0)).unwrap();
    let candidates = fleet.candidates(&asks(adapters[0]), 20 * MS).unwrap();
    let load = candidates.iter().map(|one| one.cost.load).collect::<Vec<_>>();
    assert_eq!(load[0], load[1] + 100 * MS, "20 of 120 ms have passed");
    // what was sent since counts until the replica says that it has seen it
    for _ in 0..2 {
        fleet.route(&asks(adapters[0]), 20 * MS).unwrap();
    }
    let later = fleet.candidates(&asks(adapters[1]), 20 * MS).unwrap();
    assert_eq!(later[1].cost.load, 2 * load[1], "one load is under way, the second request follows it");
}

#[test]
fn a_conversation_comes_back_to_its_prefix() {
    let (mut fleet, _, adapters) = fleet(Settings::default(), 4, 1);
    let blocks: Vec<u64> = (100..110).collect();
    let turn =
        |count: usize, tokens| Request { adapter: Some(adapters[0]), tokens, blocks: &blocks[..count] };
    let first = fleet.route(&turn(4, 300), 0).unwrap();
    assert_eq!(first.cost.prefix, 300 * 60);
    let now = 1_000_000;
    let second = fleet.route(&turn(6, 400), now).unwrap();
    assert_eq!((second.replica, second.cost.prefix), (first.replica, (400 - 4 * 64) * 60));
    // all of it cached: the last token is computed all the same
    let again = fleet.route(&turn(6, 384), 2 * now).unwrap();
    assert_eq!(again.cost.prefix, 60);
}

#[test]
fn policies_choose_as_they_say() {
    let route = |policy, count: u64| {
        let (mut fleet, replicas, adapters) = fleet(Settings { policy, ..Settings::default() }, 4, 3);
        let adapter = adapters[0];
        fleet.set_homes(adapter, &replicas[2..3]).unwrap();
        let long = Inventory { number: 2, queue_us: 700 * MS, ..idle() };
        fleet.publish(replicas[2], 0, &long).unwrap();
        (0..count).map(|_| fleet.route(&asks(adapter), 0).unwrap().replica.number()).collect::<Vec<_>>()
    };
    assert_eq!(route(Policy::RoundRobin, 6), [0, 1, 2, 3, 0, 1]);
    assert_eq!(route(Policy::LeastQueue, 3), [0, 1, 3]);
    assert_eq!(route(Policy::Affinity, 3), [2, 2, 2]);
    assert_eq!(route(Policy::Cost, 1), [2], "a load from elsewhere takes 800 ms, and counts twice");
    for policy in Policy::ALL {
        assert_eq!(Policy::named(policy.name()), Some(policy));
    }
}

#[test]
fn nothing_goes_to_the_silent_the_failed_or_those_that_drain() {
    let settings = Settings { policy: Policy::RoundRobin, ..Settings::default() };
    let (mut fleet, replicas, _) = fleet(settings.clone(), 3, 0);
    let base = Request::default();
    fleet.fail(replicas[0], 0).unwrap();
    fleet.publish(replicas[1], 0, &Inventory { number: 2, draining: true, ..idle() }).unwrap();
    for _ in 0..4 {
        assert_eq!(fleet.route(&base, settings.silent_us).unwrap().replica, replicas[2]);
    }
    assert_eq!(fleet.route(&base, settings.silent_us + 1), Err(FleetError::NoReplica { registered: 3 }));
    // heard of again
    fleet.publish(replicas[0], settings.silent_us + 1, &Inventory { number: 2, ..idle() }).unwrap();
    let choice = fleet.route(&base, settings.silent_us + 1).unwrap();
    assert_eq!(choice.replica, replicas[0]);
    assert_eq!(choice.cost.risk, settings.retry_us, "a failure and nothing else");
}

#[test]
fn refusals_change_nothing() {
    let (mut fleet, replicas, adapters) = fleet(Settings::default(), 2, 2);
    let gap = Inventory { number: 9, base: Some(7), ..idle() };
    let refused = fleet.publish(replicas[0], 0, &gap).unwrap_err();
    assert_eq!(refused, FleetError::InventoryGap { known: 1, base: 7 });
    assert_eq!(refused.code(), "inventory_gap");
    assert!(refused.to_string().contains("inventory 7"));
    let next = Inventory { number: 2, base: Some(1), tiers: vec![(adapters[1], Tier::Hot)], ..idle() };
    fleet.publish(replicas[0], 0, &next).unwrap();

    fleet.remove_adapter(adapters[0]).unwrap();
    let gone = FleetError::UnknownAdapter { adapter: adapters[0] };
    assert_eq!(fleet.route(&asks(adapters[0]), 0), Err(gone));
    assert_eq!(fleet.remove_adapter(adapters[0]), Err(gone));
    fleet.remove_replica(replicas[0], 0).unwrap();
    let unknown = FleetError::UnknownReplica { replica: replicas[0] };
    assert_eq!(fleet.publish(replicas[0], 0, &idle()), Err(unknown));
    assert_eq!(fleet.set_homes(adapters[1], &replicas), Err(unknown));
    assert_eq!(fleet.fail(replicas[0], 0), Err(unknown));
    assert_eq!(fleet.homes(adapters[1]).unwrap(), [replicas[1]]);
}

/// A replica whose queue isn't what its last inventory led to expect is trusted less, the longer ago that was.
#[test]
fn stale_news_of_a_replica_that_changes_fast_is_a_risk() {
    let (mut fleet, replicas, _) = fleet(Settings::default(), 2, 0);
    for second in 1..20u64 {
        for (replica, queue_us) in [(0, 0), (1, if second % 2 == 0 { 0 } else { 500 * MS })] {
            let inventory = Inventory { number: 1 + second, queue_us, ..idle() };
            fleet.publish(replicas[replica], second * MS * 1000, &inventory).unwrap();
        }
    }
    let risk = |fleet: &mut lorad_fleet::Fleet, age| -> Vec<u64> {
        let at = 19_000 * MS + age;
        fleet.candidates(&Request::default(), at).unwrap().iter().map(|one| one.cost.risk).collect()
    };
    assert_eq!(risk(&mut fleet, 0), [0, 0]);
    let (soon, late) = (risk(&mut fleet, 100 * MS), risk(&mut fleet, 1000 * MS));
    assert_eq!((soon[0], late[0]), (0, 0), "its queue was as expected");
    assert!(soon[1] > 10 * MS && late[1].abs_diff(10 * soon[1]) < 10, "{soon:?} {late:?}");
}
