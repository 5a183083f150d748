//! What the host decides.

use crate::policy::Policy;

/// The fleet's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How a replica is chosen.
    pub policy: Policy,
    /// A replica that hasn't published for so long gets no request, µs.
    pub silent_us: u64,
    /// In this time what was asked for counts half: popularity, failures, drift. µs, at least 1.
    pub half_life_us: u64,
    /// What a failed request loses until it's sent elsewhere, µs: the risk of a replica that fails.
    pub retry_us: u64,
    /// What a load away from an adapter's homes costs beside the wait for it, in loads: of whoever is driven out, and of its next
    /// requests there. More: fewer loads and longer queues before an adapter spills over.
    pub away_loads: u64,
    /// An adapter gets another home when one home would carry more than this part of what a replica should, in thousandths.
    pub spread_milli: u64,
    /// A replica may carry so much more than its part, in thousandths, before adapters are given to others.
    pub slack_milli: u64,
    /// A replica that has no more than this over its bound keeps what it has, in thousandths of its part: else adapters would
    /// move to and fro.
    pub hysteresis_milli: u64,
    /// Part of a replica's room for adapters that homes may fill, in thousandths; the rest is for the tail, on demand.
    pub fill_milli: u64,
    /// Adapters with less heat than this have no home: they're loaded where they're asked for, by rendezvous.
    pub tail_heat: u64,
    /// Tokens of a block of the prefix index.
    pub block_tokens: u32,
    /// Blocks that the prefix index holds; 0: it's off.
    pub blocks_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: Policy::Cost,
            silent_us: 3_000_000,
            half_life_us: 300_000_000,
            retry_us: 1_000_000,
            away_loads: 1,
            spread_milli: 250,
            slack_milli: 250,
            hysteresis_milli: 100,
            fill_milli: 750,
            tail_heat: 1,
            block_tokens: 64,
            blocks_max: 1 << 16,
        }
    }
}
