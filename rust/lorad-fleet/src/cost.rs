//! What a request would wait for on a replica.

use crate::replica::ReplicaIndex;

/// The terms of a replica's cost, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Until its prompt is begun: what the replica published, what it was sent since, less the time that has passed.
    pub queue: u64,
    /// Tokens of the prompt that the replica hasn't cached × its time for one.
    pub prefix: u64,
    /// Until its adapter is in pages.
    pub load: u64,
    /// What isn't known: the estimate's drift since the replica was heard of, and the time that its failures lose.
    pub risk: u64,
    /// A load away from the adapter's homes takes room from adapters that live there: they are loaded again
    /// ([`crate::Settings::away_loads`]).
    pub displaced: u64,
}

impl Cost {
    /// The sum.
    pub fn total(&self) -> u64 {
        [self.queue, self.prefix, self.load, self.risk, self.displaced]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// A replica that a request could go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub replica: ReplicaIndex,
    /// Does the request's adapter live there?
    pub is_home: bool,
    /// What it would cost there.
    pub cost: Cost,
}
