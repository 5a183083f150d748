//! Seeded numbers, and fleets to begin with.
#![allow(dead_code, clippy::unwrap_used)] // each test file uses some of it, and tests may panic

use lorad_fleet::{Adapter, AdapterIndex, Fleet, Inventory, ReplicaIndex, Request, Settings};

/// A stream of numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit.max(1)
    }

    /// A rank from 0, as Zipf's law with exponent 1 has it.
    pub fn zipf(&mut self, count: usize) -> usize {
        let sum: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
        let mut left = (self.bits() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        for rank in 0..count {
            left -= 1.0 / (rank + 1) as f64;
            if left <= 0.0 {
                return rank;
            }
        }
        count - 1
    }
}

/// A replica with room for everything and nothing to do.
pub fn idle() -> Inventory {
    Inventory { number: 1, token_ns: 60_000, adapter_kib_max: 1 << 40, ..Inventory::default() }
}

/// So many replicas, heard of at 0, and adapters of 160 MiB.
pub fn fleet(
    settings: Settings,
    replicas: u64,
    adapters: u64,
) -> (Fleet, Vec<ReplicaIndex>, Vec<AdapterIndex>) {
    let mut fleet = Fleet::new(settings);
    let replicas: Vec<ReplicaIndex> = (0..replicas).map(|key| fleet.add_replica(key, 1)).collect();
    for &replica in &replicas {
        fleet.publish(replica, 0, &idle()).unwrap();
    }
    fleet.add_adapters((0..adapters).map(|key| Adapter { key, kib: 160 << 10 }));
    let adapters = (0..adapters as usize).map(|number| fleet.adapter(number).unwrap()).collect();
    (fleet, replicas, adapters)
}

/// A request for an adapter without a prompt to speak of.
pub fn asks(adapter: AdapterIndex) -> Request<'static> {
    Request { adapter: Some(adapter), tokens: 1, blocks: &[] }
}
