//! The core: its state, and the calls by which the host gives and takes work.

use lorad_blocks::pool::{Owner, Pool, PoolError};

use crate::adapter::{AdapterId, AdapterSpec, Adapters, Residency, Standing};
use crate::config::{Config, ConfigError};
use crate::error::{PageInError, Refusal};
use crate::event::{Event, FailReason, FinishReason};
use crate::group::{Groups, Place};
use crate::line::Lines;
use crate::plan::PlanLayout;
use crate::request::{RequestId, RequestSpec, RequestState, Requests};
use crate::stats::Counters;
use crate::step::Chosen;

/// The scheduler. See the crate's page for the loop around it.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) config: Config,
    pub(crate) layout: PlanLayout,
    pub(crate) pool: Pool,
    pub(crate) lines: Lines,
    pub(crate) requests: Requests,
    pub(crate) adapters: Adapters,
    pub(crate) groups: Groups,
    /// Running requests in the order of admission.
    pub(crate) running: Vec<u32>,
    /// Rows of the plan being made or in flight, in the plan's order.
    pub(crate) chosen: Vec<Chosen>,
    /// Adapters whose page-in is part of the plan being made.
    pub(crate) page_ins: Vec<u32>,
    /// Number of the plan in flight.
    pub(crate) flight: Option<u64>,
    pub(crate) events: Vec<Event>,
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
            lines: Lines::new(config.rows_max, config.cols()),
            requests: Requests::default(),
            adapters: Adapters::new(config.slots_max),
            groups: Groups::new(),
            running: Vec::with_capacity(rows),
            chosen: Vec::with_capacity(rows),
            page_ins: Vec::with_capacity(config.page_ins_max as usize),
            flight: None,
            // a step and its commit write no more than this, so that a host that drains never makes them allocate
            events: Vec::with_capacity(4 * rows + 2 * config.slots_max as usize + 64),
            counters: Counters::default(),
            waiting: 0,
            now: 0,
            fault: None,
            config,
        };
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

    /// Registers an adapter, cold. Its pages are taken when a request needs it.
    pub fn register(&mut self, spec: AdapterSpec) -> Result<AdapterId, Refusal> {
        let usable = self.config.pages_usable();
        let refusal = if spec.tag == 0 {
            Refusal::ZeroTag
        } else if spec.pages == 0 {
            Refusal::EmptyAdapter
        } else if spec.pages >= usable {
            Refusal::AdapterTooLarge { limit: usable, pages: spec.pages.saturating_add(1) }
        } else if self.adapters.count() >= self.config.adapters_max {
            Refusal::AdaptersFull { limit: self.config.adapters_max, adapters: self.adapters.count() }
        } else {
            match self.adapters.insert(spec) {
                Some(entry) => {
                    self.groups.grow(entry as usize + 2);
                    return Ok(self.adapters[entry].id);
                }
                None => Refusal::AdapterIdsSpent { limit: i32::MAX as u32 },
            }
        };
        self.counters.refused += 1;
        Err(refusal)
    }

    /// Takes no new requests for an adapter. Those that hold it keep it to their end; then [`Event::AdapterGone`]. An
    /// adapter that is being paged in is forgotten when the page-in was reported. Unknown adapters are ignored.
    pub fn unregister(&mut self, now: u64, adapter: AdapterId) {
        if let Some(entry) = self.adapters.find(adapter) {
            self.now = self.now.max(now);
            self.adapters[entry].standing = Standing::Draining;
            self.forget_if_drained(entry);
        }
    }

    /// Takes a request into its group's queue.
    pub fn add(&mut self, now: u64, spec: RequestSpec) -> Result<(), Refusal> {
        let group = self.admissible(&spec).inspect_err(|_| self.counters.refused += 1)?;
        self.now = self.now.max(now);
        let entry = self.requests.insert(spec, group, self.now);
        self.counters.added += 1;
        self.groups.queues.grow_elements(self.requests.entries().len());
        self.groups.queues.push_back(group, entry);
        self.waiting += 1;
        if let Some(adapter) = adapter_of(group) {
            self.adapters[adapter].holders += 1;
        }
        self.settle(group);
        Ok(())
    }

    /// The request's group, or why it can't be taken. What is refused for ever is named before what is refused for now.
    fn admissible(&self, spec: &RequestSpec) -> Result<u32, Refusal> {
        let config = &self.config;
        if self.requests.find(spec.id).is_some() {
            return Err(Refusal::DuplicateRequest { request: spec.id });
        }
        let (group, adapter_pages) = match spec.adapter {
            None => (0, 0),
            Some(adapter) => {
                let entry = self.adapters.find(adapter).ok_or(Refusal::UnknownAdapter { adapter })?;
                match self.adapters[entry].standing {
                    Standing::Open => (entry + 1, self.adapters[entry].spec.pages),
                    Standing::Draining => return Err(Refusal::AdapterDraining { adapter }),
                }
            }
        };
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
        let pages = u64::from(config.pages_for(tokens as u32)) + u64::from(adapter_pages);
        if pages > u64::from(config.pages_usable()) {
            return Err(Refusal::NeverFits { limit: config.pages_usable(), pages });
        }
        if spec.stop_tokens.len() > config.stop_tokens_max as usize {
            let count = spec.stop_tokens.len() as u64;
            return Err(Refusal::TooManyStopTokens { limit: config.stop_tokens_max, count });
        }
        if let Some(&token) = spec.prompt.iter().find(|&&token| token >= config.vocab) {
            return Err(Refusal::TokenOutOfRange { limit: config.vocab, token });
        }
        if self.waiting >= config.waiting_max {
            return Err(Refusal::QueueFull { limit: config.waiting_max, waiting: self.waiting });
        }
        Ok(group)
    }

    /// Ends a request, in any state; unknown ids are ignored. [`Event::Finished`] comes at once and the id is free, but
    /// what the plan in flight uses goes back at its commit, and its token is dropped.
    pub fn abort(&mut self, now: u64, request: RequestId) {
        if let Some(entry) = self.requests.find(request) {
            self.now = self.now.max(now);
            self.finish(entry, FinishReason::Aborted);
        }
    }

    /// The bytes of an adapter are in its pages. If nobody waits for it any more it's an idle hot adapter, or forgotten
    /// when it was unregistered.
    pub fn page_in_done(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let (entry, slot) = self.loading(adapter)?;
        self.now = self.now.max(now);
        self.adapters[entry].residency = Residency::Hot { slot, last_use: self.now };
        self.adapters.loading -= 1;
        self.events.push(Event::AdapterHot { adapter, slot });
        self.relist(entry);
        self.settle(entry + 1);
        self.forget_if_drained(entry);
        Ok(())
    }

    /// The bytes of an adapter didn't arrive. Its waiting requests end with [`FailReason::PageIn`], its pages go back;
    /// the next request for it tries again.
    pub fn page_in_failed(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let (entry, slot) = self.loading(adapter)?;
        self.now = self.now.max(now);
        self.adapters[entry].residency = Residency::Failed { why: FailReason::PageIn };
        self.adapters.loading -= 1;
        self.counters.page_ins_failed += 1;
        self.give_image(entry, slot);
        self.events.push(Event::AdapterFailed { adapter });
        // holds the entry while its requests end, so that the last one doesn't forget it under our feet
        self.adapters[entry].holders += 1;
        while let Some(request) = self.groups.queues.front(entry + 1) {
            self.finish(request, FinishReason::Failed { why: FailReason::PageIn });
        }
        self.adapters[entry].holders -= 1;
        self.forget_if_drained(entry);
        Ok(())
    }

    fn loading(&self, adapter: AdapterId) -> Result<(u32, u32), PageInError> {
        let entry = self.adapters.find(adapter).ok_or(PageInError::UnknownAdapter { adapter })?;
        match self.adapters[entry].residency {
            Residency::Loading { slot, .. } => Ok((entry, slot)),
            Residency::Vacant | Residency::Cold | Residency::Hot { .. } | Residency::Failed { .. } => {
                Err(PageInError::NotLoading { adapter })
            }
        }
    }

    /// Moves all events since the last call to the end of `into`.
    pub fn drain_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
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
        // before its adapter can be forgotten: the last word about a request comes before that about its adapter
        self.events.push(Event::Finished { request, reason });
        match state {
            RequestState::Vacant | RequestState::Ending { .. } => {}
            RequestState::Waiting | RequestState::Preempted => {
                self.groups.queues.remove(entry);
                self.waiting -= 1;
                self.close(entry);
            }
            RequestState::Running { line, planned, .. } => {
                self.running.retain(|&other| other != entry);
                if planned > 0 {
                    self.requests[entry].state = RequestState::Ending { line };
                    self.requests.forget(entry);
                } else {
                    self.release(entry, line);
                    self.close(entry);
                }
            }
        }
    }

    /// Gives a request's entry back and lets go of its adapter.
    pub(crate) fn close(&mut self, entry: u32) {
        let group = self.requests[entry].group;
        self.requests.vacate(entry);
        self.settle(group);
        if let Some(adapter) = adapter_of(group) {
            self.adapters[adapter].holders -= 1;
            self.relist(adapter);
            self.forget_if_drained(adapter);
        }
    }

    /// Puts a group where it belongs: the one place that decides it.
    pub(crate) fn settle(&mut self, group: u32) {
        let Some(head) = self.groups.queues.front(group) else {
            self.groups.take_out(group);
            self.groups.settle_ticket(group);
            if let Some(adapter) = adapter_of(group) {
                self.relist(adapter);
            }
            return;
        };
        let found = self.groups.place(group);
        let preempted = self.requests[head].state == RequestState::Preempted;
        let target = match adapter_of(group).map(|adapter| self.adapters[adapter].residency) {
            Some(Residency::Loading { .. }) => None,
            _ if preempted => Some(Place::Resume),
            None | Some(Residency::Hot { .. }) if found == Some(Place::Warm) => Some(Place::Warm),
            None | Some(Residency::Hot { .. }) => Some(Place::Ready),
            Some(Residency::Vacant | Residency::Cold | Residency::Failed { .. }) => Some(Place::Cold),
        };
        if target != found {
            match target {
                Some(place) => self.groups.put(group, place),
                None => self.groups.take_out(group),
            }
        }
        if let Some(adapter) = adapter_of(group) {
            self.relist(adapter);
        }
    }

    /// Puts an adapter into the evictable list where it belongs now.
    pub(crate) fn relist(&mut self, entry: u32) {
        self.adapters.relist(entry, self.groups.waiting(entry + 1));
    }

    /// Forgets an unregistered adapter that nobody holds and that nothing copies into.
    fn forget_if_drained(&mut self, entry: u32) {
        let adapter = &self.adapters[entry];
        if adapter.standing != Standing::Draining || adapter.holders > 0 {
            return;
        }
        let id = adapter.id;
        match adapter.residency {
            Residency::Vacant | Residency::Loading { .. } => return,
            Residency::Hot { slot, .. } => {
                self.adapters[entry].residency = Residency::Cold;
                self.give_image(entry, slot);
            }
            Residency::Cold | Residency::Failed { .. } => {}
        }
        self.adapters.vacate(entry);
        self.events.push(Event::AdapterGone { adapter: id });
    }

    /// Keeps the first fault of the core itself for [`Core::check`].
    pub(crate) fn note(&mut self, result: Result<(), PoolError>) {
        if let (Err(error), None) = (result, self.fault) {
            self.fault = Some(error);
        }
    }
}

/// The adapter's entry of a group.
pub(crate) fn adapter_of(group: u32) -> Option<u32> {
    group.checked_sub(1)
}
