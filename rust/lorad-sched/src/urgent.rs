//! Groups that have waited so long that the others make way: election, and preemption for them.

use crate::adapter::Residency;
use crate::admit::{Kept, Lack};
use crate::core::Core;
use crate::memory::{Reach, Use};
use crate::request::RequestState;

/// What came of making way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// A row was preempted.
    Way,
    /// None may be.
    Not,
    /// One may be, when the plan in flight is committed.
    Later,
}

/// What a turn adds to a tenant of weight 1.
const TURN: u64 = 1 << 32;

impl Core {
    /// Elects the next urgent group: of the tenant with the least turns the group that has waited longest. As long as the
    /// ones before it only wait for their bytes, as many may be elected as page-ins may run, and one.
    pub(crate) fn elect(&mut self) -> bool {
        if self.groups.urgent.len() > self.config.page_ins_max as usize {
            return false;
        }
        while let Some(tenant) = self.tenants.urgent.front(0) {
            let clock = self.tenants[tenant].clock(self.now);
            let longest = self.groups.waits.iter(tenant).find(|&group| !self.groups[group].urgent);
            let due = longest.filter(|&group| {
                clock.saturating_sub(self.groups[group].since) >= self.config.urgent_after_us
            });
            let Some(group) = due else {
                self.tenants.urgent.remove(tenant);
                self.place_due(tenant);
                continue;
            };
            // a place in the list is for who can use it: a tenant at its own limit would keep it from the others
            if self.groups.queues.front(group).is_some_and(|head| self.lacks_room(group, head)) {
                self.hold_up(group);
                continue;
            }
            self.tenants.turn_floor = self.tenants.turn_floor.max(self.tenants[tenant].turns);
            self.tenants[tenant].turns += TURN / u64::from(self.tenants[tenant].spec.weight.max(1));
            self.tenants.urgent.put(0, tenant, (self.tenants[tenant].turns, 0));
            self.make_way_for(group);
            return true;
        }
        false
    }

    fn make_way_for(&mut self, group: u32) {
        self.groups[group].urgent = true;
        self.groups[group].elected = self.now;
        self.groups.urgent.push(group);
        self.counters.urgent += 1;
    }

    /// Nothing runs and nothing will change by itself: the group that has waited longest comes now, of the tenant with the
    /// least service.
    pub(crate) fn elect_stuck(&mut self) -> bool {
        let stuck = self.running.is_empty() && self.adapters.loading == 0 && self.groups.urgent.is_empty();
        if !stuck || self.flights.any() {
            return false;
        }
        let least = self.tenants.waiting.front(0).filter(|&tenant| self.groups.waits.front(tenant).is_some());
        let other = || self.tenants.waiting.iter(0).find(|&tenant| self.groups.waits.front(tenant).is_some());
        let Some(group) = least.or_else(other).and_then(|tenant| self.groups.waits.front(tenant)) else {
            return false;
        };
        self.make_way_for(group);
        true
    }

    /// Preempts rows that have had their tokens, as far as the urgent groups lack what they hold. Before any row is put
    /// into the plan. `false`: that waits for the commit of the plan in flight.
    pub(crate) fn make_way(&mut self) -> bool {
        let drained = self.drained.take();
        let (mut index, mut kept) = (0, Kept::default());
        'groups: loop {
            if index == self.groups.urgent.len() && !self.elect() {
                return true;
            }
            let group = self.groups.urgent[index];
            let reach = Reach::Urgent(index);
            let patient = self.now.saturating_sub(self.groups[group].elected) < self.config.preempt_after_us;
            while let Err(lack) = self.look_at(group, reach, kept) {
                let made = match lack {
                    Lack::Line | Lack::Pages if patient => Made::Not,
                    Lack::Slot | Lack::Place if patient => {
                        self.drain_an_adapter(group, drained);
                        break;
                    }
                    Lack::Line => self.preempt_one(group),
                    Lack::Pages => self.preempt_for_pages(group, reach, kept),
                    Lack::Slot | Lack::Place => match self.preempt_an_adapter(group) {
                        Made::Not => {
                            self.drain_an_adapter(group, drained);
                            break;
                        }
                        made => made,
                    },
                    Lack::Tenant => {
                        self.hold_up(group);
                        continue 'groups;
                    }
                    Lack::PageIn | Lack::Prompt => break,
                };
                match made {
                    Made::Way => {}
                    Made::Not => return true, // not yet: the rows' turns end in a bounded time
                    Made::Later => {
                        self.drained = self.drained.or(drained);
                        return false;
                    }
                }
            }
            kept.add(self.pages_needed(group));
            index += 1;
        }
    }

    /// Has a row sampled its tokens since its admission?
    fn is_preemptible(&self, entry: u32) -> bool {
        let request = &self.requests[entry];
        match request.state {
            RequestState::Running { from, .. } => {
                request.answered().saturating_sub(from) >= self.config.preempt_after_tokens
            }
            RequestState::Vacant
            | RequestState::Waiting
            | RequestState::Preempted { .. }
            | RequestState::Ending { .. } => false,
        }
    }

    /// Preempts a row for a group: of another group if there is one, else of its own, which then comes after the one that
    /// waits: else it would come back at once.
    fn preempt_one(&mut self, group: u32) -> Made {
        let others = |entry| self.is_preemptible(entry) && self.requests[entry].group != group;
        let (other, own) =
            (self.least_work_lost(others), self.least_work_lost(|entry| self.is_preemptible(entry)));
        if own.is_some() && self.flights.any() {
            return Made::Later;
        }
        if let Some(victim) = other {
            self.preempt(victim, false);
            return Made::Way;
        }
        let Some(victim) = own else { return Made::Not };
        let head = self.groups.queues.front(group);
        self.preempt(victim, false);
        if let Some(head) = head {
            self.groups.queues.remove(head);
            self.groups.queues.push_front(group, head);
            self.settle(group);
        }
        Made::Way
    }

    /// Preempts one row, if all that may be preempted have enough together, or all may.
    fn preempt_for_pages(&mut self, group: u32, reach: Reach, kept: Kept) -> Made {
        let (mut pages, mut growing, mut all) = (0, 0, true);
        for &entry in &self.running {
            match self.requests[entry].state {
                RequestState::Running { line, .. } if self.is_preemptible(entry) => {
                    pages += self.lines.length(line);
                }
                _ => {
                    all = false;
                    growing += u32::from(self.will_grow(entry)); // room is left for these
                }
            }
        }
        let adapter = self.groups[group].name.adapter;
        let needed = self.pages_needed(group) + kept.pages + growing;
        if all || self.available(Use::Sequence, reach, adapter) + pages >= needed {
            return self.preempt_one(group);
        }
        Made::Not
    }

    /// Preempts all rows of one adapter, if there is one whose rows all may be preempted: the one with the fewest.
    fn preempt_an_adapter(&mut self, group: u32) -> Made {
        let own = self.groups[group].name.adapter;
        let mut best: Option<(u32, u32)> = None;
        for &entry in &self.running {
            let Some(adapter) = self.requests[entry].adapter.filter(|&adapter| Some(adapter) != own) else {
                continue;
            };
            let rows = self.adapters[adapter].running;
            if self.adapters[adapter].pinned || best.is_some_and(|(least, _)| least <= rows) {
                continue;
            }
            let rows_of = |&&other: &&u32| self.requests[other].adapter == Some(adapter);
            let listed = self.running.iter().filter(rows_of);
            // rows that are ending are not listed, and hold the adapter until their commit
            let (mut count, mut may) = (0, true);
            for &other in listed {
                count += 1;
                may &= self.is_preemptible(other);
            }
            if may && count == rows {
                best = Some((rows, adapter));
            }
        }
        let Some((_, adapter)) = best else { return Made::Not };
        if self.flights.any() {
            return Made::Later;
        }
        // the last admitted first, so that the queue has them in the order of admission
        while let Some(entry) =
            self.running.iter().rev().copied().find(|&entry| self.requests[entry].adapter == Some(adapter))
        {
            self.preempt(entry, false);
        }
        Made::Way
    }

    /// Gives an adapter no new rows until its slot is free, and its prompts come first: the one that was drained before, or
    /// that with the fewest rows. The others go on.
    fn drain_an_adapter(&mut self, group: u32, before: Option<u32>) {
        let own = self.groups[group].name.adapter;
        let may = |adapter: u32| {
            let state = &self.adapters[adapter];
            state.running > 0 && !state.pinned && Some(adapter) != own
        };
        let rows = |&adapter: &u32| (self.adapters[adapter].running, adapter);
        let active = self.running.iter().filter_map(|&entry| self.requests[entry].adapter);
        let fewest = active.filter(|&adapter| may(adapter)).min_by_key(rows);
        self.drained = self.drained.or(before.filter(|&adapter| may(adapter))).or(fewest);
    }

    /// Pages that a group's head needs, with those of its adapter where it isn't there.
    pub(crate) fn pages_needed(&self, group: u32) -> u32 {
        let head = self.groups.queues.front(group);
        let pages = head.map_or(0, |head| self.config.pages_for(self.requests[head].length()));
        let adapter =
            self.groups[group].name.adapter.map_or(0, |adapter| match self.adapters[adapter].residency {
                Residency::Hot { .. } | Residency::Loading { .. } => 0,
                Residency::Vacant | Residency::Remote { .. } | Residency::Cold | Residency::Failed { .. } => {
                    self.config.image_pages(self.adapters[adapter].spec.pages)
                }
            });
        pages + adapter
    }
}
