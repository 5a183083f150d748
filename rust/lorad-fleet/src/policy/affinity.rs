//! An adapter's homes first, of these the shortest queue; a home's queue may grow beside idle replicas.

use crate::cost::Candidate;

/// More than any queue.
const AWAY: u64 = 1 << 62;

pub(super) fn rank(candidate: &Candidate, turn: u64) -> (u64, u64) {
    let away = if candidate.is_home { 0 } else { AWAY };
    (candidate.cost.queue.min(AWAY - 1) + away, turn)
}
