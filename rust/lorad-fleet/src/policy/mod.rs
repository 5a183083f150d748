//! How a replica is chosen, one policy in each file.

mod affinity;
mod cost;
mod least_queue;
mod round_robin;

use crate::cost::Candidate;

/// How a replica is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One after the other, whatever is asked for.
    RoundRobin,
    /// The shortest queue.
    LeastQueue,
    /// The shortest queue among the adapter's homes; anywhere if none can be sent to.
    Affinity,
    /// The least cost: lorad's own.
    #[default]
    Cost,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::RoundRobin, Policy::LeastQueue, Policy::Affinity, Policy::Cost];

    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin",
            Policy::LeastQueue => "least-queue",
            Policy::Affinity => "affinity",
            Policy::Cost => "cost",
        }
    }

    /// The policy of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// What a candidate is ordered by: the least is chosen, and the next is the runner-up. `turn`: how far round the
    /// replicas it is from the one whose turn it is; it decides between equals.
    pub(crate) fn rank(&self, candidate: &Candidate, turn: u64) -> (u64, u64) {
        match self {
            Policy::RoundRobin => round_robin::rank(turn),
            Policy::LeastQueue => least_queue::rank(candidate, turn),
            Policy::Affinity => affinity::rank(candidate, turn),
            Policy::Cost => cost::rank(candidate, turn),
        }
    }
}
