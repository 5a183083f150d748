//! A replica, as the router sees it: what it published, and what was sent to it since.

use std::collections::VecDeque;

use lorad_blocks::heat::{Epoch, Heat};

use crate::adapter::AdapterIndex;
use crate::error::FleetError;
use crate::inventory::{Inventory, LoadTimes, Tier};
use crate::tiers::Tiers;

/// The fleet's number of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaIndex(pub(crate) u32);

impl ReplicaIndex {
    /// As a number, from 0 in the order of [`crate::Fleet::add_replica`].
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// A millionth: of time for drift.
const MILLION: u64 = 1_000_000;
/// Requests that a replica may leave unseen before the oldest count as seen: what it was sent needn't be kept for ever.
const UNSEEN_MAX: usize = 4096;

/// A request that the replica hasn't said to have received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// As [`crate::Choice::number`].
    pub number: u64,
    /// Its part of the queue.
    pub work_us: u64,
    /// The load that it needs, not the wait for others; 0: none, or one that was under way.
    pub load_us: u64,
    pub adapter: Option<AdapterIndex>,
}

/// What is known of a replica.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    index: ReplicaIndex,
    /// A hash of its name.
    pub key: u64,
    /// Its size beside others', at least 1.
    pub weight: u32,
    pub removed: bool,
    pub draining: bool,
    pub token_ns: u64,
    pub adapter_kib_max: u64,
    loads: LoadTimes,
    number: u64,
    heard: Option<u64>,
    /// It has failed since it was heard of.
    failed: bool,
    /// When a request that comes now would be begun.
    free_at: u64,
    /// When a load that begins now would be begun.
    loads_free_at: u64,
    sent: VecDeque<Sent>,
    failures: Heat,
    requests: Heat,
    /// How wrong the estimated queue gets with its age: millionths of it.
    drift: u64,
}

impl Replica {
    pub fn new(index: ReplicaIndex, key: u64, weight: u32) -> Self {
        Self {
            index,
            key,
            weight: weight.max(1),
            removed: false,
            draining: false,
            token_ns: 0,
            adapter_kib_max: 0,
            loads: LoadTimes::default(),
            number: 0,
            heard: None,
            failed: false,
            free_at: 0,
            loads_free_at: 0,
            sent: VecDeque::new(),
            failures: Heat::COLD,
            requests: Heat::COLD,
            drift: 0,
        }
    }

    /// May a request be sent to it?
    pub fn is_live(&self, now: u64, silent_us: u64) -> bool {
        let heard_lately = self.heard.is_some_and(|heard| now.saturating_sub(heard) <= silent_us);
        heard_lately && !self.failed && !self.removed && !self.draining
    }

    /// May adapters live on it? Also while it's silent: it may come back, and moves cost loads.
    pub fn is_home(&self) -> bool {
        !self.removed && !self.draining
    }

    /// How long a request that comes now waits, µs.
    pub fn queue_us(&self, now: u64) -> u64 {
        self.free_at.saturating_sub(now)
    }

    /// How long it takes until an adapter of so many KiB is in pages, µs, and how much of it is its own load. One that is being
    /// loaded is somewhere among those that others wait for: half of that, and half of its own.
    pub fn load_us(&self, tier: Tier, kib: u64, now: u64) -> (u64, u64) {
        let (own, wait) = (self.loads.of(tier, kib), self.loads_free_at.saturating_sub(now));
        match tier {
            Tier::Hot => (0, 0),
            Tier::Loading => ((wait / 2).max(own), 0),
            Tier::Warm | Tier::Cold | Tier::Absent => (wait.saturating_add(own), own),
        }
    }

    /// What may be wrong with what is known of it, µs: the queue's drift since it was heard of, and the part of its requests
    /// that failed lately.
    pub fn risk_us(&self, now: u64, epoch: Epoch, retry_us: u64) -> u64 {
        let age = now.saturating_sub(self.heard.unwrap_or(now));
        let drift = u128::from(age) * u128::from(self.drift) / u128::from(MILLION);
        let drift = u64::try_from(drift).unwrap_or(u64::MAX);
        if self.failures == Heat::COLD {
            return drift; // as nearly always
        }
        let part = (self.failures.at(epoch) / (self.requests.at(epoch) + 1.0)).min(1.0);
        drift.saturating_add((retry_us as f64 * part) as u64)
    }

    /// Takes what it published.
    pub fn publish(&mut self, now: u64, inventory: &Inventory, tiers: &mut Tiers) -> Result<(), FleetError> {
        match inventory.base {
            None => tiers.clear(self.index),
            Some(base) if base == self.number => {}
            Some(base) => return Err(FleetError::InventoryGap { known: self.number, base }),
        }
        while self.sent.front().is_some_and(|sent| sent.number <= inventory.seen) {
            self.sent.pop_front();
        }
        let unseen = |of: fn(&Sent) -> u64| self.sent.iter().map(of).fold(0, u64::saturating_add);
        let free_at = now.saturating_add(inventory.queue_us).saturating_add(unseen(|sent| sent.work_us));
        let loads_wait_us = inventory.loads_wait_us.saturating_add(unseen(|sent| sent.load_us));
        self.loads_free_at = now.saturating_add(loads_wait_us);
        if let Some(age) = self.heard.map(|heard| now.saturating_sub(heard)).filter(|&age| age > 0) {
            let wrong = u128::from(self.queue_us(now).abs_diff(free_at - now));
            let found = (wrong * u128::from(MILLION) / u128::from(age)).min(u128::from(MILLION)) as u64;
            self.drift = (3 * self.drift + found) / 4;
        }
        self.free_at = free_at;
        self.number = inventory.number;
        self.token_ns = inventory.token_ns;
        self.adapter_kib_max = inventory.adapter_kib_max;
        self.draining = inventory.draining;
        self.loads = inventory.loads;
        self.heard = Some(now);
        self.failed = false;
        for &(adapter, tier) in &inventory.tiers {
            tiers.set(adapter, self.index, tier);
        }
        for adapter in self.sent.iter().filter_map(|sent| sent.adapter) {
            self.expect(adapter, tiers);
        }
        Ok(())
    }

    /// A request was sent to it.
    pub fn send(&mut self, now: u64, epoch: Epoch, sent: Sent, tiers: &mut Tiers) {
        self.free_at = self.free_at.max(now).saturating_add(sent.work_us);
        self.loads_free_at = self.loads_free_at.max(now).saturating_add(sent.load_us);
        self.requests.touch(epoch);
        if let Some(adapter) = sent.adapter {
            self.expect(adapter, tiers);
        }
        if self.sent.len() == UNSEEN_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(sent);
    }

    /// A request to it has failed: it gets no other before it publishes.
    pub fn fail(&mut self, epoch: Epoch) {
        self.failures.touch(epoch);
        self.failed = true;
    }

    /// An adapter that a request was sent for is being loaded, whatever was published.
    fn expect(&self, adapter: AdapterIndex, tiers: &mut Tiers) {
        if tiers.get(adapter, self.index) != Tier::Hot {
            tiers.set(adapter, self.index, Tier::Loading);
        }
    }
}
