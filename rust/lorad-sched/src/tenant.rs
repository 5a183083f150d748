//! Tenants: who is served how much, and what each may hold.
//!
//! A tenant's `service` is what it was charged, in nanoseconds of the cost model, over its weight. Tenants that wait are
//! served least service first (virtual token counters: Sheng et al., "Fairness in serving large language models", 2024,
//! with time for tokens). `floor` is the least service among those that wait; it never falls: who comes back rises to it,
//! so idling saves nothing up.
//!
//! A tenant's clock runs while it waits inside its share (its service is at most [`Tenants::slack`] above the floor) and
//! below its own limits. The waits of its groups are measured on this clock: who takes more than the share can't hurry the
//! others by owning more adapters.

use std::collections::HashMap;

use crate::heap::Heaps;

/// The host's number of a tenant. 0 is the one that a host without tenants uses.
pub type TenantId = u32;

/// Share and limits of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantSpec {
    /// Share of the service relative to the other tenants' weights: 1 to 1000.
    pub weight: u32,
    /// Pages of its running requests and of the adapters that it registered and that run or load.
    pub pages_max: u32,
    /// Adapters that it may register.
    pub adapters_max: u32,
    /// Requests that run at the same time.
    pub running_max: u32,
    /// Requests that wait; preempted ones come on top.
    pub waiting_max: u32,
}

impl Default for TenantSpec {
    fn default() -> Self {
        Self {
            weight: 100,
            pages_max: u32::MAX,
            adapters_max: u32::MAX,
            running_max: u32::MAX,
            waiting_max: u32::MAX,
        }
    }
}

/// Largest weight of a tenant or an adapter.
pub const WEIGHT_MAX: u32 = 1000;

/// A tenant in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant {
    pub id: TenantId,
    pub spec: TenantSpec,
    /// Charged nanoseconds over the weight.
    pub service: u64,
    /// Charged nanoseconds that `service` doesn't have yet.
    pub charged: u64,
    /// The least service among its waiting groups, ever.
    pub group_floor: u64,
    /// Groups with waiting requests.
    pub groups_waiting: u32,
    pub waiting: u32,
    pub running: u32,
    /// Pages of its running requests and of its adapters that run or load.
    pub pages: u32,
    /// Adapters that it has registered.
    pub adapters: u32,
    /// What the clock showed when it last started or stopped, µs.
    pub clock: u64,
    /// When it last started; `None` while it stands.
    pub started: Option<u64>,
    /// Urgent groups that had their turn, over the weight.
    pub turns: u64,
    /// A head that has waited longest has no room beside what the tenant has, by its own limit: the clock stands until some of
    /// that goes back.
    pub held_up: bool,
}

impl Tenant {
    /// What the clock shows, µs.
    pub fn clock(&self, now: u64) -> u64 {
        self.clock + self.started.map_or(0, |started| now.saturating_sub(started))
    }
}

/// The table of tenants, and the orders that they stand in.
#[derive(Clone, Debug)]
pub(crate) struct Tenants {
    entries: Vec<Tenant>,
    index: HashMap<TenantId, u32>,
    /// Tenants that wait, by service.
    pub waiting: Heaps,
    /// Tenants with a group that can be admitted, by the policy's key.
    pub ready: Heaps,
    /// Tenants with a group whose adapter must be paged in, by the policy's key.
    pub cold: Heaps,
    /// Tenants above their share, by service.
    pub over: Heaps,
    /// Tenants whose clock runs, by the moment when their longest waiting group becomes urgent.
    pub due: Heaps,
    /// Tenants with an urgent group, by turns.
    pub urgent: Heaps,
    /// Tenants without requests that still count as present, by the moment when they no longer do.
    pub leaving: Heaps,
    /// Present tenants: see `share.rs`.
    pub present: u32,
    /// Their weights, added up.
    pub present_weights: u64,
    /// Service above the floor with which a tenant is still light.
    pub grace: u64,
    /// Least service among those that wait, ever.
    pub floor: u64,
    /// Least turns among those with an urgent group, ever.
    pub turn_floor: u64,
    /// Service above the floor that still counts as inside the share.
    pub slack: u64,
    /// Weights of the tenants that wait, added up.
    pub weights: u64,
    /// The most that `weights`, the count of waiting tenants and that of present ones were since nobody waited.
    pub peak_weights: u64,
    pub peak_tenants: u32,
    pub peak_present: u32,
}

impl Tenants {
    pub fn new() -> Self {
        let heap = || Heaps::new(1);
        Self {
            entries: Vec::new(),
            index: HashMap::new(),
            waiting: heap(),
            ready: heap(),
            cold: heap(),
            over: heap(),
            due: heap(),
            urgent: heap(),
            leaving: heap(),
            present: 0,
            present_weights: 0,
            grace: 0,
            floor: 0,
            turn_floor: 0,
            slack: 0,
            weights: 0,
            peak_weights: 0,
            peak_tenants: 0,
            peak_present: 0,
        }
    }

    /// The entry of a tenant.
    pub fn find(&self, id: TenantId) -> Option<u32> {
        self.index.get(&id).copied()
    }

    /// All tenants.
    pub fn entries(&self) -> &[Tenant] {
        &self.entries
    }

    /// Entries in the order of their ids.
    pub fn sorted(&self) -> Vec<u32> {
        let mut entries: Vec<u32> = (0..self.entries.len() as u32).collect();
        entries.sort_unstable_by_key(|&entry| self.entries[entry as usize].id);
        entries
    }

    /// Puts a tenant into the table, in the place of the one that is `forgotten`, else behind all others; the caller has
    /// seen to the limit.
    pub fn insert(&mut self, id: TenantId, spec: TenantSpec, forgotten: Option<u32>) -> u32 {
        let tenant = Tenant {
            id,
            spec,
            service: self.floor,
            charged: 0,
            group_floor: 0,
            groups_waiting: 0,
            waiting: 0,
            running: 0,
            pages: 0,
            adapters: 0,
            clock: 0,
            started: None,
            turns: 0,
            held_up: false,
        };
        let entry = match forgotten {
            Some(entry) => {
                debug_assert!(self.heaps_mut().iter().all(|heaps| heaps.heap_of(entry).is_none()));
                let before = std::mem::replace(&mut self[entry], tenant);
                self.index.remove(&before.id);
                entry
            }
            None => {
                self.entries.push(tenant);
                let count = self.entries.len();
                for heaps in self.heaps_mut() {
                    heaps.grow_elements(count);
                    heaps.reserve(0, count);
                }
                count as u32 - 1
            }
        };
        self.index.insert(id, entry);
        entry
    }

    fn heaps_mut(&mut self) -> [&mut Heaps; 7] {
        [
            &mut self.waiting,
            &mut self.ready,
            &mut self.cold,
            &mut self.over,
            &mut self.due,
            &mut self.urgent,
            &mut self.leaving,
        ]
    }

    /// Raises the floor to the least service among those that wait.
    pub fn raise_floor(&mut self) {
        if let Some(least) = self.waiting.front(0) {
            self.floor = self.floor.max(self.entries[least as usize].service);
        }
    }

    pub fn check(&self) -> Result<(), String> {
        let heaps = [
            ("tenants waiting", &self.waiting),
            ("tenants ready", &self.ready),
            ("tenants cold", &self.cold),
            ("tenants over", &self.over),
            ("tenants due", &self.due),
            ("tenants urgent", &self.urgent),
            ("tenants leaving", &self.leaving),
        ];
        heaps.into_iter().try_for_each(|(name, heaps)| heaps.check(name))
    }
}

impl std::ops::Index<u32> for Tenants {
    type Output = Tenant;
    fn index(&self, entry: u32) -> &Tenant {
        &self.entries[entry as usize]
    }
}

impl std::ops::IndexMut<u32> for Tenants {
    fn index_mut(&mut self, entry: u32) -> &mut Tenant {
        &mut self.entries[entry as usize]
    }
}
