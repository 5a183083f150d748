//! Admission: which waiting requests get a row, which cold adapters get a page-in.
//!
//! Order: the urgent group; requests that were preempted; groups that lacked pages; the round-robin ring; page-ins. A
//! group that can't go on is passed over, not waited on, until as many others were admitted past it as the
//! configuration allows, or nothing runs any more. Then it's urgent: it may evict adapters that others wait for, keeps
//! its own, and nobody else is admitted until its head is. As its head fits an otherwise empty pool, and running rows
//! end, that comes about.

use lorad_blocks::pool::Owner;

use crate::adapter::Residency;
use crate::core::{adapter_of, Core};
use crate::event::Event;
use crate::group::Place;
use crate::memory::Reach;
use crate::request::RequestState;

/// Cold groups that one step tries after the first one that lacks pages.
const COLD_TRIES: u32 = 8;

/// What a waiting head lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// Pages for its KV or its adapter.
    Pages,
    /// A slot of the device table.
    Slot,
    /// Too many page-ins run.
    PageIn,
    /// Too many distinct adapters run.
    Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The head runs; its first tokens are in the plan.
    Admitted,
    /// The adapter's page-in is in the plan, or was before: the group waits for it.
    Loading,
    /// All lines are taken, or the plan has no room for another token.
    Full,
    /// Passed over.
    Lacks(Lack),
}

impl Core {
    pub(crate) fn admit(&mut self, tokens_left: &mut u32) {
        loop {
            self.elect_urgent(self.config.pass_overs_max);
            self.admit_pass(tokens_left);
            // Nothing runs and nothing will change by itself: the oldest comes now.
            let stuck = self.running.is_empty() && self.adapters.loading == 0 && self.groups.urgent.is_none();
            if !(stuck && self.elect_urgent(0)) {
                return;
            }
        }
    }

    /// Makes the group that waits longest urgent, if at least this many others were admitted past it.
    fn elect_urgent(&mut self, pass_overs: u32) -> bool {
        if self.groups.urgent.is_some() {
            return true;
        }
        match self.groups.oldest_blocked() {
            Some((group, ticket)) if self.counters.admissions - ticket >= u64::from(pass_overs) => {
                self.groups.urgent = Some(group);
                self.counters.urgent += 1;
                true
            }
            Some(_) | None => false,
        }
    }

    fn admit_pass(&mut self, tokens_left: &mut u32) {
        let mut loads_open = true;
        if let Some(group) = self.groups.urgent {
            match self.try_head(group, Reach::All, tokens_left) {
                Outcome::Admitted | Outcome::Loading => {}
                Outcome::Lacks(Lack::PageIn) => loads_open = false,
                Outcome::Full | Outcome::Lacks(Lack::Pages | Lack::Slot | Lack::Place) => return,
            }
        }
        let mut rows_open = true;
        while let Some(group) = self.groups.front(Place::Resume).filter(|_| rows_open) {
            match self.try_head(group, Reach::Idle, tokens_left) {
                Outcome::Admitted | Outcome::Loading => {}
                Outcome::Full => rows_open = false,
                Outcome::Lacks(_) => return self.pass_over(group),
            }
        }
        let mut next = self.groups.front(Place::Warm);
        while let Some(group) = next.filter(|_| rows_open) {
            next = self.groups.after(group);
            match self.try_head(group, Reach::Idle, tokens_left) {
                Outcome::Admitted | Outcome::Loading => {}
                Outcome::Full => rows_open = false,
                Outcome::Lacks(_) => self.pass_over(group),
            }
        }
        while let Some(group) = self.groups.front(Place::Ready).filter(|_| rows_open) {
            match self.try_head(group, Reach::Idle, tokens_left) {
                Outcome::Admitted | Outcome::Loading => {}
                Outcome::Full => rows_open = false,
                Outcome::Lacks(_) => {
                    self.pass_over(group);
                    self.groups.put(group, Place::Warm);
                }
            }
        }
        let (mut next, mut tries) = (self.groups.front(Place::Cold), 0);
        while let Some(group) = next.filter(|_| loads_open && tries < COLD_TRIES) {
            next = self.groups.after(group);
            match self.try_head(group, Reach::Idle, tokens_left) {
                Outcome::Admitted | Outcome::Loading | Outcome::Full => {}
                Outcome::Lacks(Lack::Pages) => {
                    self.pass_over(group);
                    tries += 1;
                }
                Outcome::Lacks(Lack::Slot | Lack::PageIn | Lack::Place) => {
                    self.pass_over(group);
                    loads_open = false; // none of the others has one either
                }
            }
        }
    }

    fn pass_over(&mut self, group: u32) {
        self.groups.draw_ticket(group, self.counters.admissions);
    }

    /// Tries to admit the first request of a group, or to page its adapter in. Changes nothing when it can't.
    fn try_head(&mut self, group: u32, reach: Reach, tokens_left: &mut u32) -> Outcome {
        let Some(entry) = self.groups.queues.front(group) else { return Outcome::Lacks(Lack::Place) };
        let pages = self.config.pages_for(self.requests[entry].length());
        let adapter = adapter_of(group);
        if let Some(adapter) = adapter {
            match self.adapters[adapter].residency {
                Residency::Hot { .. } => {
                    let another = self.adapters[adapter].running == 0;
                    if another && self.adapters.active >= self.config.adapters_step_max {
                        return Outcome::Lacks(Lack::Place);
                    }
                }
                Residency::Loading { .. } => return Outcome::Loading,
                Residency::Cold | Residency::Failed { .. } => return self.try_load(adapter, pages, reach),
                Residency::Vacant => return Outcome::Lacks(Lack::Place),
            }
        }
        if self.lines.free() == 0 || *tokens_left == 0 {
            return Outcome::Full;
        }
        if !self.secure(pages, reach, adapter) {
            return Outcome::Lacks(Lack::Pages);
        }
        let Some(line) = self.lines.take(entry) else { return Outcome::Full };
        for _ in 0..pages {
            self.push_page(line);
        }
        self.groups.queues.remove(entry);
        self.waiting -= 1;
        self.running.push(entry);
        self.requests[entry].state = RequestState::Running { line, computed: 0, planned: 0 };
        if let Some(adapter) = adapter {
            self.adapters[adapter].running += 1;
            if self.adapters[adapter].running == 1 {
                self.adapters.active += 1;
            }
        }
        self.counters.admissions += 1;
        self.events.push(Event::Admitted { request: self.requests[entry].id, line });
        self.groups.settle_ticket(group);
        self.groups.take_out(group); // so that it goes to the back of the ring
        self.settle(group);
        self.choose(entry, tokens_left);
        Outcome::Admitted
    }

    /// Takes slot and pages for a cold adapter and makes its page-in part of the plan. Counts the pages of the request
    /// that waits for it too: an adapter without room for its request is no help.
    fn try_load(&mut self, entry: u32, request_pages: u32, reach: Reach) -> Outcome {
        let adapter_pages = self.adapters[entry].spec.pages;
        if self.adapters.loading >= self.config.page_ins_max {
            return Outcome::Lacks(Lack::PageIn);
        }
        if self.adapters.slots_free.is_empty() && self.next_evicted(reach, Some(entry)).is_none() {
            return Outcome::Lacks(Lack::Slot);
        }
        if self.available(reach, Some(entry)) < adapter_pages + request_pages {
            return Outcome::Lacks(Lack::Pages);
        }
        if self.adapters.slots_free.is_empty() {
            if let Some(victim) = self.next_evicted(reach, Some(entry)) {
                self.evict(victim);
            }
        }
        if !self.secure(adapter_pages, reach, Some(entry)) {
            return Outcome::Lacks(Lack::Pages);
        }
        let Some(slot) = self.adapters.take_slot(entry) else { return Outcome::Lacks(Lack::Slot) };
        for part in 0..adapter_pages {
            match self.pool.take(Owner::Adapter { adapter: entry, part }) {
                Ok(page) => self.adapters[entry].image.push(page),
                Err(error) => self.note(Err(error)),
            }
        }
        self.adapters[entry].residency = Residency::Loading { slot, since: self.now };
        self.adapters.loading += 1;
        self.counters.page_ins += 1;
        self.page_ins.push(entry);
        self.events.push(Event::AdapterLoading { adapter: self.adapters[entry].id, slot });
        self.settle(entry + 1);
        Outcome::Loading
    }
}
