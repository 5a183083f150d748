//! A routing decision, 64 replicas × 5,000 adapters, requests by Zipf's law, prompts of 1,000 tokens with a shared beginning.

#![allow(missing_docs)] // what `criterion_group` makes

use criterion::{criterion_group, criterion_main, Criterion};
use lorad_fleet::{Adapter, Fleet, Inventory, Policy, Request, Settings, Tier};

const REPLICAS: u64 = 64;
const ADAPTERS: usize = 5000;

fn fleet(policy: Policy) -> Fleet {
    let mut fleet = Fleet::new(Settings { policy, silent_us: u64::MAX, ..Settings::default() });
    fleet.add_adapters((0..ADAPTERS as u64).map(|key| Adapter { key, kib: 160 << 10 }));
    for key in 0..REPLICAS {
        let replica = fleet.add_replica(key, 1);
        let tiers = (0..ADAPTERS)
            .filter(|number| (*number as u64 * 7 + key).is_multiple_of(16))
            .filter_map(|number| Some((fleet.adapter(number)?, Tier::Hot)))
            .collect();
        let inventory = Inventory {
            number: 1,
            token_ns: 60_000,
            adapter_kib_max: 1 << 40,
            tiers,
            ..Inventory::default()
        };
        let _ = fleet.publish(replica, 0, &inventory);
    }
    fleet
}

/// Adapters as Zipf's law with exponent 1 has them, one after the other in a fixed order.
fn asked() -> Vec<usize> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..4096).map(|_| ((ADAPTERS as f64).powf(next()) as usize).min(ADAPTERS - 1)).collect()
}

fn route(criterion: &mut Criterion) {
    let asked = asked();
    for policy in [Policy::RoundRobin, Policy::Affinity, Policy::Cost] {
        let mut fleet = fleet(policy);
        for (index, &number) in asked.iter().cycle().take(100_000).enumerate() {
            let request = Request { adapter: fleet.adapter(number), tokens: 1000, blocks: &[] };
            let _ = fleet.route(&request, index as u64);
        }
        fleet.rebalance(100_000, usize::MAX);
        let (mut now, mut next, mut blocks) = (100_000u64, 0usize, [0u64; 15]);
        criterion.bench_function(&format!("route/{}", policy.name()), |bencher| {
            bencher.iter(|| {
                now += 100;
                next = (next + 1) % asked.len();
                let number = asked[next];
                for (index, block) in blocks.iter_mut().enumerate() {
                    // a system prompt of 8 blocks for each adapter, then the user's own
                    *block = (number * 100 + index) as u64 + if index < 8 { 0 } else { now << 20 };
                }
                let request = Request { adapter: fleet.adapter(number), tokens: 1000, blocks: &blocks };
                fleet.route(&request, now).map(|choice| choice.replica.number())
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).without_plots();
    targets = route
}
criterion_main!(benches);
