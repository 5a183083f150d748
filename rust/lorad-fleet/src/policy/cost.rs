//! The least sum of queue, missing prefix, load and risk. Away from home a load costs more than the wait for it: so an adapter
//! spills over when its homes' queues are longer than that, and not before.

use crate::cost::Candidate;

pub(super) fn rank(candidate: &Candidate, turn: u64) -> (u64, u64) {
    // at equal cost at home, where its next request will find it
    (candidate.cost.total(), if candidate.is_home { turn } else { turn | 1 << 63 })
}
