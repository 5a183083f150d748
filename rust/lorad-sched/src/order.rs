//! Who comes next: charges, floors, clocks, and the place of each group and tenant.

use crate::adapter::Residency;
use crate::core::Core;
use crate::group::Place;
use crate::heap::Key;
use crate::policy::Order;
use crate::request::RequestState;

/// Weight of a group of an adapter's and a priority's usual weight.
const USUAL_WEIGHT: u64 = 400;

impl Core {
    /// Puts a group where it belongs: the one place that decides it. Called after everything that changes its queue, its
    /// adapter's residency or its tenant's limits.
    pub(crate) fn settle(&mut self, group: u32) {
        let head = self.groups.queues.front(group);
        if self.groups[group].waits != head.is_some() {
            self.count_waiting_group(group, head.is_some());
        }
        let name = self.groups[group].name;
        let Some(head) = head else {
            self.groups.take_out(group);
            self.stop_waiting(group);
            self.place_tenant(name.tenant);
            return;
        };
        let residency = name.adapter.map(|adapter| self.adapters[adapter].residency);
        if matches!(residency, Some(Residency::Remote { .. })) {
            self.stop_waiting(group);
        } else {
            self.start_waiting(group);
        }
        let capped = self.is_capped(name.tenant);
        if capped {
            self.end_urgency(group); // nobody makes way for what its own tenant's limits withhold
        }
        let starved = matches!(self.requests[head].state, RequestState::Preempted { starved: true });
        let target = match residency {
            _ if capped => None,
            Some(Residency::Loading { .. } | Residency::Remote { .. } | Residency::Vacant) => None,
            None | Some(Residency::Hot { .. }) if starved => Some(Place::Resume),
            None | Some(Residency::Hot { .. }) => Some(Place::Ready),
            Some(Residency::Cold | Residency::Failed { .. }) => Some(Place::Cold),
        };
        match target {
            Some(place) => self.groups.put(group, place, self.group_key(group)),
            None => self.groups.take_out(group),
        }
        self.place_tenant(name.tenant);
    }

    fn quantum(&self) -> u64 {
        (self.config.quantum_us.saturating_mul(1000) / USUAL_WEIGHT).max(1)
    }

    fn group_key(&self, group: u32) -> Key {
        let arrived = self.groups.queues.front(group).map_or(0, |head| self.requests[head].serial);
        match self.config.policy.order {
            Order::Fair => (
                self.groups[group].service / self.quantum(),
                self.groups[group].name.priority.rank() << 62 | arrived,
            ),
            Order::Arrival | Order::Affinity => (arrived, 0),
        }
    }

    /// Puts a tenant where it belongs in every order.
    pub(crate) fn place_tenant(&mut self, tenant: u32) {
        let service = self.tenants[tenant].service;
        let key = |(_, key): (u32, Key)| match self.config.policy.order {
            Order::Fair => (service, key.1 & u64::MAX >> 2),
            Order::Arrival | Order::Affinity => key,
        };
        let ready = self.groups.front(tenant, Place::Ready).map(key);
        let cold = self.groups.front(tenant, Place::Cold).map(key);
        let waits = (self.tenants[tenant].groups_waiting > 0).then_some((service, 0));
        let tenants = &mut self.tenants;
        for (heaps, key) in
            [(&mut tenants.ready, ready), (&mut tenants.cold, cold), (&mut tenants.waiting, waits)]
        {
            match key {
                Some(key) if heaps.heap_of(tenant).is_some() && heaps.key(tenant) == key => {}
                Some(key) => heaps.put(0, tenant, key),
                None => heaps.remove(tenant),
            }
        }
        self.tenants.raise_floor(); // who alone waits is always inside the share
        self.run_clock(tenant);
    }

    /// Is a tenant at one of its limits on what runs?
    pub(crate) fn is_capped(&self, tenant: u32) -> bool {
        let tenant = &self.tenants[tenant];
        tenant.running >= tenant.spec.running_max || tenant.pages >= tenant.spec.pages_max
    }

    /// Settles all waiting groups of a tenant when it came to a limit, or is below it again.
    pub(crate) fn recap(&mut self, tenant: u32, was_capped: bool) {
        if self.is_capped(tenant) == was_capped {
            return;
        }
        let mut next = self.groups.waits.front(tenant);
        while let Some(group) = next {
            next = self.groups.waits.after(group);
            self.settle(group);
        }
        self.place_tenant(tenant);
    }

    fn count_waiting_group(&mut self, group: u32, waits: bool) {
        self.groups[group].waits = waits;
        let tenant = self.groups[group].name.tenant;
        let floor = self.tenants.floor;
        let state = &mut self.tenants[tenant];
        let weight = u64::from(state.spec.weight);
        if waits {
            state.groups_waiting += 1;
            if state.groups_waiting == 1 {
                state.service = state.service.max(floor);
                self.tenants.weights += weight;
                self.tenants.waiting.put(0, tenant, (self.tenants[tenant].service, 0));
            }
            let floor = self.tenants[tenant].group_floor;
            let service = &mut self.groups[group].service;
            *service = (*service).max(floor);
        } else {
            state.groups_waiting -= 1;
            if state.groups_waiting == 0 {
                self.tenants.weights -= weight;
                self.tenants.waiting.remove(tenant);
            }
        }
        let tenants = &mut self.tenants;
        let count = tenants.waiting.length(0);
        if count == 0 {
            (tenants.peak_weights, tenants.peak_tenants, tenants.peak_present) = (0, 0, 0);
        }
        tenants.peak_weights = tenants.peak_weights.max(tenants.weights);
        tenants.peak_tenants = tenants.peak_tenants.max(count);
        tenants.peak_present = tenants.peak_present.max(tenants.present);
    }

    /// A group's head waits at the head from now on, behind the tenant's other waiting groups.
    fn start_waiting(&mut self, group: u32) {
        if self.groups.waits.list_of(group).is_some() {
            return;
        }
        let tenant = self.groups[group].name.tenant;
        self.groups.waits.push_back(tenant, group);
        self.groups[group].since = self.tenants[tenant].clock(self.now);
        self.groups[group].ahead = self.tenants[tenant].groups_waiting;
        self.place_due(tenant);
    }

    /// A group's head has no room beside what its tenant has: nobody makes way for that, and no turn is kept for it.
    pub(crate) fn hold_up(&mut self, group: u32) {
        let tenant = self.groups[group].name.tenant;
        self.end_urgency(group);
        self.tenants[tenant].held_up = true;
        self.run_clock(tenant);
    }

    /// Something of a tenant went back, or its limits are others: perhaps there is room now.
    pub(crate) fn go_on(&mut self, tenant: u32) {
        if std::mem::replace(&mut self.tenants[tenant].held_up, false) {
            self.run_clock(tenant);
        }
    }

    fn end_urgency(&mut self, group: u32) {
        if std::mem::replace(&mut self.groups[group].urgent, false) {
            self.groups.urgent.retain(|&other| other != group);
            self.let_in = 0; // the next one's turn begins
        }
    }

    /// Nobody of a group waits any more, or its head was admitted.
    pub(crate) fn stop_waiting(&mut self, group: u32) {
        self.end_urgency(group);
        if self.groups.waits.list_of(group).is_some() {
            self.groups.waits.remove(group);
            self.place_due(self.groups[group].name.tenant);
        }
    }

    /// Starts or stops a tenant's clock: it runs while groups wait, inside the share and below the limits.
    fn run_clock(&mut self, tenant: u32) {
        let state = &self.tenants[tenant];
        let over = state.service > self.tenants.floor.saturating_add(self.tenants.slack);
        let runs = state.groups_waiting > 0 && !over && !state.held_up && !self.is_capped(tenant);
        if over && state.groups_waiting > 0 {
            self.tenants.over.put(0, tenant, (state.service, 0));
        } else {
            self.tenants.over.remove(tenant);
        }
        let now = self.now;
        let state = &mut self.tenants[tenant];
        if runs == state.started.is_some() {
            return;
        }
        state.clock = state.clock(now);
        state.started = runs.then_some(now);
        self.place_due(tenant);
    }

    /// Puts a tenant where its longest waiting group has it: to become urgent at some moment, or urgent.
    pub(crate) fn place_due(&mut self, tenant: u32) {
        let state = &self.tenants[tenant];
        let waits = self.groups.waits.iter(tenant).find(|&group| !self.groups[group].urgent);
        let longest = waits.filter(|_| state.started.is_some());
        let due = longest.map(|group| {
            let waited = state.clock(self.now).saturating_sub(self.groups[group].since);
            self.now.saturating_add(self.config.urgent_after_us.saturating_sub(waited))
        });
        match due {
            Some(due) => self.tenants.due.put(0, tenant, (due, 0)),
            None => self.tenants.due.remove(tenant),
        }
        if due.is_none_or(|due| due > self.now) {
            self.tenants.urgent.remove(tenant);
        }
    }

    /// Brings floor, clocks and the urgent tenants up to now. What it visits are only tenants whose state changes.
    pub(crate) fn turn_clocks(&mut self) {
        self.start_clocks();
        if self.config.policy.order != Order::Fair {
            return;
        }
        while let Some(tenant) =
            self.tenants.due.front(0).filter(|&due| self.tenants.due.key(due).0 <= self.now)
        {
            self.tenants.due.remove(tenant);
            self.make_urgent(tenant);
        }
    }

    /// Starts the clocks of tenants that are inside their share again.
    fn start_clocks(&mut self) {
        self.tenants.raise_floor();
        while let Some(tenant) = self.tenants.over.front(0) {
            if self.tenants[tenant].service > self.tenants.floor.saturating_add(self.tenants.slack) {
                break;
            }
            self.tenants.over.remove(tenant);
            self.run_clock(tenant);
        }
    }

    fn make_urgent(&mut self, tenant: u32) {
        let floor = self.tenants.turn_floor;
        let turns = &mut self.tenants[tenant].turns;
        *turns = (*turns).max(floor);
        self.tenants.urgent.put(0, tenant, (self.tenants[tenant].turns, 0));
    }

    /// Charges a group and its tenant, from the next [`Core::settle_charges`] on: a group has many rows in a step.
    pub(crate) fn charge(&mut self, group: u32, ns: u64) {
        let charged = &mut self.groups[group].charged;
        *charged = charged.saturating_add(ns);
        self.charged_groups.mark(group);
    }

    /// Adds what was charged to the service of groups and tenants, and puts them where they belong.
    pub(crate) fn settle_charges(&mut self) {
        while let Some(group) = self.charged_groups.take() {
            let state = &mut self.groups[group];
            let (tenant, ns) = (state.name.tenant, std::mem::take(&mut state.charged));
            state.service = state.service.saturating_add(ns / u64::from(state.weight.max(1)));
            let charged = &mut self.tenants[tenant].charged;
            *charged = charged.saturating_add(ns);
            self.charged_tenants.mark(tenant);
            if let Some(place) = self.groups.place(group) {
                self.groups.put(group, place, self.group_key(group));
            }
        }
        // all services before anybody's place: beside a least served one that isn't charged yet a tenant would seem to be above
        // its share, and where it then stands would depend on the order of charging
        for tenant in self.charged_tenants.iter() {
            let state = &mut self.tenants[tenant];
            let ns = std::mem::take(&mut state.charged);
            state.service = state.service.saturating_add(ns / u64::from(state.spec.weight.max(1)));
            if state.groups_waiting > 0 {
                let key = (state.service, 0);
                self.tenants.waiting.put(0, tenant, key);
            }
        }
        self.tenants.raise_floor();
        while let Some(tenant) = self.charged_tenants.take() {
            self.place_tenant(tenant);
        }
        self.start_clocks();
    }
}
