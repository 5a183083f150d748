//! A seeded stream of numbers, and draws from distributions by whole-number arithmetic.

use lorad_blocks::fixed;

/// A stream of numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The stream of a seed for one purpose: what else is drawn from the seed doesn't shift it.
    pub fn fork(seed: u64, purpose: u64) -> Self {
        let mut random = Self(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(random.bits())
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`; 0 when there is none.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least).saturating_add(1))
    }

    /// True so many times of a thousand.
    pub fn chance(&mut self, milli: u64) -> bool {
        self.below(1000) < milli
    }

    /// From an exponential distribution.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        // −ln(u / 2⁶⁴)
        let nats = fixed::scale((64 << 32) - fixed::log2(self.bits()), fixed::LN_2);
        fixed::scale(mean, nats)
    }

    /// From a log-normal distribution: `median` · e^(`sigma_milli` / 1000 · z). The normal z is the sum of twelve uniform
    /// numbers less six, so nothing lies beyond 6 σ.
    pub fn lognormal(&mut self, median: u64, sigma_milli: u64) -> u64 {
        let sum: u64 = (0..12).map(|_| self.bits() >> 32).sum();
        let z = i128::from(sum) - (6 << 32);
        let exponent = (z * i128::from(sigma_milli) * i128::from(fixed::LOG2_E) / 1000) >> 32;
        let exponent = exponent.clamp(-(64 << 32), 64 << 32) as i64;
        fixed::scale(median, fixed::exp2(exponent))
    }
}

/// Spreads a number over all bits.
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_means_that_they_should() {
        let mut random = Random::new(7);
        let mean = |draws: Vec<u64>| draws.iter().sum::<u64>() / draws.len() as u64;
        let exponential = mean((0..20_000).map(|_| random.exponential(1_000_000)).collect());
        assert!((980_000..1_020_000).contains(&exponential), "{exponential}");
        // the mean of a log-normal distribution is median · e^(σ² / 2): 1.133 for σ = 0.5
        let lognormal = mean((0..20_000).map(|_| random.lognormal(1_000_000, 500)).collect());
        assert!((1_110_000..1_155_000).contains(&lognormal), "{lognormal}");
        let uniform = mean((0..20_000).map(|_| random.between(10, 20) * 1000).collect());
        assert!((14_900..15_100).contains(&uniform), "{uniform}");
        assert_eq!((random.below(0), random.between(4, 4)), (0, 4));
    }

    #[test]
    fn purposes_have_streams_of_their_own() {
        let draw = |purpose| Random::fork(1, purpose).bits();
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
