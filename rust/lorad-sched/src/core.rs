//! The core: its state, and the calls by which the host gives and takes work.

use std::num::NonZeroU64;

use lorad_blocks::heat::Epoch;
use lorad_blocks::pool::{Owner, Pool, PoolError};
use lorad_blocks::prefix::{Order, PrefixCache, Shape};

use crate::adapter::{AdapterId, AdapterSpec, Adapters, Residency, Standing};
use crate::admit::TRIES;
use crate::config::{Config, ConfigError};
use crate::error::{PageInError, Refusal};
use crate::event::{Event, FailReason, FinishReason};
use crate::explain::{Explained, Story};
use crate::group::{GroupName, Groups};
use crate::heap::Heaps;
use crate::line::Lines;
use crate::marks::Marks;
use crate::plan::PlanLayout;
use crate::policy::{Eviction, Split};
use crate::request::{RequestId, RequestSpec, RequestState, Requests};
use crate::reuse::Copy;
use crate::ring::Ring;
use crate::stats::Counters;
use crate::step::Chosen;
use crate::tenant::{TenantId, TenantSpec, Tenants, WEIGHT_MAX};

/// Events that are kept for [`Core::recent`]: some dozens of steps.
const RECENT: usize = 1024;

/// The scheduler. See the crate's page for the loop around it.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) config: Config,
    pub(crate) layout: PlanLayout,
    pub(crate) pool: Pool,
    pub(crate) prefix: PrefixCache,
    /// Copies of the plan being made or in flight.
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
    /// Rows of the plan being made or in flight, in the plan's order.
    pub(crate) chosen: Vec<Chosen>,
    /// For sorting them.
    pub(crate) row_keys: Vec<u64>,
    pub(crate) unsorted: Vec<Chosen>,
    /// Adapters whose page-in is part of the plan being made.
    pub(crate) page_ins: Vec<u32>,
    /// Number of the plan in flight.
    pub(crate) flight: Option<u64>,
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
            groups: Groups::new(),
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
            row_keys: Vec::with_capacity(rows),
            unsorted: Vec::with_capacity(rows),
            page_ins: Vec::with_capacity(config.page_ins_max as usize),
            flight: None,
            // a step and its commit write no more than this, so that a host that drains never makes them allocate
            events: Vec::with_capacity(4 * rows + 2 * config.slots_max as usize + 64),
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

    /// Number of the plan in flight.
    pub fn in_flight(&self) -> Option<u64> {
        self.flight
    }

    /// Does any request live, or any page-in run?
    pub fn has_work(&self) -> bool {
        !self.running.is_empty() || self.waiting > 0 || self.flight.is_some() || self.adapters.loading > 0
    }

    /// Registers an adapter. Its pages are taken when a request needs it.
    pub fn register(&mut self, spec: AdapterSpec) -> Result<AdapterId, Refusal> {
        let owner = self.registrable(&spec).inspect_err(|_| self.counters.refused += 1)?;
        let image = self.config.image_pages(spec.pages);
        let Some(entry) = self.adapters.insert(spec, image, owner) else {
            self.counters.refused += 1;
            return Err(Refusal::AdapterIdsSpent { limit: i32::MAX as u32 });
        };
        self.tenants[owner].adapters += 1;
        self.adapters.pages_max = self.adapters.pages_max.max(spec.pages);
        self.allow();
        self.groups.grow_adapters(self.adapters.entries().len());
        Ok(self.adapters[entry].id)
    }

    /// The tenant that an adapter is registered for, or why it can't be.
    fn registrable(&mut self, spec: &AdapterSpec) -> Result<u32, Refusal> {
        let (adapters_max, _) = self.config.split();
        // with an adapter alone nobody is served: a page of KV comes with it
        let limit = match self.config.policy.split {
            Split::Unified => adapters_max - self.config.pinned_pages_max,
            Split::Fixed { .. } => adapters_max - self.config.pinned_pages_max + 1,
            Split::Slots { pages, .. } => pages + 1,
        };
        if spec.tag == 0 {
            return Err(Refusal::ZeroTag);
        }
        if spec.pages == 0 {
            return Err(Refusal::EmptyAdapter);
        }
        if spec.pages >= limit {
            return Err(Refusal::AdapterTooLarge { limit, pages: spec.pages.saturating_add(1) });
        }
        if spec.weight == 0 || spec.weight > WEIGHT_MAX {
            return Err(Refusal::WeightOutOfRange { limit: WEIGHT_MAX, weight: spec.weight });
        }
        if self.adapters.count() >= self.config.adapters_max {
            let adapters = self.adapters.count();
            return Err(Refusal::AdaptersFull { limit: self.config.adapters_max, adapters });
        }
        let owner = self.know_tenant(spec.tenant)?;
        let tenant = &self.tenants[owner];
        if tenant.adapters >= tenant.spec.adapters_max {
            return Err(Refusal::TenantAdaptersFull {
                limit: tenant.spec.adapters_max,
                adapters: tenant.adapters,
            });
        }
        Ok(owner)
    }

    /// Service above the floor that is still inside the share: a step in which all rows decode; and with which a tenant is
    /// still light: the longest prompt. Both of a tenant of the usual weight.
    fn allow(&mut self) {
        let (config, costs) = (&self.config, &self.config.costs);
        let row = costs.token_ns.saturating_add(costs.sample_ns);
        let rows = u64::from(config.rows_max);
        let step = row.saturating_mul(rows).saturating_add(costs.shared_ns(rows, true));
        let prompt = costs.row_ns(0, config.sequence_tokens_max, true, self.adapters.pages_max);
        self.tenants.slack = step / 100;
        self.tenants.grace = prompt.max(step) / 100;
    }

    /// Sets a tenant's share and limits. What it has above a new limit stays; what it asks for is refused or waits.
    pub fn set_tenant(&mut self, tenant: TenantId, spec: TenantSpec) -> Result<(), Refusal> {
        let entry = self.known_tenant(tenant, &spec).inspect_err(|_| self.counters.refused += 1)?;
        let capped = self.is_capped(entry);
        let present = self.is_present(entry);
        let state = &mut self.tenants[entry];
        let waits = state.groups_waiting > 0;
        let (before, after) = (u64::from(state.spec.weight), u64::from(spec.weight));
        state.spec = spec;
        if present {
            self.tenants.present_weights = self.tenants.present_weights - before + after;
        }
        if waits {
            self.tenants.weights = self.tenants.weights - before + after;
            self.tenants.peak_weights = self.tenants.peak_weights.max(self.tenants.weights);
        }
        self.go_on(entry);
        self.recap(entry, capped);
        Ok(())
    }

    fn known_tenant(&mut self, tenant: TenantId, spec: &TenantSpec) -> Result<u32, Refusal> {
        if spec.weight == 0 || spec.weight > WEIGHT_MAX {
            return Err(Refusal::WeightOutOfRange { limit: WEIGHT_MAX, weight: spec.weight });
        }
        self.know_tenant(tenant)
    }

    /// The entry of a tenant, which is made when it's new.
    fn know_tenant(&mut self, tenant: TenantId) -> Result<u32, Refusal> {
        if let Some(entry) = self.tenants.find(tenant) {
            return Ok(entry);
        }
        self.room_for_tenant()?;
        let entry = self.tenants.insert(tenant, TenantSpec::default());
        self.groups.grow_tenants(entry as usize + 1);
        self.charged_tenants
            .grow(entry as usize + 1, (self.config.rows_max + self.config.page_ins_max) as usize);
        Ok(entry)
    }

    fn room_for_tenant(&self) -> Result<(), Refusal> {
        let (limit, tenants) = (self.config.tenants_max, self.tenants.entries().len() as u32);
        if tenants >= limit {
            return Err(Refusal::TenantsFull { limit, tenants });
        }
        Ok(())
    }

    /// Takes no new requests for an adapter. Those that hold it keep it to their end; then [`Event::AdapterGone`]. An
    /// adapter that is being paged in is forgotten when the page-in was reported. Unknown adapters are ignored.
    pub fn unregister(&mut self, now: u64, adapter: AdapterId) {
        if let Some(entry) = self.adapters.find(adapter) {
            self.now = self.now.max(now);
            self.adapters[entry].standing = Standing::Draining;
            self.unwant(entry);
            self.set_pinned(entry, false);
            self.drop_unwanted_load(entry);
            self.forget_if_drained(entry);
        }
    }

    /// Keeps an adapter in its pages once it's there, and pages it in when there is room that nobody uses. Unpinned, it
    /// may be evicted again.
    pub fn pin(&mut self, now: u64, adapter: AdapterId, pinned: bool) -> Result<(), Refusal> {
        let entry = self.open_adapter(adapter).inspect_err(|_| self.counters.refused += 1)?;
        let limit = self.config.pinned_pages_max;
        let pages = self.config.image_pages(self.adapters[entry].spec.pages);
        let all = u64::from(self.adapters.pinned_pages) + u64::from(pages);
        if pinned && !self.adapters[entry].pinned && all > u64::from(limit) {
            self.counters.refused += 1;
            return Err(Refusal::PinsFull { limit, pages: all });
        }
        // one slot is left for those that aren't pinned, or they would wait for ever
        let limit = self.config.slots_max - 1;
        let adapters = self.adapters.entries().iter().filter(|adapter| adapter.pinned).count() as u32;
        if pinned && !self.adapters[entry].pinned && adapters >= limit {
            self.counters.refused += 1;
            return Err(Refusal::PinSlotsFull { limit, adapters });
        }
        self.now = self.now.max(now);
        self.set_pinned(entry, pinned);
        if pinned {
            self.want(entry);
        }
        Ok(())
    }

    /// Pages an adapter in although nobody waits for it, as soon as there is room that nobody uses.
    pub fn prewarm(&mut self, now: u64, adapter: AdapterId) -> Result<(), Refusal> {
        let entry = self.open_adapter(adapter).inspect_err(|_| self.counters.refused += 1)?;
        self.now = self.now.max(now);
        self.want(entry);
        Ok(())
    }

    fn open_adapter(&self, adapter: AdapterId) -> Result<u32, Refusal> {
        let entry = self.adapters.find(adapter).ok_or(Refusal::UnknownAdapter { adapter })?;
        match self.adapters[entry].standing {
            Standing::Open => Ok(entry),
            Standing::Draining => Err(Refusal::AdapterDraining { adapter }),
        }
    }

    fn set_pinned(&mut self, entry: u32, pinned: bool) {
        let pages = self.config.image_pages(self.adapters[entry].spec.pages);
        match (self.adapters[entry].pinned, pinned) {
            (false, true) => self.adapters.pinned_pages += pages,
            (true, false) => self.adapters.pinned_pages -= pages,
            (false, false) | (true, true) => return,
        }
        self.adapters[entry].pinned = pinned;
        self.relist(entry);
    }

    fn want(&mut self, entry: u32) {
        let wanted = &mut self.adapters[entry].wanted;
        if !std::mem::replace(wanted, true) {
            self.adapters.wanted.push(entry);
            self.ask_for(entry);
        }
    }

    fn unwant(&mut self, entry: u32) {
        if std::mem::replace(&mut self.adapters[entry].wanted, false) {
            self.adapters.wanted.retain(|&other| other != entry);
        }
    }

    /// Asks the host for an adapter's bytes, once.
    fn ask_for(&mut self, entry: u32) {
        let adapter = &mut self.adapters[entry];
        if adapter.residency == (Residency::Remote { asked: false }) {
            adapter.residency = Residency::Remote { asked: true };
            let adapter = adapter.id;
            self.tell(Event::AdapterWanted { adapter });
        }
    }

    /// Takes a request into its group's queue.
    pub fn add(&mut self, now: u64, spec: RequestSpec) -> Result<(), Refusal> {
        self.forget_absent(self.now.max(now)); // while nothing runs no step does, and bounds depend on it
        let checked =
            self.admissible(now, &spec).and_then(|adapter| Ok((self.know_tenant(spec.tenant)?, adapter)));
        let (tenant, adapter) = checked.inspect_err(|_| self.counters.refused += 1)?;
        self.now = self.now.max(now);
        let name = GroupName { tenant, adapter, priority: spec.priority };
        let group = match self.groups.find(name) {
            Some(group) => group,
            None => {
                let weight = adapter.map_or(100, |adapter| self.adapters[adapter].spec.weight);
                let floor = self.tenants[tenant].group_floor;
                let idle_max = self.config.adapters_max.saturating_add(self.config.tenants_max);
                let group = self.groups.insert(name, weight * spec.priority.weight(), floor, idle_max);
                let at_once = self.config.rows_max + self.config.page_ins_max;
                self.charged_groups.grow(self.groups.entries().len(), at_once as usize);
                group
            }
        };
        let deadline = spec.deadline;
        let story = Story {
            tier: adapter.map_or("base", |adapter| self.adapters[adapter].residency.name()),
            passed_by: self.counters.admissions,
            admitted: None,
            first_token: None,
            lacked: None,
            preemptions: 0,
            cached_tokens: 0,
        };
        let entry = self.requests.insert(spec, group, adapter, self.now, story);
        self.counters.added += 1;
        self.groups.queues.grow_elements(self.requests.entries().len());
        self.deadlines.grow_elements(self.requests.entries().len());
        if let Some(deadline) = deadline {
            self.deadlines.put(0, entry, (deadline, 0));
        }
        self.groups.hold(group);
        self.groups.queues.push_back(group, entry);
        self.waiting += 1;
        self.arrive(tenant);
        self.tenants[tenant].waiting += 1;
        if let Some(adapter) = adapter {
            let state = &mut self.adapters[adapter];
            state.holders += 1;
            state.waiting += 1;
            state.heat.touch(Epoch::of(self.now, half_life(&self.config)));
            self.ask_for(adapter);
            self.relist(adapter);
        }
        self.settle(group);
        Ok(())
    }

    /// The request's adapter, or why it can't be taken. What is refused for ever is named before what is refused for now.
    /// A refused request doesn't make its tenant known.
    fn admissible(&self, now: u64, spec: &RequestSpec) -> Result<Option<u32>, Refusal> {
        let config = &self.config;
        if self.requests.find(spec.id).is_some() {
            return Err(Refusal::DuplicateRequest { request: spec.id });
        }
        let adapter = spec.adapter.map(|adapter| self.open_adapter(adapter)).transpose()?;
        let adapter_pages =
            adapter.map_or(0, |adapter| config.image_pages(self.adapters[adapter].spec.pages));
        if spec.prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if spec.max_tokens == 0 {
            return Err(Refusal::NoTokensWanted);
        }
        let tokens = spec.prompt.len() as u64 + u64::from(spec.max_tokens);
        if tokens > u64::from(config.sequence_tokens_max) {
            return Err(Refusal::SequenceTooLong { limit: config.sequence_tokens_max, tokens });
        }
        let pages = u64::from(config.pages_for(tokens as u32));
        let (limit, needed) = match config.policy.split {
            Split::Unified => {
                (config.pages_usable() - config.pinned_pages_max, pages + u64::from(adapter_pages))
            }
            Split::Fixed { .. } | Split::Slots { .. } => (config.split().1, pages),
        };
        if needed > u64::from(limit) {
            return Err(Refusal::NeverFits { limit, pages: needed });
        }
        if spec.stop_tokens.len() > config.stop_tokens_max as usize {
            let count = spec.stop_tokens.len() as u64;
            return Err(Refusal::TooManyStopTokens { limit: config.stop_tokens_max, count });
        }
        if let Some(&token) = spec.prompt.iter().find(|&&token| token >= config.vocab) {
            return Err(Refusal::TokenOutOfRange { limit: config.vocab, token });
        }
        let now = self.now.max(now);
        if let Some(deadline) = spec.deadline.filter(|&deadline| deadline <= now) {
            return Err(Refusal::DeadlinePassed { deadline, now });
        }
        let known = self.tenants.find(spec.tenant);
        if let Some(tenant) = known.map(|entry| &self.tenants[entry]) {
            let limit = tenant.spec.pages_max;
            if pages + u64::from(adapter_pages) > u64::from(limit) {
                return Err(Refusal::TenantNeverFits { limit, pages: pages + u64::from(adapter_pages) });
            }
            if tenant.waiting >= tenant.spec.waiting_max {
                let (limit, waiting) = (tenant.spec.waiting_max, tenant.waiting);
                return Err(Refusal::TenantQueueFull { limit, waiting });
            }
        }
        if self.waiting >= config.waiting_max {
            return Err(Refusal::QueueFull { limit: config.waiting_max, waiting: self.waiting });
        }
        if known.is_none() {
            self.room_for_tenant()?;
        }
        let name = known.map(|tenant| GroupName { tenant, adapter, priority: spec.priority });
        if let Some(entry) = spec.after.and_then(|request| self.requests.find(request)) {
            let request = &self.requests[entry];
            if Some(self.groups[request.group].name) != name {
                return Err(Refusal::AfterAnother { request: request.id });
            }
        }
        self.accept_wait(name)?;
        Ok(adapter)
    }

    /// Refuses an arrival by which somebody's wait could become longer than is accepted. `None`: of a tenant that isn't
    /// known yet.
    fn accept_wait(&self, name: Option<GroupName>) -> Result<(), Refusal> {
        let limit = self.config.wait_us_max;
        let group = name.and_then(|name| self.groups.find(name));
        let new_group = group.is_none_or(|group| self.groups.waiting(group) == 0);
        if limit == 0 || !new_group {
            return Ok(());
        }
        let weight = |entry: u32| u64::from(self.tenants[entry].spec.weight);
        let (own_weight, own_groups) = match name {
            Some(name) => (weight(name.tenant), self.tenants[name.tenant].groups_waiting),
            None => (TenantSpec::default().weight.into(), 0),
        };
        let new_tenant = own_groups == 0;
        let weights = self.tenants.weights + if new_tenant { own_weight } else { 0 };
        let tenants = u64::from(self.tenants.waiting.length(0)) + u64::from(new_tenant);
        let present = self.present_with(name.map(|name| name.tenant)).max(self.tenants.peak_present);
        let bound = |groups: u32, weight: u64| {
            let pages = self.adapters.pages_max;
            self.config.bound_us(
                pages,
                groups.into(),
                weight,
                weights.max(self.tenants.peak_weights),
                tenants.max(self.tenants.peak_tenants.into()),
                present,
            )
        };
        let own = bound(own_groups + 1, own_weight);
        // a new tenant makes everybody's longer
        let others = new_tenant
            .then(|| {
                self.tenants
                    .waiting
                    .iter(0)
                    .map(|entry| bound(self.tenants[entry].groups_waiting, weight(entry)))
                    .max()
            })
            .flatten();
        let bound = own.max(others.unwrap_or(0));
        if bound > limit {
            return Err(Refusal::WaitTooLong { limit, bound });
        }
        Ok(())
    }

    /// Ends all requests whose deadline has come.
    pub(crate) fn expire(&mut self) {
        while let Some(entry) =
            self.deadlines.front(0).filter(|&entry| self.deadlines.key(entry).0 <= self.now)
        {
            self.deadlines.remove(entry);
            self.finish(entry, FinishReason::Failed { why: FailReason::Deadline });
        }
    }

    /// Ends a request, in any state; unknown ids are ignored. [`Event::Finished`] comes at once and the id is free, but
    /// what the plan in flight uses goes back at its commit, and its token is dropped.
    pub fn abort(&mut self, now: u64, request: RequestId) {
        if let Some(entry) = self.requests.find(request) {
            self.now = self.now.max(now);
            self.finish(entry, FinishReason::Aborted);
        }
    }

    /// The bytes of an adapter are on the host.
    pub fn arrived(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let entry = self.remote(adapter)?;
        self.now = self.now.max(now);
        self.adapters[entry].residency = Residency::Cold;
        self.settle_adapter(entry);
        Ok(())
    }

    /// The bytes of an adapter can't be brought to the host. Its waiting requests end with [`FailReason::Fetch`]; the next
    /// request asks again.
    pub fn fetch_failed(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let entry = self.remote(adapter)?;
        self.now = self.now.max(now);
        self.adapters[entry].residency = Residency::Remote { asked: false };
        self.unwant(entry);
        self.tell(Event::AdapterFailed { adapter });
        self.fail_waiting(entry, FailReason::Fetch);
        Ok(())
    }

    fn remote(&self, adapter: AdapterId) -> Result<u32, PageInError> {
        let entry = self.adapters.find(adapter).ok_or(PageInError::UnknownAdapter { adapter })?;
        match self.adapters[entry].residency {
            Residency::Remote { .. } => Ok(entry),
            Residency::Vacant
            | Residency::Cold
            | Residency::Loading { .. }
            | Residency::Hot { .. }
            | Residency::Failed { .. } => Err(PageInError::NotRemote { adapter }),
        }
    }

    /// So many layers of an adapter are in its pages.
    pub fn page_in_reached(&mut self, now: u64, adapter: AdapterId, reached: u32) -> Result<(), PageInError> {
        let (entry, _) = self.loading(adapter)?;
        self.now = self.now.max(now);
        let all = self.adapters[entry].spec.layers;
        if let Residency::Loading { layers, .. } = &mut self.adapters[entry].residency {
            *layers = reached.min(all).max(*layers);
        }
        Ok(())
    }

    /// The bytes of an adapter are in its pages. If nobody waits for it any more it's an idle hot adapter, or forgotten
    /// when it was unregistered.
    pub fn page_in_done(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let (entry, slot) = self.loading(adapter)?;
        self.now = self.now.max(now);
        self.adapters[entry].residency = Residency::Hot { slot, last_use: self.now };
        self.adapters.loading -= 1;
        self.tell(Event::AdapterHot { adapter, slot });
        self.discharge(entry);
        self.settle_adapter(entry);
        self.forget_if_drained(entry);
        Ok(())
    }

    /// The bytes of an adapter didn't arrive. Its waiting requests end with [`FailReason::PageIn`], its pages go back;
    /// the next request for it tries again.
    pub fn page_in_failed(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let (entry, slot) = self.loading(adapter)?;
        self.now = self.now.max(now);
        self.counters.page_ins_failed += 1;
        self.end_load(entry, slot, Residency::Failed { why: FailReason::PageIn });
        self.tell(Event::AdapterFailed { adapter });
        self.fail_waiting(entry, FailReason::PageIn);
        Ok(())
    }

    /// The host has stopped a page-in that nobody waited for. Whoever has come since gets a new one.
    pub fn page_in_dropped(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let (entry, slot) = self.loading(adapter)?;
        if !matches!(self.adapters[entry].residency, Residency::Loading { dropped: true, .. }) {
            return Err(PageInError::NotDropped { adapter });
        }
        self.now = self.now.max(now);
        self.end_load(entry, slot, Residency::Cold);
        self.settle_adapter(entry);
        self.forget_if_drained(entry);
        Ok(())
    }

    fn end_load(&mut self, entry: u32, slot: u32, residency: Residency) {
        self.discharge(entry);
        self.adapters[entry].residency = residency;
        self.adapters.loading -= 1;
        self.give_image(entry, slot);
    }

    /// Ends all waiting requests of an adapter.
    fn fail_waiting(&mut self, entry: u32, why: FailReason) {
        // holds the entry while its requests end, so that the last one doesn't forget it under our feet
        self.adapters[entry].holders += 1;
        let mut next = self.groups.of_adapter.front(entry);
        while let Some(group) = next {
            next = self.groups.of_adapter.after(group);
            while let Some(request) = self.groups.queues.front(group) {
                self.finish(request, FinishReason::Failed { why });
            }
        }
        self.adapters[entry].holders -= 1;
        self.settle_adapter(entry);
        self.forget_if_drained(entry);
    }

    /// Tells the host to stop a page-in that nobody waits for any more.
    fn drop_unwanted_load(&mut self, entry: u32) {
        let adapter = &mut self.adapters[entry];
        if adapter.waiting > 0 || adapter.wanted || adapter.pinned {
            return;
        }
        if let Residency::Loading { dropped: dropped @ false, .. } = &mut adapter.residency {
            *dropped = true;
            let adapter = adapter.id;
            self.tell(Event::AdapterDropped { adapter });
        }
    }

    fn loading(&self, adapter: AdapterId) -> Result<(u32, u32), PageInError> {
        let entry = self.adapters.find(adapter).ok_or(PageInError::UnknownAdapter { adapter })?;
        match self.adapters[entry].residency {
            Residency::Loading { slot, .. } => Ok((entry, slot)),
            Residency::Vacant
            | Residency::Remote { .. }
            | Residency::Cold
            | Residency::Hot { .. }
            | Residency::Failed { .. } => Err(PageInError::NotLoading { adapter }),
        }
    }

    /// Moves all events since the last call to the end of `into`.
    pub fn drain_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }

    /// The last events, with their time and plan, whether they were drained or not: for who asks after a fault.
    pub fn recent(&self) -> &Ring {
        &self.recent
    }

    /// Tells the host what happened: the one place where events are made.
    pub(crate) fn tell(&mut self, event: Event) {
        self.recent.push(self.now, self.counters.plans, event);
        self.events.push(event);
    }

    /// Ends a request: out of its queue, or line and pages back, or, when the plan in flight uses them, at the commit.
    pub(crate) fn finish(&mut self, entry: u32, reason: FinishReason) {
        let (request, state) = (self.requests[entry].id, self.requests[entry].state);
        if matches!(state, RequestState::Vacant | RequestState::Ending { .. }) {
            return;
        }
        match reason {
            FinishReason::Stop | FinishReason::Length => self.counters.finished += 1,
            FinishReason::Aborted => self.counters.aborted += 1,
            FinishReason::Failed { .. } => self.counters.failed += 1,
        }
        self.deadlines.remove(entry);
        self.explained.push(self.explanation(entry, Some(self.now)));
        // before its adapter can be forgotten: the last word about a request comes before that about its adapter
        self.tell(Event::Finished { request, reason });
        match state {
            RequestState::Vacant | RequestState::Ending { .. } => {}
            RequestState::Waiting | RequestState::Preempted { .. } => {
                let (group, adapter) = (self.requests[entry].group, self.requests[entry].adapter);
                let head = self.groups.queues.front(group) == Some(entry);
                self.groups.queues.remove(entry);
                self.waiting -= 1;
                self.tenants[self.groups[group].name.tenant].waiting -= 1;
                if let Some(adapter) = adapter {
                    self.adapters[adapter].waiting -= 1;
                    self.drop_unwanted_load(adapter);
                }
                if head {
                    self.stop_waiting(group); // the next one's wait at the head begins
                }
                self.close(entry);
            }
            RequestState::Running { line, planned, computed, .. } => {
                self.running.retain(|&other| other != entry);
                if planned > 0 {
                    self.requests[entry].state = RequestState::Ending { line };
                    self.requests.forget(entry);
                } else {
                    // KV that the worker couldn't compute is no use to others
                    let right = match reason {
                        FinishReason::Failed { why: FailReason::Row | FailReason::Plan } => None,
                        FinishReason::Stop
                        | FinishReason::Length
                        | FinishReason::Aborted
                        | FinishReason::Failed { .. } => Some(computed),
                    };
                    self.release(entry, line, right);
                    self.close(entry);
                }
            }
        }
    }

    /// Gives a request's entry back and lets go of its adapter.
    pub(crate) fn close(&mut self, entry: u32) {
        let (group, adapter) = (self.requests[entry].group, self.requests[entry].adapter);
        self.requests.vacate(entry);
        self.leave(self.groups[group].name.tenant);
        self.settle(group);
        self.groups.let_go(group);
        if let Some(adapter) = adapter {
            self.adapters[adapter].holders -= 1;
            self.relist(adapter);
            self.forget_if_drained(adapter);
        }
    }

    /// Forgets an unregistered adapter that nobody holds and that nothing copies into.
    fn forget_if_drained(&mut self, entry: u32) {
        let adapter = &self.adapters[entry];
        if adapter.standing != Standing::Draining || adapter.holders > 0 {
            return;
        }
        let (id, owner) = (adapter.id, adapter.owner);
        match adapter.residency {
            Residency::Vacant | Residency::Loading { .. } => return,
            Residency::Hot { slot, .. } => {
                self.adapters[entry].residency = Residency::Cold;
                self.give_image(entry, slot);
            }
            Residency::Cold | Residency::Remote { .. } | Residency::Failed { .. } => {}
        }
        self.groups.forget_adapter(entry);
        self.forget_prefixes(id.number().into());
        self.adapters.vacate(entry);
        self.tenants[owner].adapters -= 1;
        self.tell(Event::AdapterGone { adapter: id });
    }

    /// Keeps the first fault of the core itself for [`Core::check`].
    pub(crate) fn note(&mut self, result: Result<(), PoolError>) {
        if let (Err(error), None) = (result, self.fault) {
            self.fault = Some(error);
        }
    }
}

/// The time in which a use's worth halves; 0 counts as 1.
fn half_life(config: &Config) -> NonZeroU64 {
    NonZeroU64::new(config.half_life_us).unwrap_or(NonZeroU64::MIN)
}
