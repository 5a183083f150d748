//! Bytes as calls on a core: its limits, then one operation after the other, right ones and wrong ones.
//!
//! After each call the core is checked, and its events are held against what the calls promise (`book.rs`). At the end
//! everything is let run out: each accepted request must have been answered. A panic is a finding. The fuzz target and
//! the test of the seeds (`tests/seeds.rs`) both come in by [`run`].

#[path = "book.rs"]
mod book;
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

    /// True once in `times`.
    pub fn rarely(&mut self, times: u32) -> bool {
        self.below(times) == times - 1
    }

    /// One of some things; `None` if there are none.
    pub fn one_of<T: Copy>(&mut self, things: &[T]) -> Option<T> {
        let index = self.below(things.len() as u32) as usize;
        things.get(index).copied()
    }

    /// A time that is usual, or one at which sums overflow.
    pub fn time(&mut self, usual: u64) -> u64 {
        [usual, usual, usual, 0, 1, 2_000, 1 << 62, u64::MAX][self.below(8) as usize]
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
        match bytes.below(40) {
            0..=8 => host.add(&mut bytes),
            9..=16 => host.step(),
            17..=23 => host.commit(&mut bytes),
            24 => host.commit_wrongly(&mut bytes),
            25 => host.commit_failed(),
            26..=29 => host.report_page_in(&mut bytes),
            30 => host.report_wrongly(&mut bytes),
            31 => host.report_fetch(&mut bytes),
            32 | 33 => host.abort(&mut bytes),
            34 => host.register(&mut bytes),
            35 => host.unregister(&mut bytes),
            36 => host.keep(&mut bytes),
            37 => host.set_tenant(&mut bytes),
            _ => host.jump(&mut bytes),
        }
        host.check();
    }
    Some(host.run_out())
}

/// Limits so small that everything collides, and now and then one that can't be.
fn config(bytes: &mut Bytes) -> Config {
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
        tenants_max: 2 + bytes.below(4),
        urgent_after_us: bytes.time(3_000),
        preempt_after_tokens: 1 + bytes.below(4),
        rows_reserved: bytes.below(rows_max) / 2,
        wait_us_max: [0, 0, 0, 1 << 40][bytes.below(4) as usize],
        pinned_pages_max: bytes.below(6),
        half_life_us: bytes.time(60_000_000),
        prefix_cache: !bytes.rarely(4),
        share_base_prefix: bytes.rarely(2),
        costs: costs(bytes),
        policy: policy(bytes),
        ..Config::default()
    };
    // from bytes that were read, so that the seeds keep their meaning
    config.preempt_after_us = config.urgent_after_us / 2;
    config.page_in_first_us = config.urgent_after_us * u64::from(config.vocab % 2);
    config.plans_max = 1 + config.sequence_tokens_max % 2;
    config.quantum_us = config.urgent_after_us.saturating_mul(u64::from(config.vocab - 2));
    match bytes.below(64) {
        60 => config.pages = bytes.below(3),
        61 => config.tokens_max = rows_max - 1,
        62 => config.prefill_chunk_max = 0,
        63 => config.sequence_tokens_max = u32::MAX,
        _ => {}
    }
    config
}

fn costs(bytes: &mut Bytes) -> Costs {
    let ns = match bytes.below(4) {
        0 => 0,
        1 => u64::MAX,
        _ => return Costs::default(),
    };
    Costs {
        step_ns: ns,
        few_tokens: 1,
        many_ns: ns,
        head_ns: ns,
        token_ns: ns,
        sample_ns: ns,
        context_ns: ns,
        adapter_page_ns: ns,
        adapter_token_page_ns: ns,
        page_in_ns: ns,
        page_in_page_ns: ns,
        beside_page_ns: ns,
    }
}

fn policy(bytes: &mut Bytes) -> Policy {
    let orders = [Order::Fair, Order::Fair, Order::Arrival, Order::Affinity];
    Policy {
        order: bytes.one_of(&orders).unwrap_or_default(),
        eviction: bytes.one_of(&[Eviction::Cost, Eviction::Lru]).unwrap_or_default(),
        split: match bytes.below(4) {
            0 => Split::Fixed { adapter_pages: bytes.below(12) },
            1 => Split::Slots { count: bytes.below(4), pages: bytes.below(5) },
            _ => Split::Unified,
        },
    }
}
