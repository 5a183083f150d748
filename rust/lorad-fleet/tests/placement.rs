//! Where adapters live: properties over random fleets.

#![allow(clippy::unwrap_used)]

mod common;

use common::{asks, fleet, idle, Random};
use lorad_fleet::{AdapterIndex, Fleet, Inventory, Reason, ReplicaIndex, Settings};

/// Requests by Zipf's law, adapters in an order of their own, and a rebalancing after.
fn settled(seed: u64, replicas: u64, adapters: u64) -> (Fleet, Vec<ReplicaIndex>, Vec<AdapterIndex>) {
    let (mut fleet, homes, adapters) = fleet(Settings::default(), replicas, adapters);
    ask(&mut fleet, &mut Random(seed), &adapters, 20_000);
    fleet.rebalance(0, usize::MAX);
    (fleet, homes, adapters)
}

fn ask(fleet: &mut Fleet, random: &mut Random, adapters: &[AdapterIndex], count: usize) {
    for _ in 0..count {
        fleet.route(&asks(adapters[random.zipf(adapters.len())]), 0).unwrap();
    }
}

/// What each replica carries, and what each should.
fn loads(fleet: &Fleet, replicas: &[ReplicaIndex], adapters: &[AdapterIndex]) -> (Vec<f64>, f64) {
    let mut loads = vec![0.0; replicas.len()];
    let mut all = 0.0;
    for &adapter in adapters {
        let (heat, homes) = (fleet.heat(adapter, 0).unwrap(), fleet.homes(adapter).unwrap());
        all += heat;
        for home in homes {
            loads[replicas.iter().position(|replica| replica == home).unwrap()] += heat / homes.len() as f64;
        }
    }
    (loads, all / replicas.len() as f64)
}

#[test]
fn no_replica_carries_more_than_its_bound_and_every_adapter_lives_somewhere() {
    for seed in 0..20 {
        let (replicas, adapters) = (2 + seed % 15, 20 + 37 * seed);
        let (fleet, homes, adapters) = settled(seed, replicas, adapters);
        let (loads, part) = loads(&fleet, &homes, &adapters);
        let bound = part * 1.35 + 2.0 * part.sqrt();
        assert!(loads.iter().all(|&load| load <= bound), "seed {seed}: {loads:?}, bound {bound}");
        for &adapter in &adapters {
            let mut at = fleet.homes(adapter).unwrap().to_vec();
            let count = at.len();
            at.sort_unstable();
            at.dedup();
            assert!((1..=homes.len()).contains(&count) && at.len() == count, "seed {seed}");
        }
    }
}

#[test]
fn the_popular_live_everywhere_and_the_rest_in_one_place() {
    let (fleet, replicas, adapters) = settled(1, 8, 50);
    let counts: Vec<usize> = adapters.iter().map(|&one| fleet.homes(one).unwrap().len()).collect();
    assert_eq!(counts[0], replicas.len(), "{counts:?}");
    assert!(counts[..5].iter().all(|&count| count > 1), "{counts:?}");
    assert!(counts[20..].iter().all(|&count| count == 1), "{counts:?}");
}

#[test]
fn a_settled_fleet_moves_nothing() {
    for seed in 0..10 {
        let (mut fleet, _, adapters) = settled(seed, 3 + seed, 200);
        let mut random = Random(seed + 100);
        let mut moves = 0;
        for _ in 0..10 {
            ask(&mut fleet, &mut random, &adapters, 2000);
            moves += fleet.rebalance(0, usize::MAX).len();
        }
        assert!(moves <= 20, "seed {seed}: {moves} moves of 200 adapters in ten rebalancings");
    }
}

#[test]
fn a_replica_that_leaves_moves_its_own_and_few_others() {
    for seed in 0..10 {
        let (mut fleet, replicas, adapters) = settled(seed, 8, 400);
        let before: Vec<Vec<ReplicaIndex>> =
            adapters.iter().map(|&one| fleet.homes(one).unwrap().to_vec()).collect();
        let gone = replicas[seed as usize % 8];
        fleet.remove_replica(gone, 0).unwrap();
        let alone = before.iter().filter(|homes| **homes == [gone]).count();
        for (&adapter, before) in adapters.iter().zip(&before) {
            let now = fleet.homes(adapter).unwrap();
            assert!(!now.is_empty() && !now.contains(&gone));
            let kept = before.iter().filter(|home| **home != gone).all(|home| now.contains(home));
            assert!(kept, "seed {seed}: only what lived there alone moves");
        }
        let more = fleet.rebalance(0, usize::MAX);
        assert!(more.len() <= 400 / 8, "seed {seed}: {} moves beside {alone}", more.len());
    }
}

#[test]
fn a_replica_that_joins_gets_its_share_by_few_moves() {
    for seed in 0..10 {
        let (mut fleet, mut replicas, adapters) = settled(seed, 7, 400);
        let joined = fleet.add_replica(1000 + seed, 1);
        replicas.push(joined);
        fleet.publish(joined, 0, &idle()).unwrap();
        let moves = fleet.rebalance(0, usize::MAX);
        let (loads, part) = loads(&fleet, &replicas, &adapters);
        assert!(loads[7] > 0.5 * part, "seed {seed}: {} of {part}", loads[7]);
        assert!(moves.len() <= 400 / 8 * 2, "seed {seed}: {} moves", moves.len());
        let elsewhere =
            moves.iter().filter(|one| one.from.is_some() && one.to.is_some_and(|to| to != joined));
        assert!(elsewhere.count() <= 20, "seed {seed}");
    }
}

#[test]
fn moves_keep_to_their_budget() {
    let (mut fleet, _, adapters) = settled(3, 8, 400);
    let mut random = Random(9);
    for _ in 0..30_000 {
        // the other end is popular now
        let adapter = adapters[adapters.len() - 1 - random.zipf(adapters.len())];
        fleet.route(&asks(adapter), 0).unwrap();
    }
    let mut rounds = 0;
    loop {
        let moves = fleet.rebalance(0, 2);
        assert!(moves.len() <= 2);
        if moves.is_empty() {
            break;
        }
        rounds += 1;
        assert!(rounds < 100, "it doesn't end");
    }
    assert!(rounds > 3, "{rounds}");
}

#[test]
fn homes_keep_within_the_room() {
    let (mut fleet, replicas, adapters) = fleet(Settings::default(), 4, 40);
    let mut random = Random(5);
    for round in 0..40 {
        for &adapter in &adapters {
            fleet.route(&asks(adapter), 0).unwrap(); // all alike
        }
        if round == 20 {
            ask(&mut fleet, &mut random, &adapters, 10);
        }
    }
    fleet.rebalance(0, usize::MAX);
    // one says that it has room for four of them: 75% of 5.5
    let small = Inventory { number: 2, adapter_kib_max: (160 << 10) * 11 / 2, ..idle() };
    fleet.publish(replicas[0], 0, &small).unwrap();
    let moves = fleet.rebalance(0, usize::MAX);
    let lives = |replica| {
        let at = |adapter: &&AdapterIndex| fleet.homes(**adapter).unwrap().contains(&replica);
        adapters.iter().filter(at).count()
    };
    assert!(lives(replicas[0]) <= 4, "{}", lives(replicas[0]));
    assert!(moves.iter().any(|one| one.reason == Reason::Full));
    assert!(moves.iter().all(|one| one.to != Some(replicas[0])));
}

#[test]
fn where_adapters_live_follows_from_their_keys_alone() {
    let (one, _, adapters) = settled(4, 6, 100);
    let (two, ..) = settled(4, 6, 100);
    for &adapter in &adapters {
        assert_eq!(one.homes(adapter), two.homes(adapter));
    }
}
