//! What a scenario asks of the engine: who asks, when, for which adapter, how much. From a seed, in whole numbers.

use std::collections::BTreeMap;

use crate::popularity::Popularity;
use crate::random::Random;
use crate::trace::{Action, Ask, Input};

/// When requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// All at the start.
    AtOnce,
    /// At random, this far apart on average.
    Poisson {
        /// Microseconds between two requests of all tenants together.
        gap_us: u64,
    },
    /// As [`Arrivals::Poisson`] for a while, then nothing for a while, all tenants at the same time.
    Bursts {
        /// Microseconds between two requests of a burst.
        gap_us: u64,
        /// Length of a burst, in microseconds.
        on_us: u64,
        /// Length of the quiet after it, in microseconds.
        off_us: u64,
    },
}

/// How long prompts or answers are, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All the same.
    Fixed(u64),
    /// Between two numbers, both included.
    Uniform(u64, u64),
    /// Log-normal: median, and σ times 1000. At least one token.
    Lognormal(u64, u64),
}

impl Lengths {
    /// The middle of them.
    pub fn typical(&self) -> u32 {
        let tokens = match *self {
            Lengths::Fixed(tokens) | Lengths::Lognormal(tokens, _) => tokens,
            Lengths::Uniform(least, most) => least.midpoint(most),
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// A length.
    pub fn draw(&self, random: &mut Random) -> u64 {
        match *self {
            Lengths::Fixed(tokens) => tokens,
            Lengths::Uniform(least, most) => random.between(least, most),
            Lengths::Lognormal(median, sigma_milli) => random.lognormal(median, sigma_milli).max(1),
        }
    }
}

/// The load of a scenario. Each tenant draws from a stream of its own: without the others its requests are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Who asks: tenants 0, 1, ….
    pub tenants: u64,
    /// Requests of all tenants together, the flood's excess not counted.
    pub requests: u64,
    /// When they arrive.
    pub arrivals: Arrivals,
    /// The tenant that floods, when `flood_times` isn't 1.
    pub flood_tenant: u64,
    /// How many times its share this tenant asks.
    pub flood_times: u64,
    /// Registered adapters. Adapter i belongs to tenant i modulo `tenants`.
    pub adapters: u64,
    /// Zipf's exponent over a tenant's adapters, times 1000.
    pub zipf_milli: u64,
    /// Microseconds between two changes of popularity, 0: none.
    pub drift_us: u64,
    /// Requests of a thousand that ask for the base.
    pub base_milli: u64,
    /// Tokens of prompts.
    pub prompt: Lengths,
    /// Tokens of answers.
    pub answer: Lengths,
    /// Requests of a thousand that stop by themselves, at half of what they allow.
    pub stop_milli: u64,
    /// Requests of a thousand whose prompt begins as that of an earlier one of the same tenant.
    pub repeat_milli: u64,
}

impl Default for Load {
    /// One tenant, one adapter, a hundred requests at once of 128 and 64 tokens.
    fn default() -> Self {
        Self {
            tenants: 1,
            requests: 100,
            arrivals: Arrivals::AtOnce,
            flood_tenant: 0,
            flood_times: 1,
            adapters: 1,
            zipf_milli: 1000,
            drift_us: 0,
            base_milli: 0,
            prompt: Lengths::Fixed(128),
            answer: Lengths::Fixed(64),
            stop_milli: 0,
            repeat_milli: 0,
        }
    }
}

/// Purposes of random streams.
const ARRIVALS: u64 = 1;
const ADAPTERS: u64 = 2;
const LENGTHS: u64 = 3;

impl Load {
    /// The requests, in the order of their times, with ids from 1. `tokens_max` is what a sequence may have: longer ones
    /// are cut, as a client would.
    pub fn requests(&self, seed: u64, tokens_max: u32) -> Vec<Input> {
        let tenants = self.tenants.max(1);
        let mut asks: Vec<(u64, Ask)> = Vec::new();
        for tenant in 0..tenants {
            let times = if tenant == self.flood_tenant { self.flood_times } else { 1 };
            let share = self.requests / tenants + u64::from(tenant < self.requests % tenants);
            self.tenant(seed, tenant, share * times, tenants, times, tokens_max, &mut asks);
        }
        asks.sort_by_key(|(at_us, _)| *at_us);
        let numbered = asks.into_iter().zip(1..);
        let mut earlier: BTreeMap<u32, u64> = BTreeMap::new();
        let input = |((at_us, ask), id): ((u64, Ask), u64)| {
            // the first one of a tenant's conversation names the others
            let like = if ask.like > 0 { earlier.get(&ask.tenant).copied().unwrap_or(0) } else { 0 };
            if like == 0 {
                earlier.insert(ask.tenant, id);
            }
            Input { at_us, action: Action::Add(Ask { id, like, ..ask }) }
        };
        numbered.map(input).collect()
    }

    fn tenant(
        &self,
        seed: u64,
        tenant: u64,
        requests: u64,
        tenants: u64,
        times: u64,
        tokens_max: u32,
        asks: &mut Vec<(u64, Ask)>,
    ) {
        let fork = |purpose| Random::fork(seed, purpose << 32 | tenant);
        let (mut arrivals, mut adapters, mut lengths) = (fork(ARRIVALS), fork(ADAPTERS), fork(LENGTHS));
        let own = (tenant..self.adapters).step_by(tenants as usize).map(|adapter| adapter as u32).collect();
        let mut popularity = Popularity::new(own, self.zipf_milli, self.drift_us);
        // its own arrivals are as many times further apart as there are tenants
        let gap = |gap_us: u64| gap_us.saturating_mul(tenants) / times.max(1);
        let mut busy_us = 0u64;
        for _ in 0..requests {
            let at_us = match self.arrivals {
                Arrivals::AtOnce => 0,
                Arrivals::Poisson { gap_us } => {
                    busy_us = busy_us.saturating_add(arrivals.exponential(gap(gap_us)));
                    busy_us
                }
                Arrivals::Bursts { gap_us, on_us, off_us } => {
                    busy_us = busy_us.saturating_add(arrivals.exponential(gap(gap_us)));
                    busy_us.saturating_add((busy_us / on_us.max(1)).saturating_mul(off_us))
                }
            };
            let base = adapters.chance(self.base_milli);
            let drawn = popularity.draw(at_us, &mut adapters);
            let most = u64::from(tokens_max);
            let prompt = self.prompt.draw(&mut lengths).min(most.saturating_sub(1));
            let answer = self.answer.draw(&mut lengths).min(most - prompt);
            let stops = lengths.chance(self.stop_milli);
            let repeats = self.repeat_milli > 0 && lengths.chance(self.repeat_milli);
            let ask = Ask {
                id: 0,
                tenant: tenant as u32,
                adapter: drawn.filter(|_| !base),
                prompt: prompt as u32,
                max_tokens: answer as u32,
                stop_after: if stops { answer.div_ceil(2) as u32 } else { 0 },
                like: repeats.into(),
            };
            asks.push((at_us, ask));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(load: &Load, seed: u64) -> Vec<(u64, Ask)> {
        let ask = |input: Input| match input.action {
            Action::Add(ask) => Some((input.at_us, ask)),
            _ => None,
        };
        load.requests(seed, 4096).into_iter().filter_map(ask).collect()
    }

    #[test]
    fn a_flood_leaves_the_others_as_they_are() {
        let calm = Load {
            tenants: 4,
            requests: 400,
            arrivals: Arrivals::Poisson { gap_us: 1000 },
            adapters: 16,
            prompt: Lengths::Lognormal(100, 600),
            answer: Lengths::Uniform(4, 40),
            ..Load::default()
        };
        let flood = Load { flood_tenant: 2, flood_times: 10, ..calm.clone() };
        let (calm, flood) = (asks(&calm, 9), asks(&flood, 9));
        let of = |asks: &[(u64, Ask)], tenant: u32| -> Vec<(u64, Ask)> {
            let theirs = asks.iter().filter(|(_, ask)| ask.tenant == tenant);
            theirs.map(|&(at_us, ask)| (at_us, Ask { id: 0, ..ask })).collect()
        };
        assert_eq!((of(&calm, 2).len(), of(&flood, 2).len()), (100, 1000));
        assert_eq!(of(&calm, 1), of(&flood, 1));
        assert!(of(&calm, 1).iter().all(|(_, ask)| ask.adapter.is_some_and(|adapter| adapter % 4 == 1)));
        // about as long as the calm
        let (calm_us, flood_us) = (calm[399].0, of(&flood, 2)[999].0);
        assert!((250_000..600_000).contains(&calm_us), "{calm_us}");
        assert!((250_000..600_000).contains(&flood_us), "{flood_us}");
    }

    #[test]
    fn bursts_are_quiet_in_between() {
        let arrivals = Arrivals::Bursts { gap_us: 100, on_us: 10_000, off_us: 90_000 };
        let load = Load { tenants: 3, requests: 3000, arrivals, ..Load::default() };
        let asks = asks(&load, 1);
        assert!(asks.iter().all(|(at_us, _)| at_us % 100_000 <= 10_000));
        assert!(asks.last().unwrap().0 > 2_000_000);
    }

    #[test]
    fn a_seed_is_a_trace() {
        let load = Load { base_milli: 300, stop_milli: 500, adapters: 9, ..Load::default() };
        assert_eq!(asks(&load, 4), asks(&load, 4));
        assert_ne!(asks(&load, 4), asks(&load, 5));
        let base = asks(&load, 4).iter().filter(|(_, ask)| ask.adapter.is_none()).count();
        let stops = asks(&load, 4).iter().filter(|(_, ask)| ask.stop_after == 32).count();
        assert!((15..45).contains(&base) && (30..70).contains(&stops), "{base} {stops}");
    }

    #[test]
    fn what_is_too_long_is_cut() {
        let load =
            Load { prompt: Lengths::Lognormal(50, 2000), answer: Lengths::Fixed(99), ..Load::default() };
        for input in load.requests(3, 64) {
            let Action::Add(ask) = input.action else { continue };
            assert!(ask.prompt <= 63 && ask.prompt + ask.max_tokens <= 64, "{ask:?}");
        }
    }
}
