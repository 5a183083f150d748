//! How likely something is used: a counter that loses half of itself in each half-life.
//!
//! Between two touches every counter falls by the same factor, so an order between untouched ones never changes. Only
//! sums and powers of two are used: the same on every machine.

use crate::heap::Key;

/// Uses, halved once per epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Heat {
    uses: f64,
    epoch: u64,
}

/// Beyond this many epochs nothing is left of a use.
const FORGOTTEN: u64 = 1000;

impl Heat {
    /// One more use at a time; epochs are `half_life_us` long.
    pub fn touch(&mut self, now: u64, half_life_us: u64) {
        let epoch = now / half_life_us.max(1);
        let passed = epoch.saturating_sub(self.epoch);
        let left = if passed > FORGOTTEN { 0.0 } else { self.uses * power_of_half(passed) };
        *self = Self { uses: left + 1.0, epoch: self.epoch.max(epoch) };
    }

    /// Orders values `heat × weight` of different epochs: larger is worth more. The weight isn't negative.
    pub fn key(&self, weight: f64) -> Key {
        let value = self.uses * weight;
        if value < f64::MIN_POSITIVE || !value.is_finite() {
            return (0, 0);
        }
        // value = mantissa · 2^exponent, and each later epoch counts twice as much
        let bits = value.to_bits();
        ((bits >> 52).saturating_add(self.epoch), bits & ((1 << 52) - 1))
    }
}

fn power_of_half(count: u64) -> f64 {
    f64::from_bits((1023 - count.min(1022)) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_uses_count_half_per_epoch() {
        let mut heat = Heat::default();
        heat.touch(0, 10);
        heat.touch(5, 10);
        heat.touch(25, 10);
        assert_eq!(heat, Heat { uses: 1.5, epoch: 2 });
        let mut other = Heat::default();
        other.touch(25, 10);
        assert!(other.key(1.0) < heat.key(1.0) && heat.key(1.0) < other.key(2.0));
        let mut old = Heat::default();
        (0..4).for_each(|_| old.touch(9, 10));
        // 4 uses, two epochs ago: as one now
        assert_eq!(old.key(1.0), other.key(1.0));
        old.touch(1_000_000, 10);
        assert_eq!(old.uses, 1.0);
    }
}
