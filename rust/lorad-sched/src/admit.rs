//! Admission: which waiting requests get a row, which cold adapters get a page-in.
//!
//! Order: urgent groups, each with as much of its queue as fits; requests that gave up their pages; ready groups; page-ins
//! of cold ones; page-ins that nobody waits for. What an urgent group waits to use is kept from the others, and as long
//! as it lacks something, nobody else is admitted. A group that can't go on is passed over.

use lorad_blocks::pool::Owner;

use crate::adapter::Residency;
use crate::core::Core;
use crate::event::Event;
use crate::group::{Group, Place};
use crate::memory::{Reach, Use};
use crate::policy::{Order, Split};
use crate::request::RequestState;
use crate::reuse::Found;
use crate::share::Budget;

/// Groups of one place that one step passes over before it looks no further.
pub(crate) const TRIES: usize = 8;

/// What a waiting head lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// A line.
    Line,
    /// Pages for its KV or its adapter.
    Pages,
    /// A slot of the device table.
    Slot,
    /// Too many page-ins run.
    PageIn,
    /// Too many distinct adapters run.
    Place,
    /// Its tenant has as much as it may.
    Tenant,
    /// The request that it comes after has its prompt to compute. That one runs: it's of the same group and was before it.
    Prompt,
}

impl Lack {
    /// A stable name.
    pub fn name(self) -> &'static str {
        match self {
            Lack::Line => "line",
            Lack::Pages => "pages",
            Lack::Slot => "slot",
            Lack::PageIn => "page_in",
            Lack::Place => "place",
            Lack::Tenant => "tenant_limit",
            Lack::Prompt => "prompt",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The head runs; its first tokens are in the plan.
    Admitted,
    /// The adapter's page-in is in the plan, or was before: the group waits for it.
    Loading,
    /// The plan has no room for another token.
    Full,
    /// Its tenant has had its part of the step's tokens.
    Served,
    /// Passed over.
    Lacks(Lack),
}

/// What is kept for urgent groups that wait for their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    pub lines: u32,
    pub pages: u32,
    /// An urgent group lacks a line: only light tenants come in, on lines that are reserved.
    pub closed: bool,
}

impl Kept {
    /// A line and pages for one more group.
    pub fn add(&mut self, pages: u32) {
        self.lines += 1;
        self.pages += pages;
    }
}

impl Core {
    pub(crate) fn admit(&mut self, budget: &mut Budget) {
        self.admit_pass(budget);
        while self.chosen.is_empty() && self.page_ins.is_empty() && self.elect_stuck() {
            self.admit_pass(budget);
            if self.chosen.is_empty() && self.page_ins.is_empty() && self.adapters.loading == 0 {
                return; // a fault of the core: check() tells
            }
        }
    }

    /// Admits tenants that come before those whose prompts are in progress, so that these don't take all the tokens. `first`:
    /// whether the tenant of the first prompt isn't light, and its service.
    pub(crate) fn admit_before(&mut self, first: (bool, u64), budget: &mut Budget) {
        let before =
            |core: &Self| core.tenants.ready.front(0).is_some_and(|tenant| core.turn_of(tenant) < first);
        if !before(self) {
            return;
        }
        let Some(kept) = self.admit_urgent(budget) else { return };
        if kept.closed || self.admit_starved(budget, kept) {
            self.admit_in_turn(&[Place::Ready], Reach::Idle, budget, kept, before);
        }
    }

    /// Orders tenants with prompts: light ones first where a step is shared, then by service.
    pub(crate) fn turn_of(&self, tenant: u32) -> (bool, u64) {
        (self.is_shared() && !self.is_light(tenant), self.tenants[tenant].service)
    }

    fn admit_pass(&mut self, budget: &mut Budget) {
        let Some(kept) = self.admit_urgent(budget) else { return };
        if kept.closed {
            return self.admit_in_turn(&[Place::Ready], Reach::Idle, budget, kept, |_| true);
        }
        if !self.admit_starved(budget, kept) {
            return;
        }
        match self.config.policy.order {
            Order::Fair | Order::Affinity => {
                self.admit_in_turn(&[Place::Ready], Reach::Idle, budget, kept, |_| true);
                self.admit_in_turn(&[Place::Cold], Reach::Idle, budget, kept, |_| true);
            }
            Order::Arrival => {
                let places = [Place::Ready, Place::Cold];
                self.admit_in_turn(&places, Reach::All, budget, kept, |_| true);
            }
        }
        self.load_wanted(kept);
    }

    /// Admits urgent groups in their order. What those that load will need is kept; `None` when one lacks something, so
    /// that nobody else may come.
    fn admit_urgent(&mut self, budget: &mut Budget) -> Option<Kept> {
        let (mut kept, mut index) = (Kept::default(), 0);
        loop {
            // an admission that brings its tenant to a limit takes the tenant's other groups out of the list
            index = index.min(self.groups.urgent.len());
            if index == self.groups.urgent.len() && !self.elect() {
                return Some(kept);
            }
            let (group, length) = (self.groups.urgent[index], self.groups.urgent.len());
            match self.try_head(group, Reach::Urgent(index), kept, budget) {
                // out of the list now; as much of its queue as fits comes along, so that its page-in pays
                Outcome::Admitted => {
                    self.admit_along(group, kept, budget);
                    // its tenant came to a limit: groups before it may have left the list as well
                    if self.groups.urgent.len() + 1 != length {
                        (kept, index) = (Kept::default(), 0);
                    }
                }
                // the page-in brought its tenant to a limit: as above
                Outcome::Loading if self.groups.urgent.get(index) != Some(&group) => {
                    (kept, index) = (Kept::default(), 0);
                }
                // an adapter is drained for it meanwhile
                Outcome::Loading | Outcome::Lacks(Lack::PageIn | Lack::Slot | Lack::Place) => {
                    kept.add(self.pages_needed(group));
                    index += 1;
                }
                // its own tenant's limits or group keep it waiting: nobody else makes way for that
                Outcome::Lacks(Lack::Tenant) => self.hold_up(group),
                Outcome::Lacks(Lack::Prompt) => index += 1,
                Outcome::Lacks(Lack::Line) if self.lines.free() > kept.lines => {
                    kept.pages += self.pages_needed(group);
                    kept.closed = true;
                    return Some(kept);
                }
                Outcome::Full | Outcome::Served | Outcome::Lacks(Lack::Line | Lack::Pages) => return None,
            }
        }
    }

    fn admit_along(&mut self, group: u32, kept: Kept, budget: &mut Budget) {
        while !self.groups[group].urgent
            && self.groups.place(group) == Some(Place::Ready)
            && self.try_head(group, Reach::Idle, kept, budget) == Outcome::Admitted
        {}
    }

    /// Requests that gave up their pages come back before others come.
    fn admit_starved(&mut self, budget: &mut Budget, kept: Kept) -> bool {
        while let Some(group) = self.groups.front_resume() {
            match self.try_head(group, Reach::Idle, kept, budget) {
                Outcome::Admitted | Outcome::Loading => {}
                Outcome::Full | Outcome::Served | Outcome::Lacks(_) => return false,
            }
        }
        true
    }

    /// Admits groups of some places in the policy's order until nothing is left to give, as long as it may go on.
    fn admit_in_turn(
        &mut self,
        places: &[Place],
        reach: Reach,
        budget: &mut Budget,
        kept: Kept,
        goes_on: impl Fn(&Self) -> bool,
    ) {
        while let Some(group) = self
            .next_in_turn(places)
            .filter(|_| self.passed.len() + self.served.len() < TRIES && goes_on(self))
        {
            let Group { name, service, .. } = self.groups[group];
            match self.try_head(group, reach, kept, budget) {
                Outcome::Admitted => {
                    let floor = &mut self.tenants[name.tenant].group_floor;
                    *floor = (*floor).max(service);
                }
                Outcome::Loading => {}
                Outcome::Full => break,
                // lines that are free are reserved
                Outcome::Lacks(Lack::Line) if self.lines.free() <= kept.lines => break,
                // nor has another of its groups
                Outcome::Served | Outcome::Lacks(Lack::Line) => {
                    self.served.push(name.tenant);
                    self.tenants.ready.remove(name.tenant);
                    self.tenants.cold.remove(name.tenant);
                }
                Outcome::Lacks(lack) => {
                    self.passed.push(group);
                    self.groups.take_out(group);
                    self.place_tenant(self.groups[group].name.tenant);
                    // of these none of the others has one either
                    let nobody = match lack {
                        Lack::PageIn | Lack::Slot => places == [Place::Cold],
                        Lack::Line | Lack::Pages | Lack::Place | Lack::Tenant | Lack::Prompt => false,
                    };
                    if nobody {
                        break;
                    }
                }
            }
        }
        while let Some(group) = self.passed.pop() {
            self.settle(group);
        }
        while let Some(tenant) = self.served.pop() {
            self.place_tenant(tenant);
        }
    }

    fn next_in_turn(&self, places: &[Place]) -> Option<u32> {
        let front = |place: &Place| {
            let tenants = match place {
                Place::Ready => &self.tenants.ready,
                Place::Cold => &self.tenants.cold,
                Place::Resume => return None,
            };
            let tenant = tenants.front(0)?;
            Some((tenants.key(tenant), self.groups.front(tenant, *place)?.0))
        };
        places.iter().filter_map(front).min().map(|(_, group)| group)
    }

    /// Short page-ins for requests that would run at once if their adapters were there. Whether there are any: then they're all
    /// of this plan.
    pub(crate) fn page_in_first(&mut self) -> bool {
        let others = !self.groups.urgent.is_empty() || self.groups.front_resume().is_some();
        if others || !self.had_rows || self.adapters.loading > 0 || self.config.policy.order == Order::Arrival
        {
            return false;
        }
        let within = self.config.page_in_first_us.saturating_mul(1000);
        let (mut ns, mut budget) = (0u64, Budget::new(&self.config));
        let places = self.config.adapters_step_max.saturating_sub(self.adapters.active);
        while self.page_ins.len() < self.lines.free().min(places) as usize {
            let Some(group) = self.next_in_turn(&[Place::Cold]) else { break };
            let Some(adapter) = self.groups[group].name.adapter else { break };
            ns = ns.saturating_add(self.config.costs.page_in_ns(self.adapters[adapter].spec.pages));
            if ns > within
                || self.try_head(group, Reach::Idle, Kept::default(), &mut budget) != Outcome::Loading
            {
                break;
            }
        }
        !self.page_ins.is_empty()
    }

    /// Pages adapters in that the host wants although nobody waits, where there is room that nobody uses.
    fn load_wanted(&mut self, kept: Kept) {
        while let Some(&adapter) = self.adapters.wanted.first() {
            let cold = matches!(self.adapters[adapter].residency, Residency::Cold | Residency::Failed { .. });
            if cold && self.lack_of_load(adapter, 0, Reach::Idle, kept).is_some() {
                return;
            }
            if cold {
                self.load(adapter, Reach::Idle);
            }
            self.adapters[adapter].wanted = false;
            self.adapters.wanted.remove(0);
        }
    }

    /// What the head of a group finds in the prefix cache when it can run or its page-in can begin, or runs; else what it
    /// lacks.
    pub(crate) fn look_at(&self, group: u32, reach: Reach, kept: Kept) -> Result<Found, Lack> {
        let Some(head) = self.groups.queues.front(group) else { return Err(Lack::Place) };
        let name = self.groups[group].name;
        let pages = self.config.pages_for(self.requests[head].length());
        if self.lacks_room(group, head) {
            return Err(Lack::Tenant);
        }
        if self.requests[head].after.and_then(|first| self.requests.find(first)).is_some_and(|first| {
            let first = &self.requests[first];
            matches!(first.state, RequestState::Running { computed, .. } if computed < first.prompt_length)
        }) {
            return Err(Lack::Prompt);
        }
        if kept.closed && (self.let_in >= self.config.rows_reserved || !self.is_light(name.tenant)) {
            return Err(Lack::Line);
        }
        if let Some(adapter) = name.adapter {
            match self.adapters[adapter].residency {
                Residency::Hot { .. } => {
                    if self.drained == Some(adapter) && !self.groups[group].urgent {
                        return Err(Lack::Place);
                    }
                    let another = self.adapters[adapter].running == 0;
                    if another && self.adapters.active >= self.config.adapters_step_max {
                        return Err(Lack::Place);
                    }
                }
                Residency::Loading { .. } => return Ok(Found::default()),
                Residency::Cold | Residency::Failed { .. } => {
                    let lack = self.lack_of_load(adapter, pages, reach, kept);
                    return lack.map_or(Ok(Found::default()), Err);
                }
                Residency::Vacant | Residency::Remote { .. } => return Err(Lack::Place),
            }
        }
        let shared = self.tenants.present > 1 && !self.is_below_share(name.tenant);
        let reserved = if shared { self.config.rows_reserved } else { 0 };
        if self.lines.free() <= kept.lines + reserved {
            return Err(Lack::Line);
        }
        let found = self.find_prefix(head);
        let available = self.available(Use::Sequence, reach, name.adapter);
        let headroom = if matches!(reach, Reach::Urgent(_)) { self.headroom } else { 0 };
        let kept = kept.pages + headroom;
        let fits = |found: &Found| available >= pages - found.matched.pages + found.idle + kept;
        let fitting = [found, self.without_source(found)].into_iter().find(fits);
        fitting.ok_or(Lack::Pages)
    }

    /// Has its tenant as much as it may beside this head?
    pub(crate) fn lacks_room(&self, group: u32, head: u32) -> bool {
        let tenant = &self.tenants[self.groups[group].name.tenant];
        let pages = self.config.pages_for(self.requests[head].length());
        let room = tenant.spec.pages_max.saturating_sub(tenant.pages);
        tenant.running >= tenant.spec.running_max || (tenant.running > 0 && pages > room)
    }

    /// What a page-in lacks. Counts the pages of the request that waits for it too: an adapter without room for its
    /// request is no help.
    fn lack_of_load(&self, adapter: u32, request_pages: u32, reach: Reach, kept: Kept) -> Option<Lack> {
        let own = Some(adapter);
        let pages = self.config.image_pages(self.adapters[adapter].spec.pages);
        if self.adapters.loading >= self.config.page_ins_max {
            return Some(Lack::PageIn);
        }
        if self.adapters.slots_free.is_empty() && self.next_evicted(reach, own).is_none() {
            return Some(Lack::Slot);
        }
        let kept = Kept { pages: kept.pages + self.headroom, ..kept };
        let fits = match self.config.policy.split {
            Split::Unified => self.available(Use::Adapter, reach, own) >= pages + request_pages + kept.pages,
            Split::Fixed { .. } | Split::Slots { .. } => {
                self.available(Use::Adapter, reach, own) >= pages
                    && self.available(Use::Sequence, reach, own) >= request_pages + kept.pages
            }
        };
        (!fits).then_some(Lack::Pages)
    }

    /// Tries to admit the first request of a group, or to page its adapter in. Changes nothing when it can't.
    fn try_head(&mut self, group: u32, reach: Reach, kept: Kept, budget: &mut Budget) -> Outcome {
        let Some(entry) = self.groups.queues.front(group) else { return Outcome::Lacks(Lack::Place) };
        let found = match self.look_at(group, reach, kept) {
            Ok(found) => found,
            Err(lack) => {
                self.requests[entry].story.lacked = Some(lack.name());
                return Outcome::Lacks(lack);
            }
        };
        let name = self.groups[group].name;
        if let Some(adapter) = name.adapter {
            match self.adapters[adapter].residency {
                Residency::Loading { .. } => return Outcome::Loading,
                Residency::Cold | Residency::Failed { .. } => {
                    self.load(adapter, reach);
                    self.charge(group, self.config.costs.page_in_ns(self.adapters[adapter].spec.pages));
                    self.charge_chosen();
                    return Outcome::Loading;
                }
                Residency::Hot { .. } | Residency::Vacant | Residency::Remote { .. } => {}
            }
        }
        if self.tokens_for(name.tenant, budget) == 0 {
            return if budget.tokens == 0 { Outcome::Full } else { Outcome::Served };
        }
        let pages = self.config.pages_for(self.requests[entry].length());
        let own = pages - found.matched.pages;
        self.hold_prefix(found);
        if !self.secure(Use::Sequence, own, reach, name.adapter) {
            self.drop_prefix(found);
            return Outcome::Lacks(Lack::Pages);
        }
        let Some(line) = self.lines.take(entry) else {
            self.drop_prefix(found);
            return Outcome::Lacks(Lack::Line);
        };
        self.let_in += u32::from(kept.closed);
        self.run_request(entry, group, line, own, found);
        self.headroom += u32::from(self.will_grow(entry));
        self.choose(entry, budget);
        self.charge_chosen();
        Outcome::Admitted
    }

    /// Moves a request from its queue to a line with pages.
    fn run_request(&mut self, entry: u32, group: u32, line: u32, own: u32, found: Found) {
        let name = self.groups[group].name;
        let capped = self.is_capped(name.tenant);
        self.groups.queues.remove(entry);
        self.waiting -= 1;
        self.tenants[name.tenant].waiting -= 1;
        self.tenants[name.tenant].running += 1;
        let computed = self.use_prefix(line, found);
        self.tenants[name.tenant].pages += found.matched.pages;
        for _ in 0..own {
            self.push_page(line, name.tenant);
        }
        self.counters.prefix_tokens += u64::from(computed);
        self.running.push(entry);
        let from = self.requests[entry].answered();
        let story = &mut self.requests[entry].story;
        if story.admitted.is_none() {
            story.admitted = Some(self.now);
            story.passed_by = self.counters.admissions - story.passed_by;
            story.cached_tokens = computed;
        }
        self.requests[entry].state = RequestState::Running { line, computed, planned: 0, from };
        if let Some(adapter) = name.adapter {
            self.adapters[adapter].waiting -= 1;
            self.adapters[adapter].running += 1;
            if self.adapters[adapter].running == 1 {
                self.adapters.active += 1;
                self.encharge(adapter);
            }
            self.relist(adapter);
        }
        self.counters.admissions += 1;
        self.tell(Event::Admitted { request: self.requests[entry].id, line });
        self.stop_waiting(group); // its next head begins to wait now, behind the others
        self.settle(group);
        self.recap(name.tenant, capped);
    }

    /// Takes slot and pages for a cold adapter and makes its page-in part of the plan; the caller has seen that it can.
    fn load(&mut self, entry: u32, reach: Reach) {
        if self.adapters.slots_free.is_empty() {
            if let Some(victim) = self.next_evicted(reach, Some(entry)) {
                self.evict(victim);
            }
        }
        let pages = self.config.image_pages(self.adapters[entry].spec.pages);
        if !self.secure(Use::Adapter, pages, reach, Some(entry)) {
            return;
        }
        let Some(slot) = self.adapters.take_slot(entry) else { return };
        for part in 0..pages {
            match self.pool.take(Owner::Adapter { adapter: entry, part }) {
                Ok(page) => self.adapters[entry].image.push(page),
                Err(error) => self.note(Err(error)),
            }
        }
        self.adapters[entry].residency =
            Residency::Loading { slot, since: self.now, layers: 0, dropped: false };
        self.adapters.loading += 1;
        self.counters.page_ins += 1;
        self.counters.page_in_pages += u64::from(self.adapters[entry].spec.pages);
        self.page_ins.push(entry);
        self.encharge(entry);
        self.tell(Event::AdapterLoading { adapter: self.adapters[entry].id, slot });
        self.settle_adapter(entry);
    }
}
