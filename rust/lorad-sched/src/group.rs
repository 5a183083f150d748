//! Groups: the requests of one tenant, one adapter (or the base) and one priority wait in a queue of their own.
//!
//! A group with waiting requests stands in at most one place:
//!
//! ```text
//!   remote ──arrived──▶ Cold ──load planned──▶ (loading) ──done──▶ Ready        Resume: hot, and its head gave up its
//!                        ▲                                          │           pages because there were none: comes first
//!                        └───────────────── evicted ◀───────────────┘
//!   no place: bytes not on the host, being paged in, or the tenant is at one of its limits
//! ```
//!
//! Places are heaps per tenant, so what a step visits is bounded by the configuration, not by the number of waiting
//! requests or registered adapters.

use std::collections::HashMap;

use crate::heap::{Heaps, Key};
use crate::list::Lists;
use crate::request::Priority;

/// Where a group with waiting requests is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its adapter is hot, or it's the base's.
    Ready,
    /// Its adapter must be paged in.
    Cold,
    /// Its head was preempted for want of pages: comes first.
    Resume,
}

impl Place {
    pub const ALL: [Place; 3] = [Place::Resume, Place::Ready, Place::Cold];

    pub fn name(self) -> &'static str {
        match self {
            Place::Ready => "ready",
            Place::Cold => "cold",
            Place::Resume => "resume",
        }
    }
}

/// What names a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupName {
    /// Entry of the tenant.
    pub tenant: u32,
    /// Entry of the adapter, `None` for the base.
    pub adapter: Option<u32>,
    pub priority: Priority,
}

/// A group in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub name: GroupName,
    /// Its share of the tenant's service: the adapter's weight times the priority's.
    pub weight: u32,
    /// Charged nanoseconds over the weight.
    pub service: u64,
    /// Charged nanoseconds that `service` doesn't have yet.
    pub charged: u64,
    /// Requests that hold it: waiting, running, ending.
    pub holders: u32,
    /// Is it counted among its tenant's waiting groups?
    pub waits: bool,
    /// What the tenant's clock showed when its head began to wait at the head; meaningless unless in [`Groups::waits`].
    pub since: u64,
    /// Waiting groups of its tenant at that time, itself included.
    pub ahead: u32,
    /// Elected: others make way for it.
    pub urgent: bool,
    /// When; meaningless unless `urgent`.
    pub elected: u64,
}

/// Lists of [`Groups::idle`].
const NAMED: u32 = 0;
const NAMELESS: u32 = 1;

/// The table of groups.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    entries: Vec<Group>,
    index: HashMap<GroupName, u32>,
    /// Waiting requests by group: list = group, element = entry of the request.
    pub queues: Lists,
    /// Waiting groups by tenant in the order in which they began to wait: list = tenant, element = group.
    pub waits: Lists,
    /// Groups of an adapter: list = adapter, element = group.
    pub of_adapter: Lists,
    /// Ready (2 · tenant) and cold (2 · tenant + 1) groups of each tenant, by the policy's key.
    turns: Heaps,
    /// Groups in [`Place::Resume`]: one list.
    resume: Lists,
    /// Groups that nobody holds: those with a name, oldest first, which keep their service until their entry is needed,
    /// and those of forgotten adapters.
    idle: Lists,
    /// Groups that somebody holds, by tenant.
    held: Vec<u32>,
    /// Elected groups in the order of their election.
    pub urgent: Vec<u32>,
}

impl Groups {
    /// `urgent_max`: groups that may be urgent at the same time.
    pub fn new(urgent_max: usize) -> Self {
        Self {
            entries: Vec::new(),
            index: HashMap::new(),
            queues: Lists::new(0),
            waits: Lists::new(0),
            of_adapter: Lists::new(0),
            turns: Heaps::new(0),
            resume: Lists::new(1),
            idle: Lists::new(2),
            held: Vec::new(),
            urgent: Vec::with_capacity(urgent_max),
        }
    }

    /// The entry of a group.
    pub fn find(&self, name: GroupName) -> Option<u32> {
        self.index.get(&name).copied()
    }

    /// All entries; those of forgotten adapters included, which nobody holds.
    pub fn entries(&self) -> &[Group] {
        &self.entries
    }

    /// Makes room for the tenants 0 to `count`.
    pub fn grow_tenants(&mut self, count: usize) {
        self.waits.grow_lists(count);
        self.turns.grow_heaps(2 * count);
        if count > self.held.len() {
            self.held.resize(count, 0);
        }
    }

    /// Makes room for the adapters 0 to `count`.
    pub fn grow_adapters(&mut self, count: usize) {
        self.of_adapter.grow_lists(count);
    }

    /// Puts a group into the table. An entry that nobody holds is used again once there are `idle_max` of them.
    pub fn insert(&mut self, name: GroupName, weight: u32, floor: u64, idle_max: u32) -> u32 {
        let group = Group {
            name,
            weight,
            service: floor,
            charged: 0,
            holders: 0,
            waits: false,
            since: 0,
            ahead: 0,
            urgent: false,
            elected: 0,
        };
        let oldest = self.idle.front(NAMED).filter(|_| self.idle.length(NAMED) >= idle_max);
        let entry = match self.idle.front(NAMELESS).or(oldest) {
            Some(entry) => {
                if self.idle.list_of(entry) == Some(NAMED) {
                    self.index.remove(&self.entries[entry as usize].name);
                }
                self.of_adapter.remove(entry);
                self.entries[entry as usize] = group;
                entry
            }
            None => {
                self.entries.push(group);
                let count = self.entries.len();
                self.queues.grow_lists(count);
                self.waits.grow_elements(count);
                self.of_adapter.grow_elements(count);
                self.turns.grow_elements(count);
                self.resume.grow_elements(count);
                self.idle.grow_elements(count);
                (count - 1) as u32
            }
        };
        self.index.insert(name, entry);
        if let Some(adapter) = name.adapter {
            self.of_adapter.push_back(adapter, entry);
        }
        self.idle.push_back(NAMED, entry);
        entry
    }

    /// One more request holds a group.
    pub fn hold(&mut self, group: u32) {
        let Group { name, holders, .. } = &mut self.entries[group as usize];
        *holders += 1;
        if *holders > 1 {
            return;
        }
        self.idle.remove(group);
        let held = &mut self.held[name.tenant as usize];
        *held += 1;
        // so that no step allocates: only groups that somebody holds can stand in a place
        for heap in [2 * name.tenant, 2 * name.tenant + 1] {
            self.turns.reserve(heap, *held as usize);
        }
    }

    /// One request less holds a group.
    pub fn let_go(&mut self, group: u32) {
        let Group { name, holders, .. } = &mut self.entries[group as usize];
        *holders -= 1;
        if *holders == 0 {
            self.held[name.tenant as usize] -= 1;
            self.idle.push_back(NAMED, group);
        }
    }

    /// The adapter is forgotten: its groups, which nobody holds, are no longer found.
    pub fn forget_adapter(&mut self, adapter: u32) {
        while let Some(group) = self.of_adapter.front(adapter) {
            self.of_adapter.remove(group);
            self.index.remove(&self.entries[group as usize].name);
            self.idle.push_back(NAMELESS, group);
        }
    }

    /// The tenant is forgotten: its groups, which nobody holds, are no longer found.
    pub fn forget_tenant(&mut self, tenant: u32) {
        let mut next = self.idle.front(NAMED);
        while let Some(group) = next {
            next = self.idle.after(group);
            let name = self.entries[group as usize].name;
            if name.tenant == tenant {
                self.index.remove(&name);
                self.of_adapter.remove(group);
                self.idle.push_back(NAMELESS, group);
            }
        }
    }

    /// Does any request hold a group of a tenant?
    pub fn is_held(&self, tenant: u32) -> bool {
        self.held[tenant as usize] > 0
    }

    /// Where a group is.
    pub fn place(&self, group: u32) -> Option<Place> {
        if self.resume.list_of(group).is_some() {
            return Some(Place::Resume);
        }
        self.turns.heap_of(group).map(|heap| if heap % 2 == 0 { Place::Ready } else { Place::Cold })
    }

    /// Puts a group into a place, out of the one where it was.
    pub fn put(&mut self, group: u32, place: Place, key: Key) {
        let tenant = self.entries[group as usize].name.tenant;
        match place {
            Place::Resume => {
                self.turns.remove(group);
                if self.resume.list_of(group).is_none() {
                    self.resume.push_back(0, group);
                }
            }
            Place::Ready | Place::Cold => {
                self.resume.remove(group);
                self.turns.put(2 * tenant + u32::from(place == Place::Cold), group, key);
            }
        }
    }

    /// Takes a group out of its place.
    pub fn take_out(&mut self, group: u32) {
        self.turns.remove(group);
        self.resume.remove(group);
    }

    /// The group of a tenant that comes next in a place, and its key.
    pub fn front(&self, tenant: u32, place: Place) -> Option<(u32, Key)> {
        let group = match place {
            Place::Resume => return None,
            Place::Ready => self.turns.front(2 * tenant),
            Place::Cold => self.turns.front(2 * tenant + 1),
        }?;
        Some((group, self.turns.key(group)))
    }

    /// The group that gave up its pages first.
    pub fn front_resume(&self) -> Option<u32> {
        self.resume.front(0)
    }

    /// Orders the groups of a place for a dump; `service` is that of the group's tenant.
    pub fn rank(&self, group: u32, service: u64) -> (usize, u64, Key, u32) {
        let starved = self.resume.iter(0).position(|other| other == group);
        (starved.unwrap_or(0), service, self.turns.key(group), group)
    }

    /// Waiting requests of a group.
    pub fn waiting(&self, group: u32) -> u32 {
        self.queues.length(group)
    }

    pub fn check(&self) -> Result<(), String> {
        self.queues.check("queues")?;
        self.waits.check("waits")?;
        self.of_adapter.check("groups of adapters")?;
        self.turns.check("turns")?;
        self.resume.check("resume")?;
        self.idle.check("idle groups")?;
        for &group in &self.urgent {
            if self.waiting(group) == 0 || !self.entries[group as usize].urgent {
                return Err(format!("groups: urgent {group} has nobody waiting"));
            }
        }
        let elected = self.entries.iter().filter(|group| group.urgent).count();
        if elected != self.urgent.len() {
            return Err(format!("groups: {elected} are urgent, {} listed", self.urgent.len()));
        }
        Ok(())
    }
}

impl std::ops::Index<u32> for Groups {
    type Output = Group;
    fn index(&self, entry: u32) -> &Group {
        &self.entries[entry as usize]
    }
}

impl std::ops::IndexMut<u32> for Groups {
    fn index_mut(&mut self, entry: u32) -> &mut Group {
        &mut self.entries[entry as usize]
    }
}
