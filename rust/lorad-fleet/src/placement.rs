//! How much each replica carries, and where one more adapter would go.
//!
//! ```text
//!   load(r)  = Σ heat(a) ÷ homes(a)  over the adapters a that live on r
//!   part(r)  = Σ heat · weight(r) ÷ Σ weight
//!   bound(r) = part(r) · (1 + slack) + 2 · √part(r)
//! ```
//!
//! Heat is a count, so it's uncertain by about its root: the bound allows for twice that, and a few requests move nothing.
//! (Consistent hashing with bounded loads: Mirrokni, Thorup and Zadimoghaddam, 2018, here with rendezvous for the ring.)

use lorad_blocks::heat::Epoch;

use crate::adapter::Known;
use crate::rendezvous;
use crate::replica::{Replica, ReplicaIndex};
use crate::settings::Settings;

/// A thousand thousandths.
const MILLI: f64 = 1000.0;

/// What each replica carries at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Placement<'a> {
    replicas: &'a [Replica],
    settings: &'a Settings,
    epoch: Epoch,
    load: Vec<f64>,
    /// Of adapters that have homes for good: the tail is loaded on demand.
    kib: Vec<u64>,
    part: Vec<f64>,
    homes: usize,
}

impl<'a> Placement<'a> {
    pub fn of(adapters: &[Known], replicas: &'a [Replica], settings: &'a Settings, epoch: Epoch) -> Self {
        let mut placement = Self {
            replicas,
            settings,
            epoch,
            load: vec![0.0; replicas.len()],
            kib: vec![0; replicas.len()],
            part: vec![0.0; replicas.len()],
            homes: replicas.iter().filter(|replica| replica.is_home()).count(),
        };
        let weights: f64 = replicas.iter().filter(|one| one.is_home()).map(|one| f64::from(one.weight)).sum();
        let heat: f64 = adapters.iter().filter(|known| !known.gone).map(|known| known.heat.at(epoch)).sum();
        for (part, replica) in placement.part.iter_mut().zip(replicas).filter(|(_, one)| one.is_home()) {
            *part = heat * f64::from(replica.weight) / weights;
        }
        for known in adapters.iter().filter(|known| !known.gone) {
            placement.add(known, 1.0);
        }
        placement
    }

    /// Counts (`sign` 1) an adapter at its homes, or takes it away (−1).
    pub fn add(&mut self, known: &Known, sign: f64) {
        let load = known.heat.at(self.epoch) / known.homes.len().max(1) as f64;
        let kib = self.kept_kib(known);
        for home in &known.homes {
            self.load[home.number()] += sign * load;
            let held = &mut self.kib[home.number()];
            *held = if sign > 0.0 { held.saturating_add(kib) } else { held.saturating_sub(kib) };
        }
    }

    fn kept_kib(&self, known: &Known) -> u64 {
        if self.is_tail(known) {
            return 0;
        }
        known.adapter.kib
    }

    /// Is it asked for so little that no room is kept for it?
    pub fn is_tail(&self, known: &Known) -> bool {
        known.heat.at(self.epoch) < self.settings.tail_heat as f64
    }

    /// Replicas that adapters may live on.
    pub fn homes(&self) -> usize {
        self.homes
    }

    /// How much a replica carries of what it should, and what it holds of its room.
    pub fn load(&self, replica: ReplicaIndex) -> f64 {
        self.load[replica.number()]
    }

    /// What a replica should carry.
    pub fn part(&self, replica: ReplicaIndex) -> f64 {
        self.part[replica.number()]
    }

    /// What it may carry; `extra_milli`: thousandths of its part on top.
    pub fn bound(&self, replica: ReplicaIndex, extra_milli: u64) -> f64 {
        let part = self.part(replica);
        part * (MILLI + (self.settings.slack_milli + extra_milli) as f64) / MILLI + 2.0 * part.sqrt()
    }

    /// KiB that homes may fill of a replica.
    pub fn room(&self, replica: ReplicaIndex) -> u64 {
        let most = u128::from(self.replicas[replica.number()].adapter_kib_max);
        match most {
            0 => u64::MAX, // it hasn't said yet
            _ => (most * u128::from(self.settings.fill_milli) / 1000).min(u128::from(u64::MAX)) as u64,
        }
    }

    /// KiB that homes fill.
    pub fn filled(&self, replica: ReplicaIndex) -> u64 {
        self.kib[replica.number()]
    }

    /// Would an adapter's further home there keep the bounds?
    pub fn fits(&self, replica: ReplicaIndex, load: f64, kib: u64) -> bool {
        self.load(replica) + load <= self.bound(replica, 0)
            && self.filled(replica).saturating_add(kib) <= self.room(replica)
    }

    /// Homes that an adapter of so much heat should have.
    pub fn wanted(&self, heat: f64) -> usize {
        let part = self.part.iter().sum::<f64>() / self.homes.max(1) as f64;
        let most = part * self.settings.spread_milli as f64 / MILLI;
        if most <= 0.0 {
            return 1;
        }
        let homes = (heat / most).ceil().clamp(1.0, self.homes.max(1) as f64) as usize;
        // what would live on more than half of them lives everywhere
        if 2 * homes > self.homes {
            self.homes.max(1)
        } else {
            homes
        }
    }

    /// Homes that are certainly needed, and those beyond which none is: with twice the count's root less and more.
    pub fn wanted_range(&self, known: &Known) -> (usize, usize) {
        let heat = known.heat.at(self.epoch);
        let off = 2.0 * heat.sqrt();
        (self.wanted((heat - off).max(0.0)), self.wanted(heat + off))
    }

    /// Replicas that an adapter may live on, in the order of its rendezvous, without those it lives on.
    pub fn others(&self, known: &Known) -> Vec<ReplicaIndex> {
        let mut others: Vec<(u64, ReplicaIndex)> = (0u32..)
            .map(ReplicaIndex)
            .zip(self.replicas)
            .filter(|(index, replica)| replica.is_home() && !known.homes.contains(index))
            .map(|(index, replica)| (rendezvous::draw(known.adapter.key, replica.key, replica.weight), index))
            .collect();
        others.sort_unstable();
        others.into_iter().map(|(_, index)| index).collect()
    }

    /// Where an adapter's next home would be: the first of its rendezvous that keeps the bounds. None: nowhere.
    pub fn next_home(&self, known: &Known, load: f64) -> Option<ReplicaIndex> {
        let kib = self.kept_kib(known);
        self.others(known).into_iter().find(|&replica| self.fits(replica, load, kib))
    }

    /// As [`Self::next_home`], and if no replica keeps the bounds that which carries least of its part.
    pub fn any_home(&self, known: &Known, load: f64) -> Option<ReplicaIndex> {
        self.next_home(known, load).or_else(|| {
            let over = |replica: &ReplicaIndex| self.load(*replica) / self.bound(*replica, 0).max(1.0);
            self.others(known).into_iter().min_by(|one, two| over(one).total_cmp(&over(two)))
        })
    }
}
