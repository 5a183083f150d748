//! Adapters, as the fleet knows them.

use lorad_blocks::heat::Heat;

use crate::replica::ReplicaIndex;

/// The fleet's number of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterIndex(pub(crate) u32);

impl AdapterIndex {
    /// As a number, from 0 in the order of [`crate::Fleet::add_adapter`].
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// An adapter, as the host gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// A hash of its name and generation: where it lives follows from it, on every router alike.
    pub key: u64,
    /// Bytes of its pages, in KiB.
    pub kib: u64,
}

/// What the fleet keeps of an adapter.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub adapter: Adapter,
    /// How much it's asked for.
    pub heat: Heat,
    /// Where it lives, in the order of its rendezvous; empty: nowhere yet, or on demand.
    pub homes: Vec<ReplicaIndex>,
    /// The host has removed it.
    pub gone: bool,
}
