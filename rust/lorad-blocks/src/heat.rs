//! How much something is used, and what it is worth to keep it.
//!
//! A [`Heat`] counts uses; each counts half for every half-life that has passed since. Adapters and cached prefixes are
//! evicted by one measure, [`Worth`] = heat × weight, where the weight is the time that it takes to bring a page back.
//!
//! Time goes in whole epochs of one half-life, so decay is a division by a power of two:
//!
//! ```text
//!   heat at epoch e  =  count · 2^(epoch − e)       exact: only the exponent changes
//!   worth            =  count · weight · 2^epoch    as of epoch 0: it has no time in it
//! ```
//!
//! So two heats that were last touched in different epochs compare without rounding, and the order of two that nobody
//! touches never changes, however much time passes. Only +, × and powers of two are used: the same calls give the same
//! bits on every machine. All who are compared share one half-life.

use std::num::NonZeroU64;

/// Later epochs are taken as this one, so that sums of exponents can't overflow.
const EPOCH_MAX: u64 = 1 << 62;
/// Bits of an f64's fraction.
const FRACTION_BITS: u32 = 52;
const FRACTION: u64 = (1 << FRACTION_BITS) - 1;

/// Number of whole half-lives since time 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(i64);

impl Epoch {
    /// The epoch of a time in microseconds.
    pub fn of(now_us: u64, half_life_us: NonZeroU64) -> Self {
        Self((now_us / half_life_us).min(EPOCH_MAX) as i64)
    }
}

/// Uses, each counted half for every epoch since.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Heat {
    /// Uses as of `epoch`: 0, or 1 to 2⁵³, where one more is lost in rounding.
    count: f64,
    epoch: Epoch,
}

impl Heat {
    /// Never used.
    pub const COLD: Heat = Heat { count: 0.0, epoch: Epoch(0) };

    /// Counts a use. An epoch before that of the last use is taken as that one.
    pub fn touch(&mut self, now: Epoch) {
        let epoch = now.max(self.epoch);
        *self = Self { count: self.at(epoch) + 1.0, epoch };
    }

    /// The uses that are left at an epoch; before the last use, those at the last use.
    pub fn at(&self, now: Epoch) -> f64 {
        let halvings = now.0.saturating_sub(self.epoch.0).max(0);
        match power_of_two(halvings.saturating_neg()) {
            Some(factor) => self.count * factor,
            None => 0.0,
        }
    }

    /// Heat × weight. A weight that is negative or no number counts as 0, an infinite one as the largest f64.
    pub fn worth(&self, weight: f64) -> Worth {
        let (Some(count), Some(weight)) = (Split::of(self.count), Split::of(weight)) else {
            return Worth::NOTHING;
        };
        // 1 ≤ product < 4, whatever the exponents: nothing overflows, and rounding is the same in every epoch
        let Some(product) = Split::of(count.leading() * weight.leading()) else { return Worth::NOTHING };
        let exponent = self.epoch.0 + count.exponent + weight.exponent + product.exponent;
        Worth { exponent, fraction: product.fraction }
    }
}

/// What something is worth at every time alike: bigger is better kept. Ordered as the products are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worth {
    // the order of the fields is the order of the values
    exponent: i64,
    fraction: u64,
}

impl Worth {
    /// Less than everything that was ever used and has a weight.
    pub const NOTHING: Worth = Worth { exponent: i64::MIN, fraction: 0 };

    /// As two numbers that are ordered as the products are.
    pub fn key(&self) -> (u64, u64) {
        (self.exponent as u64 ^ 1 << 63, self.fraction)
    }

    /// The product as a number at an epoch, in the unit of the weight; 0 below the smallest f64. To show, not to compare.
    pub fn at(&self, now: Epoch) -> f64 {
        if *self == Self::NOTHING {
            return 0.0;
        }
        let exponent = self.exponent.saturating_sub(now.0);
        match power_of_two(exponent) {
            Some(factor) => factor * Split { exponent: 0, fraction: self.fraction }.leading(),
            None if exponent < 0 => 0.0,
            None => f64::INFINITY,
        }
    }
}

/// A positive number as (1 + fraction/2⁵²) · 2^exponent.
struct Split {
    exponent: i64,
    fraction: u64,
}

impl Split {
    /// `None` for what isn't above 0.
    fn of(number: f64) -> Option<Self> {
        if number.is_nan() || number <= 0.0 {
            return None;
        }
        let bits = number.min(f64::MAX).to_bits();
        let fraction = bits & FRACTION;
        Some(match (bits >> FRACTION_BITS) as i64 {
            0 => {
                // no leading 1 is stored in numbers this small
                let shift = fraction.leading_zeros() - (63 - FRACTION_BITS);
                Self { exponent: -1022 - i64::from(shift), fraction: (fraction << shift) & FRACTION }
            }
            exponent => Self { exponent: exponent - 1023, fraction },
        })
    }

    /// 1 + fraction/2⁵².
    fn leading(&self) -> f64 {
        f64::from_bits((1023 << FRACTION_BITS) | self.fraction)
    }
}

/// 2^exponent where that is a normal f64.
fn power_of_two(exponent: i64) -> Option<f64> {
    (-1022..=1023).contains(&exponent).then(|| f64::from_bits(((1023 + exponent) as u64) << FRACTION_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_LIFE_US: NonZeroU64 = NonZeroU64::new(1000).unwrap();

    fn epoch(number: u64) -> Epoch {
        Epoch::of(number.saturating_mul(1000), HALF_LIFE_US)
    }

    fn touched(epochs: &[u64]) -> Heat {
        let mut heat = Heat::COLD;
        epochs.iter().for_each(|&number| heat.touch(epoch(number)));
        heat
    }

    #[test]
    fn a_use_counts_half_after_each_half_life() {
        assert_eq!(Epoch::of(2999, HALF_LIFE_US), epoch(2));
        let heat = touched(&[2, 2, 2]);
        assert_eq!([2, 3, 4].map(|number| heat.at(epoch(number))), [3.0, 1.5, 0.75]);
        assert_eq!(heat.at(epoch(0)), 3.0, "nothing warms up by looking back");
        assert_eq!(touched(&[2, 2, 2, 3]).at(epoch(3)), 2.5);
        assert_eq!(touched(&[5, 3]), touched(&[5, 5]), "a clock that goes back stands still");
        assert_eq!(heat.at(epoch(5000)), 0.0);
        assert_eq!(touched(&[0, 5000]).at(epoch(5000)), 1.0);
        assert_eq!(Heat::COLD.at(epoch(3)), 0.0);
    }

    #[test]
    fn worth_is_ordered_across_epochs() {
        // two uses now are worth one use of the next epoch, to the last bit
        assert_eq!(touched(&[7, 7]).worth(3.0), touched(&[8]).worth(3.0));
        assert_eq!(touched(&[7, 7]).worth(3.0), touched(&[7]).worth(6.0));
        assert!(touched(&[7, 7, 7]).worth(3.0) > touched(&[8]).worth(3.0));
        assert!(touched(&[7, 7]).worth(3.0) < touched(&[8]).worth(3.000_000_000_000_001));
        // far beyond what one f64 could hold
        assert!(touched(&[1]).worth(1e-300) < touched(&[100_000]).worth(1e-300));
        assert!(touched(&[0; 1000]).worth(1e300) < touched(&[100_000]).worth(1e-300));
        let worth = touched(&[7, 7, 7]).worth(5.0);
        assert_eq!([7, 8, 9].map(|number| worth.at(epoch(number))), [15.0, 7.5, 3.75]);
        assert_eq!(worth.at(epoch(2000)), 0.0);
        assert_eq!(touched(&[2000]).worth(1.0).at(epoch(0)), f64::INFINITY);
    }

    #[test]
    fn odd_weights_and_times_are_harmless() {
        let heat = touched(&[3]);
        for weight in [0.0, -0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(heat.worth(weight), Worth::NOTHING);
        }
        assert_eq!(Worth::NOTHING.at(epoch(0)), 0.0);
        assert_eq!(Heat::COLD.worth(1.0), Worth::NOTHING);
        assert_eq!(heat.worth(f64::INFINITY), heat.worth(f64::MAX));
        let tiny = f64::from_bits(3);
        assert!(
            Worth::NOTHING < heat.worth(f64::from_bits(1))
                && heat.worth(f64::from_bits(1)) < heat.worth(tiny)
        );
        assert!(heat.worth(tiny) < heat.worth(f64::MIN_POSITIVE));
        assert_eq!(touched(&[3, 3]).worth(f64::from_bits(3)), heat.worth(f64::from_bits(6)));
        let last = Epoch::of(u64::MAX, NonZeroU64::MIN);
        let mut late = Heat::COLD;
        late.touch(last);
        assert!(late.worth(f64::MAX) > late.worth(1.0) && late.worth(1.0) > heat.worth(f64::MAX));
        assert_eq!(late.worth(4.0).at(last), 4.0);
    }

    /// Beside exact sums of whole numbers: Σ 2^epoch is the heat as of epoch 0.
    #[test]
    fn seeded_heats_compare_as_whole_numbers_do() {
        let mut state = 11u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % limit
        };
        let mut seen: Vec<(Worth, u128)> = Vec::new();
        for _ in 0..300 {
            let (mut heat, mut exact, mut number) = (Heat::COLD, 0u128, 0);
            for _ in 0..below(6) {
                number += below(7);
                heat.touch(epoch(number));
                exact += 1 << number;
            }
            let weight = 1 + below(16);
            seen.push((heat.worth(weight as f64), exact * u128::from(weight)));
        }
        for (worth, exact) in &seen {
            for (other, other_exact) in &seen {
                assert_eq!(worth.cmp(other), exact.cmp(other_exact));
            }
        }
    }
}
