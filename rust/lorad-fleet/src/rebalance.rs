//! Where adapters should live: homes are given, added, moved and taken away.

use lorad_blocks::heat::Epoch;

use crate::adapter::{AdapterIndex, Known};
use crate::fleet::Fleet;
use crate::placement::Placement;
use crate::replica::ReplicaIndex;

/// Why an adapter moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has no home: it's new, or its last one has left.
    Homeless,
    /// One home would carry too much of it.
    Popular,
    /// Fewer homes carry it.
    Unpopular,
    /// Its home carries more than its bound.
    Overloaded,
    /// Its home has less room than its adapters take.
    Full,
    /// A replica that comes first for it carries less than its part: it has joined, or others left.
    Drawn,
}

impl Reason {
    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Reason::Homeless => "homeless",
            Reason::Popular => "popular",
            Reason::Unpopular => "unpopular",
            Reason::Overloaded => "overloaded",
            Reason::Full => "full",
            Reason::Drawn => "drawn",
        }
    }
}

/// A home given (`to`), taken away (`from`), or moved (both). The host has the adapter loaded there before, and given up
/// after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which adapter.
    pub adapter: AdapterIndex,
    /// The home that it loses.
    pub from: Option<ReplicaIndex>,
    /// The home that it gets.
    pub to: Option<ReplicaIndex>,
    /// Why.
    pub reason: Reason,
}

impl Fleet {
    /// Moves adapters to where they should live, at most so many, and says which. Adapters without a home get one however
    /// many they are. Nothing moves while every replica is within its bound and every adapter has as many homes as it needs.
    pub fn rebalance(&mut self, now: u64, moves_max: usize) -> Vec<Move> {
        let epoch = self.epoch(now);
        let mut adapters = std::mem::take(&mut self.adapters);
        let mut balance = Balance {
            placement: Placement::of(&adapters, &self.replicas, &self.settings, epoch),
            order: hottest_first(&adapters, epoch),
            adapters: &mut adapters,
            epoch,
            moves: Vec::new(),
            moves_max,
        };
        balance.give_homes();
        balance.moves_max = balance.moves.len().saturating_add(moves_max);
        balance.change_counts();
        balance.relieve(self.settings.hysteresis_milli);
        balance.make_room();
        balance.draw_back();
        let moves = balance.moves;
        self.adapters = adapters;
        moves
    }

    /// Gives homes to the adapters that have none.
    pub(crate) fn house(&mut self, now: u64) {
        self.rebalance(now, 0);
    }
}

fn hottest_first(adapters: &[Known], epoch: Epoch) -> Vec<u32> {
    let mut order: Vec<u32> =
        (0..adapters.len() as u32).filter(|&index| !adapters[index as usize].gone).collect();
    let heat = |index: &u32| adapters[*index as usize].heat.at(epoch);
    order.sort_by(|one, two| heat(two).total_cmp(&heat(one)).then(one.cmp(two)));
    order
}

/// A rebalancing under way.
struct Balance<'a> {
    placement: Placement<'a>,
    adapters: &'a mut Vec<Known>,
    /// Adapters, the hottest first.
    order: Vec<u32>,
    epoch: Epoch,
    moves: Vec<Move>,
    moves_max: usize,
}

impl Balance<'_> {
    fn is_over(&self) -> bool {
        self.moves.len() >= self.moves_max
    }

    /// Heat that each home of an adapter carries if it has so many.
    fn load(&self, index: u32, homes: usize) -> f64 {
        self.adapters[index as usize].heat.at(self.epoch) / homes.max(1) as f64
    }

    fn apply(&mut self, index: u32, from: Option<ReplicaIndex>, to: Option<ReplicaIndex>, reason: Reason) {
        let known = &mut self.adapters[index as usize];
        self.placement.add(known, -1.0);
        known.homes.retain(|&home| Some(home) != from);
        known.homes.extend(to);
        self.placement.add(known, 1.0);
        self.moves.push(Move { adapter: AdapterIndex(index), from, to, reason });
    }

    fn give_homes(&mut self) {
        for position in 0..self.order.len() {
            let index = self.order[position];
            if !self.adapters[index as usize].homes.is_empty() {
                continue;
            }
            if let Some(home) = self.placement.any_home(&self.adapters[index as usize], self.load(index, 1)) {
                self.apply(index, None, Some(home), Reason::Homeless);
            }
        }
    }

    /// More homes where they're certainly needed, fewer where they certainly aren't.
    fn change_counts(&mut self) {
        for position in 0..self.order.len() {
            let index = self.order[position];
            let (needed, most) = self.placement.wanted_range(&self.adapters[index as usize]);
            while !self.is_over() && self.adapters[index as usize].homes.len() < needed {
                let known = &self.adapters[index as usize];
                let load = self.load(index, known.homes.len() + 1);
                // also where it's too much: others make way below
                let Some(home) = self.placement.any_home(known, load) else { break };
                self.apply(index, None, Some(home), Reason::Popular);
            }
            while !self.is_over() && self.adapters[index as usize].homes.len() > most {
                let Some(last) = self.last_home(index) else { break };
                self.apply(index, Some(last), None, Reason::Unpopular);
            }
        }
    }

    /// The home that comes last in the adapter's rendezvous.
    fn last_home(&self, index: u32) -> Option<ReplicaIndex> {
        let known = &self.adapters[index as usize];
        let all = self.placement.others(&Known { homes: Vec::new(), ..known.clone() });
        known.homes.iter().copied().max_by_key(|home| all.iter().position(|other| other == home))
    }

    /// Takes adapters from replicas that carry more than their bound: the hottest that another may take, so that few move. What
    /// moves makes room for another to move: again until nothing does.
    fn relieve(&mut self, hysteresis_milli: u64) {
        loop {
            let before = self.moves.len();
            for position in 0..self.order.len() {
                let index = self.order[position];
                for home in self.adapters[index as usize].homes.clone() {
                    let bound = self.placement.bound(home, hysteresis_milli);
                    if self.is_over() || self.placement.load(home) <= bound {
                        continue;
                    }
                    let known = &self.adapters[index as usize];
                    let load = self.load(index, known.homes.len());
                    if let Some(to) = self.placement.next_home(known, load) {
                        self.apply(index, Some(home), Some(to), Reason::Overloaded);
                    }
                }
            }
            // each move lessens what is carried beyond the bounds, so this ends
            if self.moves.len() == before {
                return;
            }
        }
    }

    /// Takes adapters from replicas whose room they overfill, the coldest first.
    fn make_room(&mut self) {
        for position in (0..self.order.len()).rev() {
            let index = self.order[position];
            for home in self.adapters[index as usize].homes.clone() {
                let known = &self.adapters[index as usize];
                let full = self.placement.filled(home) > self.placement.room(home);
                if self.is_over() || !full || self.placement.is_tail(known) {
                    continue;
                }
                let load = self.load(index, known.homes.len());
                if let Some(to) = self.placement.next_home(known, load) {
                    self.apply(index, Some(home), Some(to), Reason::Full);
                }
            }
        }
    }

    /// Lets adapters go to the replica that comes first for them while it carries less than its part and theirs carries more
    /// than it would: so a replica that joins gets its share.
    fn draw_back(&mut self) {
        for position in 0..self.order.len() {
            let index = self.order[position];
            let known = &self.adapters[index as usize];
            if self.is_over() {
                return;
            }
            if known.homes.len() >= self.placement.homes() {
                continue;
            }
            let all = self.placement.others(&Known { homes: Vec::new(), ..known.clone() });
            let Some(&first) = all.first().filter(|first| !known.homes.contains(first)) else { continue };
            let load = self.load(index, known.homes.len());
            let lacks = self.placement.load(first) + load <= self.placement.part(first);
            let Some(last) = self.last_home(index) else { continue };
            let fits = self.placement.fits(first, load, known.adapter.kib);
            if lacks && fits && self.placement.load(last) > self.placement.load(first) + load {
                self.apply(index, Some(last), Some(first), Reason::Drawn);
            }
        }
    }
}
