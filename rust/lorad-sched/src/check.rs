//! Every equation of the core, and whether all that name each other agree.

use lorad_blocks::pool::{Owner, OwnerKind};

use crate::adapter::{Residency, Standing, IDLE, RESTED};
use crate::core::Core;
use crate::flight::Flight;
use crate::group::Place;
use crate::line::Line;
use crate::policy::Split;
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
        self.tenants.check()?;
        self.prefix.check()?;
        equal("cached pages", self.pool.count(OwnerKind::Cached), self.prefix.pages())?;
        self.deadlines.check("deadlines")?;
        equal("reserved pages", self.pool.count(OwnerKind::Reserved), self.config.pages_reserved)?;
        self.check_lines()?;
        self.check_requests()?;
        self.check_adapters()?;
        self.check_groups()?;
        self.check_tenants()?;
        self.check_limits()
    }

    fn check_lines(&self) -> Result<(), String> {
        let (mut held, mut holds) = (0, Vec::new());
        for (number, line) in self.lines.all().iter().enumerate() {
            let number = number as u32;
            let Line::Held { request, pages, cached, node, .. } = line else { continue };
            held += pages - cached;
            match self.requests[*request].state {
                RequestState::Running { line, .. } | RequestState::Ending { line, .. } if line == number => {}
                state => return Err(format!("line {number}: its request {request} is {state:?}")),
            }
            for (col, &page) in self.lines.pages(number).iter().enumerate() {
                let own = Owner::Sequence { line: number, col: col as u32 };
                let owner = if (col as u32) < *cached { Owner::Cached } else { own };
                equal(&format!("page {page}"), self.pool.owner(page), Ok(owner))?;
            }
            let Some(node) = node else { continue };
            holds.push(*node);
            let path = self.prefix.path(*node).map_err(|error| format!("line {number}: {error}"))?;
            let mut path: Vec<u32> = path.map(|node| node.page()).collect();
            path.reverse();
            equal(
                &format!("line {number}: cached"),
                &self.lines.pages(number)[..*cached as usize],
                &path[..],
            )?;
        }
        let copies = self.flights.flying().iter().flat_map(|flight| &flight.copies);
        holds.extend(copies.chain(&self.copies).map(|copy| copy.source));
        let mut counted: Vec<_> = holds.iter().map(|node| (node, 0u64)).collect();
        for (node, count) in &mut counted {
            *count = holds.iter().filter(|other| other == node).count() as u64;
            equal(&format!("holders of page {}", node.page()), self.prefix.holders(**node), Ok(*count))?;
        }
        equal("pages of sequences", self.pool.count(OwnerKind::Sequence), held)
    }

    fn check_requests(&self) -> Result<(), String> {
        let (mut running, mut waiting) = (0, 0);
        let mut in_flight = vec![0; self.requests.entries().len()];
        for row in self.flights.flying().iter().flat_map(|flight| &flight.rows) {
            in_flight[row.request as usize] += row.count;
        }
        for (entry, request) in self.requests.entries().iter().enumerate() {
            let entry = entry as u32;
            let name = format!("request {}", request.id);
            let queue = match request.state {
                RequestState::Vacant => None,
                RequestState::Waiting | RequestState::Preempted { .. } => {
                    equal(&format!("{name}: tokens in flight"), 0, in_flight[entry as usize])?;
                    waiting += 1;
                    Some(request.group)
                }
                RequestState::Running { line, computed, planned, from } => {
                    running += 1;
                    equal(&format!("{name}: tokens in flight"), planned, in_flight[entry as usize])?;
                    if !matches!(self.lines.all()[line as usize], Line::Held { request, .. } if request == entry)
                    {
                        return Err(format!("{name}: line {line} is another's"));
                    }
                    let room = self.lines.length(line) * self.config.page_tokens;
                    let known = request.length() + u32::from(self.flights.flying().len() > 1);
                    if computed + planned > room || computed + planned > known {
                        return Err(format!("{name}: {:?} in room for {room}", request.state));
                    }
                    if computed >= request.length()
                        || request.answered() >= request.max_tokens
                        || from > request.answered()
                    {
                        return Err(format!("{name}: {:?} with {} tokens", request.state, request.length()));
                    }
                    equal(&format!("{name} is listed"), self.running.contains(&entry), true)?;
                    None
                }
                RequestState::Ending { planned, .. } => {
                    equal(&format!("{name}: tokens in flight"), planned, in_flight[entry as usize])?;
                    None
                }
            };
            equal(&format!("{name}: queue"), self.groups.queues.list_of(entry), queue)?;
            let dated = queue.is_some() || matches!(request.state, RequestState::Running { .. });
            let deadline = request.deadline.filter(|_| dated).map(|_| 0);
            equal(&format!("{name}: deadline"), self.deadlines.heap_of(entry), deadline)?;
        }
        equal("running", self.running.len(), running)?;
        equal("waiting", self.waiting, waiting)
    }

    fn check_adapters(&self) -> Result<(), String> {
        let adapters = &self.adapters;
        let none = || vec![0u32; adapters.entries().len()];
        let (mut running, mut waiting, mut holders) = (none(), none(), none());
        for request in self.requests.entries() {
            let Some(adapter) = request.adapter.map(|adapter| adapter as usize) else { continue };
            match request.state {
                RequestState::Vacant => continue,
                RequestState::Waiting | RequestState::Preempted { .. } => waiting[adapter] += 1,
                RequestState::Running { .. } | RequestState::Ending { .. } => running[adapter] += 1,
            }
            holders[adapter] += 1;
        }
        let (mut loading, mut active, mut pages, mut pinned, mut slots) = (0, 0, 0, 0, 0);
        let mut listed = [0u32; 2];
        for (entry, adapter) in adapters.entries().iter().enumerate() {
            let name = format!("adapter {}", adapter.id);
            let (held, slot, evictable) = match adapter.residency {
                Residency::Vacant | Residency::Remote { .. } | Residency::Cold | Residency::Failed { .. } => {
                    (0, None, None)
                }
                Residency::Loading { slot, .. } => {
                    loading += 1;
                    (self.config.image_pages(adapter.spec.pages), Some(slot), None)
                }
                Residency::Hot { slot, .. } => {
                    let heap = if adapter.waiting > 0 { RESTED } else { IDLE };
                    let evictable = adapter.running == 0 && !adapter.pinned;
                    (self.config.image_pages(adapter.spec.pages), Some(slot), evictable.then_some(heap))
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
            equal(&format!("{name}: evictable"), adapters.evictable.heap_of(entry as u32), evictable)?;
            if let Some(list) = evictable {
                listed[list as usize] += held;
            }
            pages += held;
            if adapter.residency == Residency::Vacant {
                continue;
            }
            pinned += if adapter.pinned { self.config.image_pages(adapter.spec.pages) } else { 0 };
            equal(&format!("{name}: wanted"), adapters.wanted.contains(&(entry as u32)), adapter.wanted)?;
            equal(&format!("{name}: running"), adapter.running, running[entry])?;
            equal(&format!("{name}: waiting"), adapter.waiting, waiting[entry])?;
            equal(&format!("{name}: holders"), adapter.holders, holders[entry])?;
            active += u32::from(adapter.running > 0);
            let drained = adapter.standing == Standing::Draining && adapter.holders == 0;
            if drained && !matches!(adapter.residency, Residency::Loading { .. }) {
                return Err(format!("{name}: drained and not forgotten"));
            }
        }
        equal("pages of adapters", self.pool.count(OwnerKind::Adapter), pages)?;
        equal("pinned pages", adapters.pinned_pages, pinned)?;
        equal("adapters loading", adapters.loading, loading)?;
        equal("adapters active", adapters.active, active)?;
        equal("evictable pages", adapters.evictable_pages, listed)?;
        equal("slots taken", adapters.slots.iter().flatten().count(), slots)?;
        equal("slots free", adapters.slots_free.len(), adapters.slots.len() - slots)
    }

    fn check_groups(&self) -> Result<(), String> {
        let mut holders = vec![0u32; self.groups.entries().len()];
        for request in self.requests.entries() {
            if request.state != RequestState::Vacant {
                holders[request.group as usize] += 1;
                let name = self.groups[request.group].name;
                equal(
                    &format!("request {}: adapter of its group", request.id),
                    name.adapter,
                    request.adapter,
                )?;
            }
        }
        for (group, state) in self.groups.entries().iter().enumerate() {
            equal(&format!("group {group}: holders"), state.holders, holders[group])?;
            let group = group as u32;
            let residency = state.name.adapter.map(|adapter| self.adapters[adapter].residency);
            let place = self.groups.place(group);
            let head = self.groups.queues.front(group).map(|head| self.requests[head].state);
            let right = match (residency, head) {
                (_, None) => place.is_none(),
                _ if self.is_capped(state.name.tenant) => place.is_none(),
                (Some(Residency::Vacant), Some(_)) => false,
                (Some(Residency::Loading { .. } | Residency::Remote { .. }), Some(_)) => place.is_none(),
                (Some(Residency::Cold | Residency::Failed { .. }), Some(_)) => place == Some(Place::Cold),
                (None | Some(Residency::Hot { .. }), Some(RequestState::Preempted { starved: true })) => {
                    place == Some(Place::Resume)
                }
                (None | Some(Residency::Hot { .. }), Some(_)) => place == Some(Place::Ready),
            };
            if !right {
                return Err(format!("group {group}: in {place:?} with {residency:?}, head {head:?}"));
            }
            let remote = matches!(residency, Some(Residency::Remote { .. }));
            let waits = (head.is_some() && !remote).then_some(state.name.tenant);
            equal(&format!("group {group}: waits"), self.groups.waits.list_of(group), waits)?;
            equal(&format!("group {group}: counted"), state.waits, head.is_some())?;
            // before a preempted request only the one that it made way for
            let mut waiting = 0;
            for entry in self.groups.queues.iter(group) {
                let preempted = matches!(self.requests[entry].state, RequestState::Preempted { .. });
                waiting += u32::from(!preempted);
                if preempted && waiting > 1 {
                    return Err(format!("group {group}: a preempted request is behind those that wait"));
                }
            }
        }
        Ok(())
    }

    fn check_tenants(&self) -> Result<(), String> {
        let count = self.tenants.entries().len();
        let none = || vec![0u32; count];
        let (mut running, mut waiting, mut pages, mut groups, mut adapters) =
            (none(), none(), none(), none(), none());
        for request in self.requests.entries() {
            if request.state == RequestState::Vacant {
                continue;
            }
            let tenant = self.groups[request.group].name.tenant as usize;
            match request.state {
                RequestState::Vacant => {}
                RequestState::Waiting | RequestState::Preempted { .. } => waiting[tenant] += 1,
                RequestState::Running { line, .. } | RequestState::Ending { line, .. } => {
                    running[tenant] += 1;
                    pages[tenant] += self.lines.length(line);
                }
            }
        }
        for group in self.groups.entries().iter().filter(|group| group.waits) {
            groups[group.name.tenant as usize] += 1;
        }
        for adapter in self.adapters.entries().iter().filter(|adapter| adapter.residency != Residency::Vacant)
        {
            adapters[adapter.owner as usize] += 1;
            let loads = matches!(adapter.residency, Residency::Loading { .. });
            if loads || adapter.running > 0 {
                pages[adapter.owner as usize] += adapter.image.len() as u32;
            }
        }
        let (mut weights, mut present, mut present_weights) = (0, 0, 0);
        for (entry, tenant) in self.tenants.entries().iter().enumerate() {
            let (name, waits) = (format!("tenant {}", tenant.id), tenant.groups_waiting > 0);
            equal(&format!("{name}: running"), tenant.running, running[entry])?;
            equal(&format!("{name}: waiting"), tenant.waiting, waiting[entry])?;
            equal(&format!("{name}: pages"), tenant.pages, pages[entry])?;
            equal(&format!("{name}: waiting groups"), tenant.groups_waiting, groups[entry])?;
            equal(&format!("{name}: adapters"), tenant.adapters, adapters[entry])?;
            let entry = entry as u32;
            let key = waits.then_some((tenant.service, 0));
            let found = self.tenants.waiting.heap_of(entry).map(|_| self.tenants.waiting.key(entry));
            equal(&format!("{name}: place by service"), found, key)?;
            for (place, heaps) in [(Place::Ready, &self.tenants.ready), (Place::Cold, &self.tenants.cold)] {
                let listed = self.groups.front(entry, place).is_some();
                equal(&format!("{name}: {}", place.name()), heaps.heap_of(entry).is_some(), listed)?;
            }
            if tenant.started.is_some() && (!waits || self.is_capped(entry)) {
                return Err(format!("{name}: its clock runs and it doesn't wait"));
            }
            present += u32::from(self.is_present(entry));
            present_weights += if self.is_present(entry) { u64::from(tenant.spec.weight) } else { 0 };
            weights += if waits { u64::from(tenant.spec.weight) } else { 0 };
        }
        equal("present tenants", self.tenants.present, present)?;
        equal("weights of present tenants", self.tenants.present_weights, present_weights)?;
        equal("weights that wait", self.tenants.weights, weights)
    }

    fn check_limits(&self) -> Result<(), String> {
        let (adapters_max, sequences_max) = self.config.split();
        let parted = self.config.policy.split != Split::Unified;
        let held = |kind, max| if parted { (self.pool.count(kind), max) } else { (0, 0) };
        let (adapter_pages, sequence_pages) =
            (held(OwnerKind::Adapter, adapters_max), held(OwnerKind::Sequence, sequences_max));
        let cached = if parted { self.pool.count(OwnerKind::Cached) } else { 0 };
        let flying = self.flights.flying();
        let tokens = |flight: &Flight| flight.rows.iter().map(|row| row.count).sum::<u32>();
        let tokens = flying.iter().map(tokens).max().unwrap_or(0);
        let rows = flying.iter().map(|flight| flight.rows.len() as u32).max().unwrap_or(0);
        let limits = [
            ("pages of adapters", adapter_pages.0, adapter_pages.1),
            ("pages of KV", sequence_pages.0 + cached, sequence_pages.1),
            ("pinned pages", self.adapters.pinned_pages, self.config.pinned_pages_max),
            ("groups passed over", self.passed.len() as u32, 0),
            ("rows", rows, self.config.rows_max),
            ("rows of a plan that was not made", self.chosen.len() as u32, 0),
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
