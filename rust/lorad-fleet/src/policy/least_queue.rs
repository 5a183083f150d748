//! The shortest queue: as [`super::Policy::RoundRobin`] where queues are alike.

use crate::cost::Candidate;

pub(super) fn rank(candidate: &Candidate, turn: u64) -> (u64, u64) {
    (candidate.cost.queue, turn)
}
