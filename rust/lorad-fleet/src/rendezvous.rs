//! Weighted rendezvous: each adapter orders all replicas by a draw of its own.
//!
//! The draw of adapter a for replica r is −ln(u) ÷ weight, with u uniform from the hash of both: the least of exponential
//! draws with rates w falls on r with probability w(r) ÷ Σ w. A replica that comes or goes changes nobody else's draw, so only
//! the adapters that have it first move. (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.)

use lorad_blocks::fixed;

/// Spreads a number over all bits (SplitMix64's finaliser).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The draw: less comes first. In units of 2⁻³² bits, over the weight.
pub(crate) fn draw(adapter: u64, replica: u64, weight: u32) -> u64 {
    let uniform = mix(mix(adapter).wrapping_add(replica.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    // −log₂(u ÷ 2⁶⁴) in Q32; which base makes no difference to the order
    ((64u64 << 32) - fixed::log2(uniform)) / u64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(adapter: u64, replicas: &[(u64, u32)]) -> u64 {
        replicas.iter().min_by_key(|(key, weight)| draw(adapter, *key, *weight)).unwrap().0
    }

    #[test]
    fn adapters_fall_on_replicas_by_their_weights() {
        let replicas = [(11, 1), (12, 1), (13, 2), (14, 4)];
        for (key, weight) in replicas {
            let count = (0..20_000).filter(|&adapter| first(adapter, &replicas) == key).count() as f64;
            let expected = 20_000.0 * f64::from(weight) / 8.0;
            assert!((count - expected).abs() < 5.0 * expected.sqrt(), "{key}: {count} of {expected}");
        }
    }

    #[test]
    fn only_adapters_of_the_replica_that_leaves_move() {
        let replicas: Vec<(u64, u32)> = (0..10).map(|key| (key, 1)).collect();
        for adapter in 0..2000 {
            let (before, after) = (first(adapter, &replicas), first(adapter, &replicas[1..]));
            assert!(before == after || before == 0);
        }
    }
}
