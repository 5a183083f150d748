//! Where every replica has every adapter: one adapter's tiers lie side by side, as a routing decision reads them.

use crate::adapter::AdapterIndex;
use crate::inventory::Tier;
use crate::replica::ReplicaIndex;

/// [adapters, replicas].
#[derive(Clone, Debug, Default)]
pub(crate) struct Tiers {
    table: Vec<Tier>,
    /// Replicas that a line has room for.
    wide: usize,
}

impl Tiers {
    /// An adapter's tiers, by replica; replicas beyond the end have none.
    pub fn of(&self, adapter: AdapterIndex) -> &[Tier] {
        let begin = adapter.number() * self.wide;
        self.table.get(begin..begin + self.wide).unwrap_or(&[])
    }

    /// One of them.
    pub fn get(&self, adapter: AdapterIndex, replica: ReplicaIndex) -> Tier {
        self.of(adapter).get(replica.number()).copied().unwrap_or_default()
    }

    /// Says where a replica has an adapter.
    pub fn set(&mut self, adapter: AdapterIndex, replica: ReplicaIndex, tier: Tier) {
        if replica.number() >= self.wide {
            self.widen(replica.number() + 1);
        }
        let place = adapter.number() * self.wide + replica.number();
        if place >= self.table.len() {
            self.table.resize((adapter.number() + 1) * self.wide, Tier::Absent);
        }
        self.table[place] = tier;
    }

    /// A replica has nothing.
    pub fn clear(&mut self, replica: ReplicaIndex) {
        if replica.number() < self.wide {
            self.table
                .iter_mut()
                .skip(replica.number())
                .step_by(self.wide)
                .for_each(|tier| *tier = Tier::Absent);
        }
    }

    fn widen(&mut self, least: usize) {
        let wide = least.next_power_of_two();
        let mut table = Vec::with_capacity(self.table.len() / self.wide.max(1) * wide);
        for line in self.table.chunks(self.wide.max(1)) {
            table.extend_from_slice(line);
            table.resize(table.len() + wide - line.len(), Tier::Absent);
        }
        (self.table, self.wide) = (table, wide);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_both_ways_and_keeps_what_it_holds() {
        let mut tiers = Tiers::default();
        let (adapter, replica) = (AdapterIndex, ReplicaIndex);
        for index in 0..20 {
            tiers.set(adapter(index * 3), replica(index), Tier::Hot);
        }
        for index in 0..20 {
            for other in 0..20 {
                let expected = if index == other { Tier::Hot } else { Tier::Absent };
                assert_eq!(tiers.get(adapter(index * 3), replica(other)), expected);
            }
            assert_eq!(tiers.get(adapter(index * 3 + 1), replica(index)), Tier::Absent);
        }
        tiers.clear(replica(4));
        assert_eq!(tiers.get(adapter(12), replica(4)), Tier::Absent);
        assert_eq!(tiers.get(adapter(15), replica(5)), Tier::Hot);
        assert_eq!(tiers.get(adapter(900), replica(900)), Tier::Absent);
    }
}
