//! The core's limits.

use std::fmt;

use crate::costs::Costs;
use crate::policy::{Policy, Split};

/// The limits of a core. Everything has one; all memory of a step is taken from them at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Pages in the arena.
    pub pages: u32,
    /// Pages set aside for the host (the first ones), never handed out.
    pub pages_reserved: u32,
    /// Tokens whose KV fits into a page.
    pub page_tokens: u32,
    /// Rows (running requests) in a step.
    pub rows_max: u32,
    /// Plans in flight: 1, or 2 for a worker that keeps sampled tokens on its device and is given the next plan before they're
    /// known here.
    pub plans_max: u32,
    /// New tokens in a step; at least `rows_max`.
    pub tokens_max: u32,
    /// New tokens of one row in a step.
    pub prefill_chunk_max: u32,
    /// Adapter slots in the device table.
    pub slots_max: u32,
    /// Distinct adapters in a step; the base doesn't count.
    pub adapters_step_max: u32,
    /// Adapters being paged in at the same time.
    pub page_ins_max: u32,
    /// Page-ins that take no longer than this together come in a plan of their own before the next rows, where a request would
    /// run at once if its adapter were there; the host waits for them. 0: all go on beside rows, and such a request waits a step.
    pub page_in_first_us: u64,
    /// Adapters that may be registered.
    pub adapters_max: u32,
    /// Requests that may wait; preempted ones come on top.
    pub waiting_max: u32,
    /// Tokens of a request: prompt and answer together.
    pub sequence_tokens_max: u32,
    /// Stop tokens of a request.
    pub stop_tokens_max: u32,
    /// Token ids are below this.
    pub vocab: u32,
    /// Tenants that may be known.
    pub tenants_max: u32,
    /// A group whose first request has waited so long is urgent: the others make way. Until then a hot adapter keeps its
    /// place. See [`Config::turn_us`] and `bound.rs` for what follows from it.
    pub urgent_after_us: u64,
    /// Tokens that a row samples after its admission before it may be preempted for an urgent group.
    pub preempt_after_tokens: u32,
    /// Time after its election before rows make way for an urgent group, µs: until then it waits for what ends by itself.
    pub preempt_after_us: u64,
    /// How far a tenant's group may be ahead of the others in charged time before it comes after them, µs, at the usual weight.
    /// Groups that are less apart come in the order of priority and arrival.
    pub quantum_us: u64,
    /// Lines that only tenants with fewer rows than their part of them may take while several are present; less than half.
    pub rows_reserved: u32,
    /// The longest wait that is accepted, µs: an arrival that would have a longer bound is refused. 0: none is.
    pub wait_us_max: u64,
    /// Pages that pinned adapters may have.
    pub pinned_pages_max: u32,
    /// Time in which the worth of a use halves, µs.
    pub half_life_us: u64,
    /// Whether KV of earlier requests is used again by those of the same tenant and adapter.
    pub prefix_cache: bool,
    /// Whether KV of base-only requests may serve other tenants too. What others asked can then be guessed from times.
    pub share_base_prefix: bool,
    /// What work costs: what tenants are charged.
    pub costs: Costs,
    /// Order and memory.
    pub policy: Policy,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pages: 4096,
            pages_reserved: 0,
            page_tokens: 16,
            rows_max: 64,
            plans_max: 1,
            tokens_max: 512,
            prefill_chunk_max: 256,
            slots_max: 64,
            adapters_step_max: 64,
            page_ins_max: 4,
            page_in_first_us: 0,
            adapters_max: 16_384,
            waiting_max: 16_384,
            sequence_tokens_max: 4096,
            stop_tokens_max: 64,
            vocab: i32::MAX as u32,
            tenants_max: 16_384,
            urgent_after_us: 10_000_000,
            preempt_after_tokens: 256,
            preempt_after_us: 2_000_000,
            quantum_us: 20_000_000,
            rows_reserved: 0,
            wait_us_max: 0,
            pinned_pages_max: 0,
            half_life_us: 60_000_000,
            prefix_cache: true,
            share_base_prefix: false,
            costs: Costs::default(),
            policy: Policy::default(),
        }
    }
}

/// A limit that can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The value is below what makes sense.
    TooSmall {
        /// Name of the field in [`Config`].
        field: &'static str,
        /// The smallest value that is taken.
        limit: u64,
        /// The value given.
        value: u64,
    },
    /// The value is above what the core can hold.
    TooLarge {
        /// Name of the field in [`Config`], or of what is derived from several.
        field: &'static str,
        /// The largest value that is taken.
        limit: u64,
        /// The value given.
        value: u64,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::TooSmall { field, limit, value } => write!(f, "{field} = {value}: at least {limit}"),
            ConfigError::TooLarge { field, limit, value } => write!(f, "{field} = {value}: at most {limit}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Cells that the page table and a plan may have; beyond this a configuration is a mistake, not a machine.
const CELLS_MAX: u64 = 1 << 26;

impl Config {
    /// Name and value of each limit that is a count, for hosts that read them from text.
    pub fn fields_mut(&mut self) -> [(&'static str, &mut u32); 19] {
        [
            ("pages", &mut self.pages),
            ("pages_reserved", &mut self.pages_reserved),
            ("page_tokens", &mut self.page_tokens),
            ("rows_max", &mut self.rows_max),
            ("plans_max", &mut self.plans_max),
            ("tokens_max", &mut self.tokens_max),
            ("prefill_chunk_max", &mut self.prefill_chunk_max),
            ("slots_max", &mut self.slots_max),
            ("adapters_step_max", &mut self.adapters_step_max),
            ("page_ins_max", &mut self.page_ins_max),
            ("adapters_max", &mut self.adapters_max),
            ("waiting_max", &mut self.waiting_max),
            ("sequence_tokens_max", &mut self.sequence_tokens_max),
            ("stop_tokens_max", &mut self.stop_tokens_max),
            ("vocab", &mut self.vocab),
            ("tenants_max", &mut self.tenants_max),
            ("preempt_after_tokens", &mut self.preempt_after_tokens),
            ("rows_reserved", &mut self.rows_reserved),
            ("pinned_pages_max", &mut self.pinned_pages_max),
        ]
    }

    /// Name and value of each time, µs.
    pub fn times_mut(&mut self) -> [(&'static str, &mut u64); 6] {
        [
            ("page_in_first_us", &mut self.page_in_first_us),
            ("urgent_after_us", &mut self.urgent_after_us),
            ("preempt_after_us", &mut self.preempt_after_us),
            ("quantum_us", &mut self.quantum_us),
            ("wait_us_max", &mut self.wait_us_max),
            ("half_life_us", &mut self.half_life_us),
        ]
    }

    /// Name and value of each switch.
    pub fn switches_mut(&mut self) -> [(&'static str, &mut bool); 2] {
        [("prefix_cache", &mut self.prefix_cache), ("share_base_prefix", &mut self.share_base_prefix)]
    }

    /// Pages that requests and adapters can have.
    pub fn pages_usable(&self) -> u32 {
        self.pages.saturating_sub(self.pages_reserved)
    }

    /// Columns of the page table.
    pub fn cols(&self) -> u32 {
        self.pages_for(self.sequence_tokens_max).min(self.pages_usable())
    }

    /// Pages for the KV of `tokens` tokens.
    pub fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens)
    }

    /// Do so many pages hold so many tokens?
    pub(crate) fn pages_hold(&self, pages: u32, tokens: u32) -> bool {
        u64::from(pages) * u64::from(self.page_tokens) >= u64::from(tokens)
    }

    /// Checks each limit by itself and against the others.
    pub fn check(&self) -> Result<(), ConfigError> {
        let ranges: [(&'static str, u32, u32, u32); 19] = [
            ("pages", self.pages, 1, 1 << 24),
            ("pages_reserved", self.pages_reserved, 0, self.pages.saturating_sub(1)),
            ("page_tokens", self.page_tokens, 1, 1 << 16),
            ("rows_max", self.rows_max, 1, 1 << 16),
            ("plans_max", self.plans_max, 1, 2),
            ("tokens_max", self.tokens_max, self.rows_max, 1 << 22),
            ("prefill_chunk_max", self.prefill_chunk_max, 1, 1 << 22),
            ("slots_max", self.slots_max, 1, 1 << 16),
            ("adapters_step_max", self.adapters_step_max, 1, 1 << 16),
            ("page_ins_max", self.page_ins_max, 1, 1 << 16),
            ("adapters_max", self.adapters_max, 0, 1 << 24),
            ("waiting_max", self.waiting_max, 1, 1 << 24),
            ("sequence_tokens_max", self.sequence_tokens_max, 2, 1 << 24),
            ("stop_tokens_max", self.stop_tokens_max, 0, 1 << 16),
            ("vocab", self.vocab, 1, i32::MAX as u32),
            ("tenants_max", self.tenants_max, 1, 1 << 20),
            ("preempt_after_tokens", self.preempt_after_tokens, 1, 1 << 20),
            ("rows_reserved", self.rows_reserved, 0, self.rows_max.saturating_sub(1) / 2),
            ("pinned_pages_max", self.pinned_pages_max, 0, self.pages_usable().saturating_sub(1)),
        ];
        for (field, value, least, most) in ranges {
            if value < least {
                return Err(ConfigError::TooSmall { field, limit: least.into(), value: value.into() });
            }
            if value > most {
                return Err(ConfigError::TooLarge { field, limit: most.into(), value: value.into() });
            }
        }
        self.check_split()?;
        let least = self.bound_us(0, 1, 1, 1, 1, 1);
        if self.wait_us_max > 0 && self.wait_us_max < least {
            return Err(ConfigError::TooSmall {
                field: "wait_us_max",
                limit: least,
                value: self.wait_us_max,
            });
        }
        let cells = u64::from(self.rows_max) * u64::from(self.cols());
        if cells > CELLS_MAX {
            return Err(ConfigError::TooLarge {
                field: "rows_max * pages of sequence_tokens_max",
                limit: CELLS_MAX,
                value: cells,
            });
        }
        Ok(())
    }

    fn check_split(&self) -> Result<(), ConfigError> {
        let usable = u64::from(self.pages_usable());
        let (field, value) = match self.policy.split {
            Split::Unified => return Ok(()),
            Split::Fixed { adapter_pages } => ("adapter_pages", u64::from(adapter_pages)),
            Split::Slots { count, pages } => ("slots · pages", u64::from(count) * u64::from(pages)),
        };
        if value == 0 {
            return Err(ConfigError::TooSmall { field, limit: 1, value });
        }
        if value >= usable {
            return Err(ConfigError::TooLarge { field, limit: usable.saturating_sub(1), value });
        }
        // pinned adapters leave room for one that isn't
        let limit = match self.policy.split {
            Split::Unified => return Ok(()),
            Split::Fixed { adapter_pages } => adapter_pages - 1,
            Split::Slots { count, pages } => (count - 1) * pages,
        };
        if self.pinned_pages_max > limit {
            let value = self.pinned_pages_max.into();
            return Err(ConfigError::TooLarge { field: "pinned_pages_max", limit: limit.into(), value });
        }
        Ok(())
    }

    /// Pages that adapters may have together, and those that KV may have together.
    pub fn split(&self) -> (u32, u32) {
        let usable = self.pages_usable();
        let adapters = match self.policy.split {
            Split::Unified => return (usable, usable),
            Split::Fixed { adapter_pages } => adapter_pages,
            Split::Slots { count, pages } => count.saturating_mul(pages),
        };
        (adapters, usable.saturating_sub(adapters))
    }

    /// Pages that an adapter of so many takes in the pool.
    pub fn image_pages(&self, pages: u32) -> u32 {
        match self.policy.split {
            Split::Unified | Split::Fixed { .. } => pages,
            Split::Slots { pages: all, .. } => pages.max(all),
        }
    }
}
