//! Every equation of the core, and whether all that name each other agree.

use lorad_blocks::pool::{Owner, OwnerKind};

use crate::adapter::{Residency, Standing, IDLE, RESTED};
use crate::core::{adapter_of, Core};
use crate::group::Place;
use crate::line::Line;
use crate::request::RequestState;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: {found:?}, expected {expected:?}"))
    }
}

impl Core {
    /// Compares everything with everything; the text names the first thing that doesn't agree. For tests and debug
    /// builds: the cost is that of the whole state.
    pub fn check(&self) -> Result<(), String> {
        if let Some(error) = self.fault {
            return Err(format!("pool: {error}"));
        }
        self.pool.check()?;
        self.lines.check()?;
        self.requests.check()?;
        self.adapters.check_index()?;
        self.adapters.evictable.check("evictable")?;
        self.groups.check()?;
        equal("reserved pages", self.pool.count(OwnerKind::Reserved), self.config.pages_reserved)?;
        self.check_lines()?;
        self.check_requests()?;
        self.check_adapters()?;
        self.check_groups()?;
        self.check_limits()
    }

    fn check_lines(&self) -> Result<(), String> {
        let mut held = 0;
        for (number, line) in self.lines.all().iter().enumerate() {
            let number = number as u32;
            let Line::Held { request, pages, .. } = line else { continue };
            held += pages;
            match self.requests[*request].state {
                RequestState::Running { line, .. } | RequestState::Ending { line } if line == number => {}
                state => return Err(format!("line {number}: its request {request} is {state:?}")),
            }
            for (col, &page) in self.lines.pages(number).iter().enumerate() {
                let owner = Ok(Owner::Sequence { line: number, col: col as u32 });
                equal(&format!("page {page}"), self.pool.owner(page), owner)?;
            }
        }
        equal("pages of sequences", self.pool.count(OwnerKind::Sequence), held)
    }

    fn check_requests(&self) -> Result<(), String> {
        let (mut running, mut waiting, mut planned_rows) = (0, 0, 0);
        for (entry, request) in self.requests.entries().iter().enumerate() {
            let entry = entry as u32;
            let name = format!("request {}", request.id);
            let queue = match request.state {
                RequestState::Vacant => None,
                RequestState::Waiting | RequestState::Preempted => {
                    waiting += 1;
                    Some(request.group)
                }
                RequestState::Running { line, computed, planned } => {
                    running += 1;
                    planned_rows += usize::from(planned > 0);
                    if !matches!(self.lines.all()[line as usize], Line::Held { request, .. } if request == entry)
                    {
                        return Err(format!("{name}: line {line} is another's"));
                    }
                    let room = self.lines.length(line) * self.config.page_tokens;
                    if computed + planned > room || computed + planned > request.length() {
                        return Err(format!("{name}: {:?} in room for {room}", request.state));
                    }
                    if computed >= request.length() || request.answered() >= request.max_tokens {
                        return Err(format!("{name}: {:?} with {} tokens", request.state, request.length()));
                    }
                    equal(&format!("{name} is listed"), self.running.contains(&entry), true)?;
                    None
                }
                RequestState::Ending { .. } => {
                    planned_rows += 1;
                    None
                }
            };
            equal(&format!("{name}: queue"), self.groups.queues.list_of(entry), queue)?;
        }
        equal("running", self.running.len(), running)?;
        equal("waiting", self.waiting, waiting)?;
        equal("rows in flight", planned_rows, if self.flight.is_some() { self.chosen.len() } else { 0 })
    }

    fn check_adapters(&self) -> Result<(), String> {
        let adapters = &self.adapters;
        let (mut running, mut holders) =
            (vec![0; adapters.entries().len()], vec![0; adapters.entries().len()]);
        for request in self.requests.entries() {
            let Some(adapter) = adapter_of(request.group).map(|adapter| adapter as usize) else { continue };
            match request.state {
                RequestState::Vacant => continue,
                RequestState::Waiting | RequestState::Preempted => {}
                RequestState::Running { .. } | RequestState::Ending { .. } => running[adapter] += 1,
            }
            holders[adapter] += 1;
        }
        let (mut loading, mut active, mut pages, mut slots, mut listed) = (0, 0, 0, 0, [0u32; 2]);
        for (entry, adapter) in adapters.entries().iter().enumerate() {
            let name = format!("adapter {}", adapter.id);
            let (held, slot, evictable) = match adapter.residency {
                Residency::Vacant | Residency::Cold | Residency::Failed { .. } => (0, None, None),
                Residency::Loading { slot, .. } => {
                    loading += 1;
                    (adapter.spec.pages, Some(slot), None)
                }
                Residency::Hot { slot, .. } => {
                    let rested = self.groups.waiting(entry as u32 + 1) > 0;
                    let list = if rested { RESTED } else { IDLE };
                    (adapter.spec.pages, Some(slot), (adapter.running == 0).then_some(list))
                }
            };
            equal(&format!("{name}: image"), adapter.image.len() as u32, held)?;
            for (part, &page) in adapter.image.iter().enumerate() {
                let owner = Ok(Owner::Adapter { adapter: entry as u32, part: part as u32 });
                equal(&format!("page {page}"), self.pool.owner(page), owner)?;
            }
            if let Some(slot) = slot {
                slots += 1;
                equal(&format!("slot {slot}"), adapters.slots[slot as usize], Some(entry as u32))?;
            }
            equal(&format!("{name}: evictable"), adapters.evictable.list_of(entry as u32), evictable)?;
            if let Some(list) = evictable {
                listed[list as usize] += held;
            }
            pages += held;
            if adapter.residency == Residency::Vacant {
                continue;
            }
            equal(&format!("{name}: running"), adapter.running, running[entry])?;
            equal(&format!("{name}: holders"), adapter.holders, holders[entry])?;
            active += u32::from(adapter.running > 0);
            let drained = adapter.standing == Standing::Draining && adapter.holders == 0;
            if drained && !matches!(adapter.residency, Residency::Loading { .. }) {
                return Err(format!("{name}: drained and not forgotten"));
            }
        }
        equal("pages of adapters", self.pool.count(OwnerKind::Adapter), pages)?;
        equal("adapters loading", adapters.loading, loading)?;
        equal("adapters active", adapters.active, active)?;
        equal("evictable pages", adapters.evictable_pages, listed)?;
        equal("slots taken", adapters.slots.iter().flatten().count(), slots)?;
        equal("slots free", adapters.slots_free.len(), adapters.slots.len() - slots)
    }

    fn check_groups(&self) -> Result<(), String> {
        for group in 0..=self.adapters.entries().len() as u32 {
            let residency = adapter_of(group).map(|adapter| self.adapters[adapter].residency);
            let place = self.groups.place(group);
            let head = self.groups.queues.front(group).map(|head| self.requests[head].state);
            let right = match (residency, head) {
                (_, None) => place.is_none(),
                (Some(Residency::Vacant), Some(_)) => false,
                (Some(Residency::Loading { .. }), Some(_)) => place.is_none(),
                (_, Some(RequestState::Preempted)) => place == Some(Place::Resume),
                (Some(Residency::Cold | Residency::Failed { .. }), Some(_)) => place == Some(Place::Cold),
                (None | Some(Residency::Hot { .. }), Some(_)) => {
                    matches!(place, Some(Place::Ready | Place::Warm))
                }
            };
            if !right {
                return Err(format!("group {group}: in {place:?} with {residency:?}, head {head:?}"));
            }
            let mut states = self.groups.queues.iter(group).map(|entry| self.requests[entry].state);
            let _ = states.by_ref().find(|state| *state != RequestState::Preempted);
            if states.any(|state| state == RequestState::Preempted) {
                return Err(format!("group {group}: a preempted request isn't at the head"));
            }
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), String> {
        let tokens: u32 = self.chosen.iter().map(|row| row.count).sum();
        let limits = [
            ("rows", self.chosen.len() as u32, self.config.rows_max),
            ("running", self.running.len() as u32, self.config.rows_max),
            ("tokens", tokens, self.config.tokens_max),
            ("adapters in a step", self.adapters.active, self.config.adapters_step_max),
            ("page-ins", self.adapters.loading, self.config.page_ins_max),
            ("adapters", self.adapters.count(), self.config.adapters_max),
            ("waiting", self.waiting, self.config.waiting_max.saturating_add(self.config.rows_max)),
            ("slots to clear", self.adapters.clears.len() as u32, self.config.slots_max),
        ];
        match limits.into_iter().find(|(_, value, limit)| value > limit) {
            Some((name, value, limit)) => Err(format!("{name}: {value}, at most {limit}")),
            None => Ok(()),
        }
    }
}
