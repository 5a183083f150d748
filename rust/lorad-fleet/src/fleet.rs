//! The fleet: its replicas and adapters, and where a request goes.

use std::num::NonZeroU64;

use lorad_blocks::heat::{Epoch, Heat};

use crate::adapter::{Adapter, AdapterIndex, Known};
use crate::cost::{Candidate, Cost};
use crate::error::FleetError;
use crate::inventory::Inventory;
use crate::prefix::PrefixIndex;
use crate::replica::{Replica, ReplicaIndex, Sent};
use crate::settings::Settings;
use crate::tiers::Tiers;

/// A request to be routed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its adapter, `None` for the base.
    pub adapter: Option<AdapterIndex>,
    /// Tokens of its prompt.
    pub tokens: u32,
    /// Hashes of its prompt's whole blocks of [`Settings::block_tokens`] tokens, each of the adapter's generation and all tokens
    /// up to its end. May be empty: nothing is known of what replicas have cached.
    pub blocks: &'a [u64],
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The request's number, from 1: the replica says in its inventory which one it has received last.
    pub number: u64,
    /// Where it goes.
    pub replica: ReplicaIndex,
    /// What it costs there.
    pub cost: Cost,
    /// Where it would have gone else.
    pub runner_up: Option<Candidate>,
}

/// A candidate with what it's ordered by: the least comes first.
type Ranked = ((u64, u64), Candidate);

/// Replicas, adapters, and what is known of both.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub(crate) settings: Settings,
    pub(crate) adapters: Vec<Known>,
    pub(crate) replicas: Vec<Replica>,
    tiers: Tiers,
    prefixes: PrefixIndex,
    /// Blocks of the request being routed that each replica has.
    matched: Vec<u32>,
    /// Whether its adapter lives there.
    is_home: Vec<bool>,
    number: u64,
    /// The replica whose turn it is.
    turn: usize,
}

impl Fleet {
    /// A fleet without replicas or adapters.
    pub fn new(settings: Settings) -> Self {
        Self {
            prefixes: PrefixIndex::new(settings.blocks_max),
            settings,
            adapters: Vec::new(),
            replicas: Vec::new(),
            tiers: Tiers::default(),
            matched: Vec::new(),
            is_home: Vec::new(),
            number: 0,
            turn: 0,
        }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn epoch(&self, now: u64) -> Epoch {
        Epoch::of(now, NonZeroU64::new(self.settings.half_life_us).unwrap_or(NonZeroU64::MIN))
    }

    // replicas

    /// Registers a replica by a hash of its name, so large beside the others (at least 1). It gets requests once it has
    /// published.
    pub fn add_replica(&mut self, key: u64, weight: u32) -> ReplicaIndex {
        let index = ReplicaIndex(self.replicas.len() as u32);
        self.replicas.push(Replica::new(index, key, weight));
        self.matched.push(0);
        self.is_home.push(false);
        self.house(0);
        index
    }

    /// The replica with so many registered before it.
    pub fn replica(&self, number: usize) -> Option<ReplicaIndex> {
        self.replicas.get(number).filter(|found| !found.removed).map(|_| ReplicaIndex(number as u32))
    }

    /// Takes what a replica published. Fails on an unknown replica, and on changes to an inventory that isn't the last one known.
    pub fn publish(
        &mut self,
        replica: ReplicaIndex,
        now: u64,
        inventory: &Inventory,
    ) -> Result<(), FleetError> {
        self.find(replica)?;
        if let Some(&(adapter, _)) =
            inventory.tiers.iter().find(|(adapter, _)| adapter.number() >= self.adapters.len())
        {
            return Err(FleetError::UnknownAdapter { adapter });
        }
        self.replicas[replica.number()].publish(now, inventory, &mut self.tiers)?;
        if inventory.draining {
            self.leave(replica, now);
        }
        Ok(())
    }

    /// A request to a replica has failed: it gets no other before it publishes again.
    pub fn fail(&mut self, replica: ReplicaIndex, now: u64) -> Result<(), FleetError> {
        let epoch = self.epoch(now);
        self.find(replica)?;
        self.replicas[replica.number()].fail(epoch);
        Ok(())
    }

    /// Forgets a replica. What lived there alone gets a home elsewhere at once.
    pub fn remove_replica(&mut self, replica: ReplicaIndex, now: u64) -> Result<(), FleetError> {
        self.find(replica)?;
        self.replicas[replica.number()].removed = true;
        self.prefixes.forget(replica);
        self.leave(replica, now);
        Ok(())
    }

    fn leave(&mut self, replica: ReplicaIndex, now: u64) {
        for known in &mut self.adapters {
            known.homes.retain(|&home| home != replica);
        }
        self.house(now);
    }

    fn find(&self, replica: ReplicaIndex) -> Result<&Replica, FleetError> {
        let found = self.replicas.get(replica.number()).filter(|found| !found.removed);
        found.ok_or(FleetError::UnknownReplica { replica })
    }

    /// May a request be sent to a replica?
    pub fn is_live(&self, replica: ReplicaIndex, now: u64) -> bool {
        self.find(replica).is_ok_and(|found| found.is_live(now, self.settings.silent_us))
    }

    // adapters

    /// Registers an adapter; it has a home from now on, if there is any replica.
    pub fn add_adapter(&mut self, adapter: Adapter) -> AdapterIndex {
        let index = AdapterIndex(self.adapters.len() as u32);
        self.adapters.push(Known { adapter, heat: Heat::COLD, homes: Vec::new(), gone: false });
        self.house(0);
        index
    }

    /// Registers many adapters.
    pub fn add_adapters(&mut self, adapters: impl IntoIterator<Item = Adapter>) {
        let known = |adapter| Known { adapter, heat: Heat::COLD, homes: Vec::new(), gone: false };
        self.adapters.extend(adapters.into_iter().map(known));
        self.house(0);
    }

    /// The adapter with so many registered before it.
    pub fn adapter(&self, number: usize) -> Option<AdapterIndex> {
        self.adapters.get(number).filter(|known| !known.gone).map(|_| AdapterIndex(number as u32))
    }

    /// Forgets an adapter: requests can't name it any more.
    pub fn remove_adapter(&mut self, adapter: AdapterIndex) -> Result<(), FleetError> {
        self.known(adapter)?;
        let known = &mut self.adapters[adapter.number()];
        known.gone = true;
        known.homes.clear();
        Ok(())
    }

    fn known(&self, adapter: AdapterIndex) -> Result<&Known, FleetError> {
        let known = self.adapters.get(adapter.number()).filter(|known| !known.gone);
        known.ok_or(FleetError::UnknownAdapter { adapter })
    }

    /// Where an adapter lives.
    pub fn homes(&self, adapter: AdapterIndex) -> Result<&[ReplicaIndex], FleetError> {
        self.known(adapter).map(|known| known.homes.as_slice())
    }

    /// Has an adapter live on these replicas, whatever it's asked for, until the next rebalancing.
    pub fn set_homes(&mut self, adapter: AdapterIndex, homes: &[ReplicaIndex]) -> Result<(), FleetError> {
        self.known(adapter)?;
        for &home in homes {
            self.find(home)?;
        }
        self.adapters[adapter.number()].homes = homes.to_vec();
        Ok(())
    }

    /// How much an adapter was asked for: requests, each counting half for every half-life since.
    pub fn heat(&self, adapter: AdapterIndex, now: u64) -> Result<f64, FleetError> {
        self.known(adapter).map(|known| known.heat.at(self.epoch(now)))
    }

    // routing

    /// Chooses a replica, and counts the request as sent there. Fails if no replica can be sent to, and on an unknown adapter.
    pub fn route(&mut self, request: &Request<'_>, now: u64) -> Result<Choice, FleetError> {
        let epoch = self.epoch(now);
        self.look_at(request)?;
        let (policy, count, turn) = (self.settings.policy, self.replicas.len(), self.turn);
        let (mut best, mut second): (Option<Ranked>, Option<Ranked>) = (None, None);
        for index in 0..count {
            let Some(candidate) = self.candidate(index, request, now, epoch) else { continue };
            let steps = if index >= turn { index - turn } else { index + count - turn };
            let rank = policy.rank(&candidate, steps as u64);
            if best.is_none_or(|(least, _)| rank < least) {
                second = best.replace((rank, candidate));
            } else if second.is_none_or(|(least, _)| rank < least) {
                second = Some((rank, candidate));
            }
        }
        let Some((_, Candidate { replica, cost, .. })) = best else {
            return Err(FleetError::NoReplica { registered: count });
        };
        self.number += 1;
        self.turn = (replica.number() + 1) % count;
        if let Some(adapter) = request.adapter {
            self.adapters[adapter.number()].heat.touch(epoch);
        }
        let load_us = self.load_us(replica, request.adapter, now).1;
        let sent = Sent { number: self.number, work_us: cost.prefix, load_us, adapter: request.adapter };
        self.replicas[replica.number()].send(now, epoch, sent, &mut self.tiers);
        self.prefixes.note(request.blocks, replica);
        let runner_up = second.map(|(_, candidate)| candidate);
        Ok(Choice { number: self.number, replica, cost, runner_up })
    }

    /// What a request would cost on each replica that it can be sent to. Sends nothing.
    pub fn candidates(&mut self, request: &Request<'_>, now: u64) -> Result<Vec<Candidate>, FleetError> {
        let epoch = self.epoch(now);
        self.look_at(request)?;
        Ok((0..self.replicas.len()).filter_map(|index| self.candidate(index, request, now, epoch)).collect())
    }

    /// Finds the homes and cached blocks of a request.
    fn look_at(&mut self, request: &Request<'_>) -> Result<(), FleetError> {
        self.is_home.fill(request.adapter.is_none());
        if let Some(adapter) = request.adapter {
            self.known(adapter)?;
            for home in &self.adapters[adapter.number()].homes {
                self.is_home[home.number()] = true;
            }
        }
        self.prefixes.look_up(request.blocks, &mut self.matched);
        Ok(())
    }

    fn candidate(&self, index: usize, request: &Request<'_>, now: u64, epoch: Epoch) -> Option<Candidate> {
        let replica = self.replicas.get(index).filter(|one| one.is_live(now, self.settings.silent_us))?;
        let cached = self.matched[index].saturating_mul(self.settings.block_tokens);
        // the last token is always computed
        let missing = request.tokens.saturating_sub(cached).max(request.tokens.min(1));
        let (load, own) = self.load_us(ReplicaIndex(index as u32), request.adapter, now);
        let is_home = self.is_home[index];
        let cost = Cost {
            queue: replica.queue_us(now),
            prefix: replica.token_ns.saturating_mul(missing.into()) / 1000,
            load,
            risk: replica.risk_us(now, epoch, self.settings.retry_us),
            displaced: if is_home { 0 } else { own.saturating_mul(self.settings.away_loads) },
        };
        Some(Candidate { replica: ReplicaIndex(index as u32), is_home, cost })
    }

    /// As [`Replica::load_us`], 0 for the base.
    fn load_us(&self, replica: ReplicaIndex, adapter: Option<AdapterIndex>, now: u64) -> (u64, u64) {
        let Some(adapter) = adapter else { return (0, 0) };
        let kib = self.adapters[adapter.number()].adapter.kib;
        self.replicas[replica.number()].load_us(self.tiers.get(adapter, replica), kib, now)
    }
}
