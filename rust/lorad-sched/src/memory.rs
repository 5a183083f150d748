//! Getting pages: eviction of idle adapters, preemption of rows, and giving both back.

use lorad_blocks::heat::Worth;
use lorad_blocks::pool::{Owner, OwnerKind};
use lorad_blocks::prefix::NodeId;

use crate::adapter::{Residency, IDLE, RESTED};
use crate::core::Core;
use crate::event::Event;
use crate::policy::{Eviction, Split};
use crate::request::RequestState;

/// Which adapters may be evicted. Nobody evicts an adapter that a row uses, that is being paged in or that is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those that nobody waits for. If one waiting group could evict another's, two could do so for ever.
    Idle,
    /// Also those that somebody waits for, but for those of urgent groups: for growing rows, which yield a token in return.
    All,
    /// Also those that somebody waits for, but for those of the urgent groups before this one, which keep what they take
    /// until their head is admitted.
    Urgent(usize),
}

/// What can be evicted.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// A hot adapter.
    Adapter(u32),
    /// A page of the prefix cache.
    Prefix(NodeId),
}

/// What pages are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// KV of a sequence.
    Sequence,
    /// An adapter's image.
    Adapter,
}

impl Core {
    /// Pages that could be had. `own` is the adapter of whoever asks: it isn't evicted.
    pub(crate) fn available(&self, purpose: Use, reach: Reach, own: Option<u32>) -> u32 {
        let (adapters_max, sequences_max) = self.config.split();
        let held = |kind| self.pool.count(kind);
        match (self.config.policy.split, purpose) {
            (Split::Unified, _) => {
                self.pool.free() + self.evictable_pages(reach, own) + self.prefix.evictable_pages()
            }
            (_, Use::Sequence) => {
                let kv = held(OwnerKind::Sequence) + held(OwnerKind::Cached);
                sequences_max.saturating_sub(kv) + self.prefix.evictable_pages()
            }
            (_, Use::Adapter) => {
                adapters_max.saturating_sub(held(OwnerKind::Adapter)) + self.evictable_pages(reach, own)
            }
        }
    }

    fn evictable_pages(&self, reach: Reach, own: Option<u32>) -> u32 {
        let [idle, rested] = self.adapters.evictable_pages;
        let before = match reach {
            Reach::Idle => return idle,
            Reach::All => self.groups.urgent.len(),
            Reach::Urgent(index) => index,
        };
        // an adapter that somebody waits for can only rest
        let pages = |adapter: u32| match self.adapters.evictable.heap_of(adapter) {
            Some(RESTED) => self.adapters[adapter].image.len() as u32,
            Some(_) | None => 0,
        };
        let keepers = &self.groups.urgent[..before.min(self.groups.urgent.len())];
        let adapter_of = |group: &u32| self.groups[*group].name.adapter;
        let mut kept = own.map_or(0, pages);
        for (index, group) in keepers.iter().enumerate() {
            let adapter = adapter_of(group);
            let counted =
                adapter == own || keepers.iter().take(index).any(|other| adapter_of(other) == adapter);
            kept += adapter.filter(|_| !counted).map_or(0, pages);
        }
        idle + rested - kept
    }

    /// The adapter that would be evicted next. Kept ones are few: as many as there are urgent groups.
    pub(crate) fn next_evicted(&self, reach: Reach, own: Option<u32>) -> Option<u32> {
        let heaps = &self.adapters.evictable;
        if let Some(idle) = heaps.front(IDLE) {
            return Some(idle);
        }
        let before = match reach {
            Reach::Idle => return None,
            Reach::All => self.groups.urgent.len(),
            Reach::Urgent(index) => index,
        };
        let keepers = &self.groups.urgent[..before.min(self.groups.urgent.len())];
        let is_kept = |adapter: u32| {
            Some(adapter) == own
                || keepers.iter().any(|&group| self.groups[group].name.adapter == Some(adapter))
        };
        let front = heaps.front(RESTED)?;
        if !is_kept(front) {
            return Some(front);
        }
        let others = heaps.iter(RESTED).filter(|&adapter| !is_kept(adapter));
        others.min_by_key(|&adapter| (heaps.key(adapter), adapter))
    }

    /// What would be evicted next for a purpose: of the adapters that nobody waits for and the cached prefixes the one worth
    /// least, then adapters that somebody waits for.
    fn next_victim(&self, purpose: Use, reach: Reach, own: Option<u32>) -> Option<Victim> {
        let unified = self.config.policy.split == Split::Unified;
        let ns_per_token = self.config.costs.token_ns as f64 * self.reuse_rate();
        let prefix = self.prefix.next_evicted(ns_per_token).filter(|_| unified || purpose == Use::Sequence);
        let adapters = unified || purpose == Use::Adapter;
        let idle = self.adapters.evictable.front(IDLE).filter(|_| adapters);
        match (idle, prefix) {
            (Some(adapter), Some(page)) => {
                let first = match self.config.policy.eviction {
                    Eviction::Cost => self.worth(adapter) <= page.worth,
                    Eviction::Lru => self.adapters.evictable.key(adapter).0 <= page.used_us,
                };
                Some(if first { Victim::Adapter(adapter) } else { Victim::Prefix(page.node) })
            }
            (None, Some(page)) => Some(Victim::Prefix(page.node)),
            (_, None) if adapters => self.next_evicted(reach, own).map(Victim::Adapter),
            (_, None) => None,
        }
    }

    /// The chance that a cached page is used again, from those so far: a new page counts as one use, as does each use of an
    /// adapter.
    fn reuse_rate(&self) -> f64 {
        let used = self.counters.prefix_tokens / u64::from(self.config.page_tokens);
        ((used + 1) as f64 / (self.counters.prefix_pages + 8) as f64).min(1.0)
    }

    /// Evicts until `pages` are free; says whether they are. Evicts nothing if they can't be.
    pub(crate) fn secure(&mut self, purpose: Use, pages: u32, reach: Reach, own: Option<u32>) -> bool {
        if self.available(purpose, reach, own) < pages {
            return false;
        }
        let (adapters_max, sequences_max) = self.config.split();
        let lacking = |core: &Self| match (core.config.policy.split, purpose) {
            (Split::Unified, _) => core.pool.free() < pages,
            (_, Use::Sequence) => {
                sequences_max
                    < core.pool.count(OwnerKind::Sequence) + core.pool.count(OwnerKind::Cached) + pages
            }
            (_, Use::Adapter) => adapters_max < core.pool.count(OwnerKind::Adapter) + pages,
        };
        while lacking(self) {
            match self.next_victim(purpose, reach, own) {
                Some(Victim::Adapter(adapter)) => self.evict(adapter),
                Some(Victim::Prefix(node)) => {
                    let Ok(page) = self.prefix.evict(node) else { return false };
                    let given = self.pool.give(page, Owner::Cached);
                    self.note(given);
                    self.counters.prefix_evictions += 1;
                }
                None => return false,
            }
        }
        true
    }

    /// Takes slot and pages from a hot adapter that no row uses.
    pub(crate) fn evict(&mut self, entry: u32) {
        let Residency::Hot { slot, .. } = self.adapters[entry].residency else { return };
        self.adapters[entry].residency = Residency::Cold;
        self.give_image(entry, slot);
        self.counters.evictions += 1;
        self.counters.evicted_pages += u64::from(self.adapters[entry].spec.pages);
        self.tell(Event::AdapterEvicted { adapter: self.adapters[entry].id });
        self.settle_adapter(entry);
    }

    /// Puts all groups of an adapter where they belong, after its residency changed.
    pub(crate) fn settle_adapter(&mut self, adapter: u32) {
        let mut next = self.groups.of_adapter.front(adapter);
        while let Some(group) = next {
            next = self.groups.of_adapter.after(group);
            self.settle(group);
        }
        self.relist(adapter);
    }

    /// What a page of an adapter is worth: its uses × the time to bring it back.
    fn worth(&self, entry: u32) -> Worth {
        let adapter = &self.adapters[entry];
        let pages = self.config.image_pages(adapter.spec.pages).max(1);
        adapter.heat.worth(self.config.costs.page_in_ns(adapter.spec.pages) as f64 / f64::from(pages))
    }

    /// Puts an adapter into the evictable heap where it belongs now.
    pub(crate) fn relist(&mut self, entry: u32) {
        let adapter = &self.adapters[entry];
        let key = match (self.config.policy.eviction, adapter.residency) {
            (Eviction::Lru, Residency::Hot { last_use, .. }) => (last_use, u64::from(entry)),
            (Eviction::Cost, Residency::Hot { .. }) => self.worth(entry).key(),
            (Eviction::Cost | Eviction::Lru, _) => (0, 0),
        };
        self.adapters.relist(entry, key);
    }

    /// Gives an adapter's pages and slot back; its residency already says that it has none.
    pub(crate) fn give_image(&mut self, entry: u32, slot: u32) {
        self.relist(entry); // while the image still has its length: the list counts pages
        let mut image = std::mem::take(&mut self.adapters[entry].image);
        for (part, page) in image.drain(..).enumerate().rev() {
            let given = self.pool.give(page, Owner::Adapter { adapter: entry, part: part as u32 });
            self.note(given);
        }
        self.adapters[entry].image = image;
        self.adapters.give_slot(slot);
    }

    /// Gives line and pages of a request back, and its adapter the row. `computed`: tokens whose KV is right, where the last
    /// page may be kept for others.
    pub(crate) fn release(&mut self, entry: u32, line: u32, computed: Option<u32>) {
        let (group, adapter) = (self.requests[entry].group, self.requests[entry].adapter);
        let tenant = self.groups[group].name.tenant;
        let capped = self.is_capped(tenant);
        let pages = self.lines.length(line);
        let (cached, node) = self.lines.cached(line);
        let tail = computed.is_some_and(|computed| self.keep_tail(entry, line, computed));
        for col in (cached + u32::from(tail)..pages).rev() {
            let given = self.pool.give(self.lines.pages(line)[col as usize], Owner::Sequence { line, col });
            self.note(given);
        }
        if let Some(node) = node {
            self.release_node(node);
        }
        self.lines.give(line);
        self.tenants[tenant].running -= 1;
        self.tenants[tenant].pages -= pages;
        if let Some(adapter) = adapter {
            let now = self.now;
            let state = &mut self.adapters[adapter];
            state.running -= 1;
            if let Residency::Hot { last_use, .. } = &mut state.residency {
                *last_use = now;
            }
            if state.running == 0 {
                self.adapters.active -= 1;
                self.discharge(adapter);
            }
            self.relist(adapter);
        }
        self.go_on(tenant);
        self.recap(tenant, capped);
    }

    /// An adapter begins to count among its owner's pages: it loads, or has its first row.
    pub(crate) fn encharge(&mut self, adapter: u32) {
        let (owner, pages) = (self.adapters[adapter].owner, self.adapters[adapter].image.len() as u32);
        let capped = self.is_capped(owner);
        self.tenants[owner].pages += pages;
        self.recap(owner, capped);
    }

    /// An adapter no longer counts among its owner's pages.
    pub(crate) fn discharge(&mut self, adapter: u32) {
        let (owner, pages) = (self.adapters[adapter].owner, self.adapters[adapter].image.len() as u32);
        let capped = self.is_capped(owner);
        self.tenants[owner].pages -= pages;
        self.go_on(owner);
        self.recap(owner, capped);
    }

    /// Adds a free page to a line; the caller has secured it.
    pub(crate) fn push_page(&mut self, line: u32, tenant: u32) {
        let col = self.lines.length(line);
        match self.pool.take(Owner::Sequence { line, col }) {
            Ok(page) => {
                self.lines.push(line, page);
                self.tenants[tenant].pages += 1;
            }
            Err(error) => self.note(Err(error)),
        }
    }

    /// Sees to it that every running row has pages for all its known tokens, before any row is put into the plan. Rows
    /// are preempted where nothing can be evicted; a row that is itself the victim waits. `false`: that waits for the commit
    /// of the plan in flight.
    pub(crate) fn grow_rows(&mut self) -> bool {
        let (mut index, mut growing, preemptions) = (0, 0, self.counters.preemptions);
        while let Some(&entry) = self.running.get(index) {
            let request = &self.requests[entry];
            let RequestState::Running { line, .. } = request.state else { return true };
            let group = request.group;
            let pages = self.lines.length(line);
            if self.config.pages_hold(pages, request.extent()) {
                growing += u32::from(!self.config.pages_hold(pages, request.length_max));
                index += 1;
            } else if self.secure(Use::Sequence, 1, Reach::All, None) {
                let tenant = self.groups[group].name.tenant;
                let capped = self.is_capped(tenant);
                self.push_page(line, tenant);
                self.recap(tenant, capped);
            } else if self.flights.any() {
                return false;
            } else if let Some(victim) = self.least_work_lost(|_| true) {
                let position = self.running.iter().position(|&other| other == victim);
                index -= usize::from(position.is_some_and(|position| position < index));
                self.preempt(victim, true);
            }
        }
        if self.counters.preemptions != preemptions {
            // some that were counted are gone
            growing = self.growing_rows();
        }
        self.headroom = growing;
        true
    }

    /// Running rows that may need another page before their end.
    pub(crate) fn growing_rows(&self) -> u32 {
        self.running.iter().filter(|&&entry| self.will_grow(entry)).count() as u32
    }

    /// May a running row need another page before its end?
    pub(crate) fn will_grow(&self, entry: u32) -> bool {
        let request = &self.requests[entry];
        match request.state {
            RequestState::Running { line, .. } => {
                !self.config.pages_hold(self.lines.length(line), request.length_max)
            }
            RequestState::Vacant
            | RequestState::Waiting
            | RequestState::Preempted { .. }
            | RequestState::Ending { .. } => false,
        }
    }

    /// The running request whose recomputation costs least, of those that may be preempted; of equals the one admitted
    /// last.
    pub(crate) fn least_work_lost(&self, may: impl Fn(u32) -> bool) -> Option<u32> {
        let may = self.running.iter().rev().copied().filter(|&entry| may(entry));
        may.min_by_key(|&entry| match self.requests[entry].state {
            RequestState::Running { computed, .. } => computed,
            RequestState::Vacant
            | RequestState::Waiting
            | RequestState::Preempted { .. }
            | RequestState::Ending { .. } => u32::MAX,
        })
    }

    /// Takes line and pages from a running request; it goes back to the head of its queue, with its tokens. `starved`:
    /// for want of pages, not to make way.
    pub(crate) fn preempt(&mut self, entry: u32, starved: bool) {
        let RequestState::Running { line, computed, .. } = self.requests[entry].state else { return };
        let (group, adapter) = (self.requests[entry].group, self.requests[entry].adapter);
        let counted = u32::from(self.will_grow(entry));
        self.headroom = self.headroom.saturating_sub(counted);
        self.running.retain(|&other| other != entry);
        self.requests[entry].state = RequestState::Preempted { starved };
        self.requests[entry].story.preemptions += 1;
        self.groups.queues.push_front(group, entry);
        self.waiting += 1;
        self.tenants[self.groups[group].name.tenant].waiting += 1;
        if let Some(adapter) = adapter {
            self.adapters[adapter].waiting += 1;
        }
        self.release(entry, line, Some(computed));
        self.settle(group);
        self.counters.preemptions += 1;
        self.tell(Event::Preempted { request: self.requests[entry].id });
    }
}
