//! Which adapter a request asks for: Zipf's law over ranks, and ranks that drift.

use crate::random::Random;
use lorad_blocks::fixed;

/// Draws ranks: rank k (from 1) with a weight of 1 / k^s.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Sums of the weights up to each rank.
    sums: Vec<u64>,
}

impl Zipf {
    /// `count` ranks, exponent `s_milli` / 1000; 0 draws all alike.
    pub fn new(count: usize, s_milli: u64) -> Self {
        let mut sum = 0u64;
        let weight = |rank: u64| {
            let exponent = u128::from(fixed::log2(rank)) * u128::from(s_milli) / 1000;
            fixed::exp2(-i64::try_from(exponent).unwrap_or(i64::MAX)).max(1)
        };
        let sums = (1..=count as u64).map(|rank| {
            sum += weight(rank);
            sum
        });
        Self { sums: sums.collect() }
    }

    /// A rank, counted from 0; `None` when there is none.
    pub fn draw(&self, random: &mut Random) -> Option<usize> {
        let drawn = random.below(*self.sums.last()?);
        Some(self.sums.partition_point(|&sum| sum <= drawn))
    }
}

/// Adapters by popularity. Every `drift_us` two of them change places, one of them drawn by its popularity.
#[derive(Clone, Debug)]
pub struct Popularity {
    zipf: Zipf,
    /// Which adapter has each rank.
    adapters: Vec<u32>,
    drift_us: u64,
    next_us: u64,
}

impl Popularity {
    /// The first adapter is the most popular one. `drift_us` 0: ranks stay.
    pub fn new(adapters: Vec<u32>, s_milli: u64, drift_us: u64) -> Self {
        Self { zipf: Zipf::new(adapters.len(), s_milli), adapters, drift_us, next_us: drift_us }
    }

    /// The adapter of a request at `now_us`; times don't go back.
    pub fn draw(&mut self, now_us: u64, random: &mut Random) -> Option<u32> {
        while self.drift_us > 0 && self.next_us <= now_us {
            self.next_us = self.next_us.saturating_add(self.drift_us);
            let other = random.below(self.adapters.len() as u64) as usize;
            if let Some(rank) = self.zipf.draw(random) {
                self.adapters.swap(rank, other);
            }
        }
        self.zipf.draw(random).and_then(|rank| self.adapters.get(rank).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_frequent_as_zipf_says() {
        for s_milli in [0, 700, 1000, 1500] {
            let (zipf, mut random) = (Zipf::new(50, s_milli), Random::new(3));
            let mut counts = [0u32; 50];
            for _ in 0..100_000 {
                counts[zipf.draw(&mut random).unwrap()] += 1;
            }
            let weight = |rank: usize| (rank as f64 + 1.0).powf(-(s_milli as f64) / 1000.0);
            let sum: f64 = (0..50).map(weight).sum();
            for (rank, &count) in counts.iter().enumerate() {
                let expected = 100_000.0 * weight(rank) / sum;
                let off = (f64::from(count) - expected).abs();
                assert!(off < 5.0 * expected.sqrt(), "s {s_milli} rank {rank}: {count} {expected}");
            }
        }
        assert_eq!(Zipf::new(0, 1000).draw(&mut Random::new(1)), None);
    }

    #[test]
    fn drift_brings_others_to_the_top() {
        let top = |drift_us| {
            let mut random = Random::new(5);
            let mut popularity = Popularity::new((0..100).collect(), 1200, drift_us);
            let draws: Vec<u32> =
                (0..4000u64).filter_map(|at| popularity.draw(at * 1000, &mut random)).collect();
            let late = &draws[3000..];
            late.iter().filter(|&&adapter| adapter < 5).count()
        };
        assert!(top(0) > 500, "{}", top(0));
        assert!(top(10_000) < 400, "{}", top(10_000));
    }
}
