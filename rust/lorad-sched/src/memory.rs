//! Getting pages: eviction of idle adapters, preemption of rows, and giving both back.

use lorad_blocks::pool::Owner;

use crate::adapter::{Residency, IDLE, RESTED};
use crate::core::{adapter_of, Core};
use crate::event::Event;
use crate::group::Place;
use crate::request::RequestState;

/// Which adapters may be evicted. Nobody evicts an adapter that a row uses or that is being paged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those that nobody waits for. If one waiting group could evict another's, two could do so for ever.
    Idle,
    /// Also those that somebody waits for, but for the urgent group's. For growing rows, which yield a token in return, and
    /// for the urgent group, which keeps what it takes until its head is admitted.
    All,
}

impl Core {
    /// Pages that could be had. `own` is the adapter of whoever asks: it isn't evicted.
    pub(crate) fn available(&self, reach: Reach, own: Option<u32>) -> u32 {
        let idle = self.pool.free() + self.adapters.evictable_pages[IDLE as usize];
        if reach == Reach::Idle {
            return idle;
        }
        let urgent = self.urgent_adapter().filter(|&adapter| Some(adapter) != own);
        let kept: u32 = [own, urgent]
            .into_iter()
            .flatten()
            .filter(|&adapter| self.adapters.evictable.list_of(adapter) == Some(RESTED))
            .map(|adapter| self.adapters[adapter].image.len() as u32)
            .sum();
        idle + self.adapters.evictable_pages[RESTED as usize] - kept
    }

    /// The adapter that would be evicted next.
    pub(crate) fn next_evicted(&self, reach: Reach, own: Option<u32>) -> Option<u32> {
        let lists = &self.adapters.evictable;
        if let Some(idle) = lists.front(IDLE) {
            return Some(idle);
        }
        if reach == Reach::Idle {
            return None;
        }
        let urgent = self.urgent_adapter();
        let found = lists.iter(RESTED).find(|&adapter| Some(adapter) != own && Some(adapter) != urgent);
        found
    }

    fn urgent_adapter(&self) -> Option<u32> {
        self.groups.urgent.and_then(adapter_of)
    }

    /// Evicts until `pages` are free; says whether they are. Evicts nothing if they can't be.
    pub(crate) fn secure(&mut self, pages: u32, reach: Reach, own: Option<u32>) -> bool {
        if self.available(reach, own) < pages {
            return false;
        }
        while self.pool.free() < pages {
            match self.next_evicted(reach, own) {
                Some(adapter) => self.evict(adapter),
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
        self.events.push(Event::AdapterEvicted { adapter: self.adapters[entry].id });
        let group = entry + 1;
        if self.groups.waiting(group) > 0 {
            self.groups.draw_ticket(group, self.counters.admissions);
            self.settle(group);
        }
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

    /// Gives line and pages of a request back, and its adapter the row.
    pub(crate) fn release(&mut self, entry: u32, line: u32) {
        for col in (0..self.lines.length(line)).rev() {
            let given = self.pool.give(self.lines.pages(line)[col as usize], Owner::Sequence { line, col });
            self.note(given);
        }
        self.lines.give(line);
        if let Some(adapter) = adapter_of(self.requests[entry].group) {
            let now = self.now;
            let state = &mut self.adapters[adapter];
            state.running -= 1;
            if let Residency::Hot { last_use, .. } = &mut state.residency {
                *last_use = now;
            }
            if state.running == 0 {
                self.adapters.active -= 1;
            }
            self.relist(adapter);
        }
    }

    /// Adds a free page to a line; the caller has secured it.
    pub(crate) fn push_page(&mut self, line: u32) {
        let col = self.lines.length(line);
        match self.pool.take(Owner::Sequence { line, col }) {
            Ok(page) => self.lines.push(line, page),
            Err(error) => self.note(Err(error)),
        }
    }

    /// Sees to it that every running row has pages for all its known tokens, before any row is put into the plan. Rows
    /// are preempted where nothing can be evicted; a row that is itself the victim waits.
    pub(crate) fn grow_rows(&mut self) {
        let mut index = 0;
        while let Some(&entry) = self.running.get(index) {
            let request = &self.requests[entry];
            let RequestState::Running { line, .. } = request.state else { return };
            if self.config.pages_for(request.length()) <= self.lines.length(line) {
                index += 1;
            } else if self.secure(1, Reach::All, None) {
                self.push_page(line);
            } else if let Some(victim) = self.least_work_lost() {
                let position = self.running.iter().position(|&other| other == victim);
                index -= usize::from(position.is_some_and(|position| position < index));
                self.preempt(victim);
            }
        }
    }

    /// The running request whose recomputation costs least; of equals the one admitted last.
    fn least_work_lost(&self) -> Option<u32> {
        self.running.iter().rev().copied().min_by_key(|&entry| match self.requests[entry].state {
            RequestState::Running { computed, .. } => computed,
            RequestState::Vacant
            | RequestState::Waiting
            | RequestState::Preempted
            | RequestState::Ending { .. } => u32::MAX,
        })
    }

    /// Takes line and pages from a running request; it goes back to the head of its queue, with its tokens.
    fn preempt(&mut self, entry: u32) {
        let RequestState::Running { line, .. } = self.requests[entry].state else { return };
        let group = self.requests[entry].group;
        self.running.retain(|&other| other != entry);
        self.requests[entry].state = RequestState::Preempted;
        self.groups.queues.push_front(group, entry);
        self.waiting += 1;
        self.release(entry, line);
        self.groups.draw_ticket(group, self.counters.admissions);
        self.settle(group);
        debug_assert_eq!(self.groups.place(group), Some(Place::Resume));
        self.counters.preemptions += 1;
        self.events.push(Event::Preempted { request: self.requests[entry].id });
    }
}
