//! Bytes as calls on a core: its limits, then one operation after the other, right ones and wrong ones.
//!
//! After each call the core is checked, and its events are held against what the calls promise. At the end everything is
//! let run out: each accepted request must have been answered. A panic is a finding. The fuzz target and the test of the
//! seeds (`tests/seeds.rs`) both come in by [`run`].

#[path = "host.rs"]
mod host;

use host::Host;
use lorad_sched::{Config, Core, Costs, Counters, Eviction, Order, Policy, Split};

/// Bytes of the input, in order; zeros after its end.
pub struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }

    /// A number below `limit`, which is at most 256.
    pub fn below(&mut self, limit: u32) -> u32 {
        u32::from(self.byte()) % limit.max(1)
    }

    /// One of some things; `None` if there are none.
    pub fn one_of<T: Copy>(&mut self, things: &[T]) -> Option<T> {
        let index = self.below(things.len() as u32) as usize;
        things.get(index).copied()
    }
}

/// Runs the bytes. Says what the core counted, or nothing if the limits were refused.
pub fn run(bytes: &[u8]) -> Option<Counters> {
    let mut bytes = Bytes(bytes);
    let config = config(&mut bytes);
    let Ok(core) = Core::new(config.clone()) else {
        assert!(config.check().is_err(), "refused, and nothing is wrong with it: {config:?}");
        return None;
    };
    let mut host = Host::new(core);
    for _ in 0..bytes.below(5) {
        host.register(&mut bytes);
    }
    while !bytes.0.is_empty() {
        match bytes.below(32) {
            0..=7 => host.add(&mut bytes),
            8..=14 => host.step(),
            15..=20 => host.commit(&mut bytes),
            21 => host.commit_wrongly(&mut bytes),
            22 => host.commit_failed(),
            23..=25 => host.report_page_in(&mut bytes),
            26 => host.report_any_page_in(&mut bytes),
            27 | 28 => host.abort(&mut bytes),
            29 => host.register(&mut bytes),
            30 => host.unregister(&mut bytes),
            _ => host.jump(&mut bytes),
        }
        host.check();
    }
    Some(host.run_out())
}

/// Limits so small that everything collides, and now and then one that can't be.
fn config(bytes: &mut Bytes) -> Config {
    let split = match bytes.below(4) {
        0 => Split::Fixed { adapter_pages: bytes.below(12) },
        1 => Split::Slots { count: bytes.below(4), pages: bytes.below(5) },
        _ => Split::Unified,
    };
    let order = bytes.one_of(&[Order::Fair, Order::Fair, Order::Arrival, Order::Affinity]);
    let eviction = bytes.one_of(&[Eviction::Cost, Eviction::Lru]);
    let ns = [None, None, Some(0), Some(u64::MAX)][bytes.below(4) as usize];
    let costs = ns.map_or_else(Costs::default, |ns| Costs {
        step_ns: ns,
        token_ns: ns,
        sample_ns: ns,
        context_ns: ns,
        adapter_page_ns: ns,
        adapter_token_page_ns: ns,
        page_in_ns: ns,
        page_in_page_ns: ns,
    });
    let rows_max = 1 + bytes.below(6);
    let mut config = Config {
        pages: 6 + bytes.below(26),
        pages_reserved: bytes.below(4) / 2,
        page_tokens: 1 + bytes.below(5),
        rows_max,
        tokens_max: rows_max + bytes.below(10),
        prefill_chunk_max: 1 + bytes.below(8),
        slots_max: 1 + bytes.below(4),
        adapters_step_max: 1 + bytes.below(4),
        page_ins_max: 1 + bytes.below(3),
        adapters_max: 2 + bytes.below(6),
        waiting_max: 1 + bytes.below(12),
        sequence_tokens_max: 8 + bytes.below(32),
        stop_tokens_max: bytes.below(3),
        vocab: 2 + bytes.below(8),
        costs,
        policy: Policy { order: order.unwrap_or_default(), eviction: eviction.unwrap_or_default(), split },
        ..Config::default()
    };
    match bytes.below(64) {
        60 => config.pages = bytes.below(3),
        61 => config.tokens_max = rows_max - 1,
        62 => config.prefill_chunk_max = 0,
        63 => config.sequence_tokens_max = u32::MAX,
        _ => {}
    }
    config
}
