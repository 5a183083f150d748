//! One after the other: every adapter comes to every replica.

pub(super) fn rank(turn: u64) -> (u64, u64) {
    (turn, 0)
}
