//! The core: its state, and what the host reads of it.

use std::num::NonZeroU64;

use lorad_blocks::pool::{Owner, Pool, PoolError};
use lorad_blocks::prefix::{Order, PrefixCache, Shape};

use crate::adapter::Adapters;
use crate::admit::TRIES;
use crate::config::{Config, ConfigError};
use crate::event::Event;
use crate::explain::Explained;
use crate::flight::Flights;
use crate::group::Groups;
use crate::heap::Heaps;
use crate::line::Lines;
use crate::marks::Marks;
use crate::plan::PlanLayout;
use crate::policy::Eviction;
use crate::request::Requests;
use crate::reuse::Copy;
use crate::ring::Ring;
use crate::stats::Counters;
use crate::step::Chosen;
use crate::tenant::Tenants;

/// Events that are kept for [`Core::recent`].
const RECENT: usize = 1024;

/// The scheduler. See the crate's page for the loop around it.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) config: Config,
    pub(crate) layout: PlanLayout,
    pub(crate) pool: Pool,
    pub(crate) prefix: PrefixCache,
    /// Copies of the plan being made.
    pub(crate) copies: Vec<Copy>,
    pub(crate) lines: Lines,
    pub(crate) requests: Requests,
    pub(crate) adapters: Adapters,
    pub(crate) groups: Groups,
    pub(crate) tenants: Tenants,
    pub(crate) explained: Explained,
    /// Requests with a deadline, by it.
    pub(crate) deadlines: Heaps,
    /// Prompts in progress, for the step being made: whether it's of a drained adapter, the tenant's turn, place in `running`, entry.
    pub(crate) prompts: Vec<((bool, bool, u64), u32, u32)>,
    /// The adapter that gets no new rows, so that an urgent group gets its slot.
    pub(crate) drained: Option<u32>,
    /// Requests of light tenants that came in while an urgent group lacks a line.
    pub(crate) let_in: u32,
    /// Groups that the pass being made has passed over.
    pub(crate) passed: Vec<u32>,
    /// Tenants that have had their part of it.
    pub(crate) served: Vec<u32>,
    /// Groups and tenants that were charged since the last [`Core::settle_charges`].
    pub(crate) charged_groups: Marks,
    pub(crate) charged_tenants: Marks,
    /// Pages that are left for running rows when an adapter is loaded or an urgent group admitted, one for each row that may grow:
    /// else growth takes them back at once, and the page-in was for nothing.
    pub(crate) headroom: u32,
    /// Running requests in the order of admission.
    pub(crate) running: Vec<u32>,
    /// Rows of the plan being made, in the plan's order.
    pub(crate) chosen: Vec<Chosen>,
    /// How many of them, from the first, their groups were charged for before they were sorted.
    pub(crate) charged: usize,
    /// For sorting them.
    pub(crate) unsorted: Vec<Chosen>,
    pub(crate) row_order: Vec<u32>,
    /// For sorting them: rows of each slot, the base's at the end.
    pub(crate) slot_rows: Vec<u32>,
    /// Requests that have filled a page in the plan being committed.
    pub(crate) filled: Vec<u32>,
    /// Adapters whose page-in is part of the plan being made.
    pub(crate) page_ins: Vec<u32>,
    /// Whether the last plan had rows: a plan without any doesn't come twice in a row before them.
    pub(crate) had_rows: bool,
    /// Plans that the worker has.
    pub(crate) flights: Flights,
    pub(crate) events: Vec<Event>,
    /// The last of them, also when they were drained.
    recent: Ring,
    pub(crate) counters: Counters,
    /// Requests in queues.
    pub(crate) waiting: u32,
    /// The latest time that any call gave.
    pub(crate) now: u64,
    /// The first refusal by the pool: a fault of the core itself, for [`Core::check`].
    pub(crate) fault: Option<PoolError>,
}

impl Core {
    /// A core with these limits, all its pages free.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let rows = config.rows_max as usize;
        let mut core = Self {
            layout: PlanLayout::new(&config),
            pool: Pool::new(config.pages),
            prefix: PrefixCache::new(Shape {
                pages: config.pages,
                page_tokens: config.page_tokens,
                pages_max: if config.prefix_cache { config.pages } else { 0 },
                half_life_us: half_life(&config),
                order: match config.policy.eviction {
                    Eviction::Cost => Order::LeastWorth,
                    Eviction::Lru => Order::LeastRecent,
                },
            }),
            copies: Vec::with_capacity(rows),
            lines: Lines::new(config.rows_max, config.cols()),
            requests: Requests::default(),
            adapters: Adapters::new(config.slots_max),
            groups: Groups::new(config.page_ins_max as usize + 1),
            tenants: Tenants::new(),
            explained: Explained::new(config.rows_max),
            deadlines: Heaps::new(1),
            prompts: Vec::with_capacity(rows),
            drained: None,
            let_in: 0,
            passed: Vec::with_capacity(TRIES + 1),
            served: Vec::with_capacity(TRIES + 1),
            charged_groups: Marks::default(),
            charged_tenants: Marks::default(),
            headroom: 0,
            running: Vec::with_capacity(rows),
            chosen: Vec::with_capacity(rows),
            charged: 0,
            unsorted: Vec::with_capacity(rows),
            row_order: Vec::with_capacity(rows),
            slot_rows: vec![0; config.slots_max as usize + 1],
            filled: Vec::with_capacity(rows),
            page_ins: Vec::with_capacity(config.page_ins_max as usize),
            had_rows: true,
            flights: Flights::new(&config),
            events: Vec::with_capacity(events_max(&config, 0)),
            recent: Ring::new(RECENT),
            counters: Counters::default(),
            waiting: 0,
            now: 0,
            fault: None,
            config,
        };
        core.allow();
        for _ in 0..core.config.pages_reserved {
            let taken = core.pool.take(Owner::Reserved).map(|_| ());
            core.note(taken);
        }
        Ok(core)
    }

    /// The limits.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The plan's sections for these limits.
    pub fn plan_layout(&self) -> &PlanLayout {
        &self.layout
    }

    /// Number of the plan in flight that is committed next.
    pub fn in_flight(&self) -> Option<u64> {
        self.flights.flying().first().map(|flight| flight.number)
    }

    /// Does any request live, or any page-in run?
    pub fn has_work(&self) -> bool {
        !self.running.is_empty() || self.waiting > 0 || self.flights.any() || self.adapters.loading > 0
    }

    /// Adapters that were pinned or prewarmed and wait for room that nobody uses: a step may begin their page-ins.
    pub fn wishes(&self) -> usize {
        self.adapters.wanted.len()
    }

    /// Moves all events since the last call to the end of `into`.
    pub fn drain_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }

    /// The last events but for tokens, with their time and plan, whether they were drained or not: for who asks after a fault.
    pub fn recent(&self) -> &Ring {
        &self.recent
    }

    /// Tells the host what happened: the one place where events are made.
    pub(crate) fn tell(&mut self, event: Event) {
        self.recent.push(self.now, self.counters.plans, event);
        self.events.push(event);
    }

    /// Keeps the first fault of the core itself for [`Core::check`].
    pub(crate) fn note(&mut self, result: Result<(), PoolError>) {
        if let (Err(error), None) = (result, self.fault) {
            self.fault = Some(error);
        }
    }
}

/// As many steps as may be in flight and a commit write no more events than this, so that a host that drains never makes them allocate. All requests
/// with a deadline may end in the same step, and adapters be dropped or gone with them.
pub(crate) fn events_max(config: &Config, deadlines: u32) -> usize {
    4 * (config.plans_max * config.rows_max) as usize
        + 2 * config.slots_max as usize
        + 2 * deadlines as usize
        + 64
}

/// The time in which a use's worth halves; 0 counts as 1.
pub(crate) fn half_life(config: &Config) -> NonZeroU64 {
    NonZeroU64::new(config.half_life_us).unwrap_or(NonZeroU64::MIN)
}
