//! Adapters: what the host registers, where each one's bytes are, and the device's slots.

use std::collections::HashMap;
use std::fmt;

use lorad_blocks::heat::Heat;
use lorad_blocks::pool::PageId;

use crate::event::FailReason;
use crate::heap::{Heaps, Key};
use crate::tenant::TenantId;

/// The core's number of a registration. It's never given out twice, so an old one can't name a new adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(u32);

impl AdapterId {
    /// From the number that [`AdapterId::number`] gave.
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// As a number: 1 to 2³¹ − 1.
    pub fn number(&self) -> u32 {
        self.0
    }
}

impl fmt::Display for AdapterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An adapter, as the host registers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterSpec {
    /// Tag of the generation: travels in the plan, and the kernel compares it with the slot's. Never 0.
    pub tag: u32,
    /// Pages of its image.
    pub pages: u32,
    /// Layers of the image: page-ins go layer by layer.
    pub layers: u32,
    /// Whose it is: its limits count it. Anybody's requests may name it.
    pub tenant: TenantId,
    /// Its share of its tenant's service relative to the tenant's other adapters, 1 to 1000.
    pub weight: u32,
    /// Its bytes aren't on the host yet: [`crate::Event::AdapterWanted`] asks for them, [`crate::Core::arrived`] says that
    /// they are.
    pub remote: bool,
}

impl Default for AdapterSpec {
    fn default() -> Self {
        Self { tag: 0, pages: 0, layers: 1, tenant: 0, weight: 100, remote: false }
    }
}

/// May new requests name the adapter?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Yes.
    Open,
    /// No; it's forgotten when the last request that holds it has ended.
    Draining,
}

/// Where the bytes are. The pages lie in [`Adapter::image`], whose memory is taken once, at the registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// No adapter in this entry.
    Vacant,
    /// Not on the host; asked for while somebody waits.
    Remote {
        /// Was the host asked?
        asked: bool,
    },
    /// On the host only.
    Cold,
    /// Slot and pages are taken, the bytes are on their way. Not evictable: a copy writes into the pages.
    Loading {
        /// Slot in the device table.
        slot: u32,
        /// When the page-in was planned.
        since: u64,
        /// Layers that are there.
        layers: u32,
        /// Nobody waits for it any more: the host was told to stop, and its report gives the pages back.
        dropped: bool,
    },
    /// In its pages. Evictable while no row uses it.
    Hot {
        /// Slot in the device table.
        slot: u32,
        /// When a row last let go of it, or when it became hot.
        last_use: u64,
    },
    /// As cold; the last page-in failed. The next request tries again.
    Failed {
        /// What failed.
        why: FailReason,
    },
}

/// An adapter in the table.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub id: AdapterId,
    pub spec: AdapterSpec,
    pub standing: Standing,
    pub residency: Residency,
    /// Pages in the image's order; empty unless loading or hot.
    pub image: Vec<PageId>,
    /// Requests with a line, ending ones included.
    pub running: u32,
    /// Requests that hold this generation: waiting, preempted, running, ending.
    pub holders: u32,
    /// Requests in queues.
    pub waiting: u32,
    /// Never evicted once it's hot.
    pub pinned: bool,
    /// To be paged in although nobody waits.
    pub wanted: bool,
    /// Entry of the tenant that registered it.
    pub owner: u32,
    pub heat: Heat,
}

/// Hot, no row, nobody waits: anybody may evict it.
pub(crate) const IDLE: u32 = 0;
/// Hot, no row, but somebody waits: only a growing row or the urgent group may evict it.
pub(crate) const RESTED: u32 = 1;

/// The table of adapters and the device's slots.
#[derive(Clone, Debug)]
pub(crate) struct Adapters {
    entries: Vec<Adapter>,
    vacant: Vec<u32>,
    index: HashMap<AdapterId, u32>,
    serial: u32,
    /// Evictable adapters, those to be evicted first in front: heaps [`IDLE`] and [`RESTED`].
    pub evictable: Heaps,
    /// Pages of each of these lists.
    pub evictable_pages: [u32; 2],
    /// Which adapter has each slot of the device table.
    pub slots: Vec<Option<u32>>,
    pub slots_free: Vec<u32>,
    /// Slots that the device table must empty with the next plan.
    pub clears: Vec<u32>,
    /// Adapters being paged in.
    pub loading: u32,
    /// Adapters with running rows.
    pub active: u32,
    /// Pages of pinned adapters, hot or not.
    pub pinned_pages: u32,
    /// Pages of the largest adapter ever registered.
    pub pages_max: u32,
    /// Adapters to be paged in although nobody waits, in the order of asking.
    pub wanted: Vec<u32>,
}

impl Adapters {
    pub fn new(slots_max: u32) -> Self {
        let mut evictable = Heaps::new(2);
        for heap in [IDLE, RESTED] {
            evictable.reserve(heap, slots_max as usize);
        }
        Self {
            entries: Vec::new(),
            vacant: Vec::new(),
            index: HashMap::new(),
            serial: 0,
            evictable,
            evictable_pages: [0; 2],
            slots: vec![None; slots_max as usize],
            slots_free: (0..slots_max).rev().collect(),
            clears: Vec::with_capacity(slots_max as usize),
            loading: 0,
            active: 0,
            pinned_pages: 0,
            pages_max: 0,
            wanted: Vec::new(),
        }
    }

    /// The entry of an adapter.
    pub fn find(&self, id: AdapterId) -> Option<u32> {
        self.index.get(&id).copied()
    }

    /// Registered adapters, draining ones included.
    pub fn count(&self) -> u32 {
        self.index.len() as u32
    }

    /// Entries, vacant ones included.
    pub fn entries(&self) -> &[Adapter] {
        &self.entries
    }

    /// Living adapters in the order of their ids.
    pub fn sorted(&self) -> Vec<u32> {
        let mut entries: Vec<u32> = self.index.values().copied().collect();
        entries.sort_unstable_by_key(|&entry| self.entries[entry as usize].id);
        entries
    }

    /// Puts an adapter into an entry; `None` when all ids were given out.
    pub fn insert(&mut self, spec: AdapterSpec, image_pages: u32, owner: u32) -> Option<u32> {
        self.serial = self.serial.checked_add(1).filter(|&serial| serial <= i32::MAX as u32)?;
        let adapter = Adapter {
            id: AdapterId(self.serial),
            spec,
            standing: Standing::Open,
            residency: if spec.remote { Residency::Remote { asked: false } } else { Residency::Cold },
            image: Vec::with_capacity(image_pages as usize),
            running: 0,
            holders: 0,
            waiting: 0,
            pinned: false,
            wanted: false,
            owner,
            heat: Heat::default(),
        };
        let id = adapter.id;
        let entry = match self.vacant.pop() {
            Some(entry) => {
                self.entries[entry as usize] = adapter;
                entry
            }
            None => {
                self.entries.push(adapter);
                self.vacant.reserve(self.entries.capacity());
                self.evictable.grow_elements(self.entries.len());
                self.wanted.reserve(self.entries.capacity());
                (self.entries.len() - 1) as u32
            }
        };
        self.index.insert(id, entry);
        Some(entry)
    }

    /// Frees an entry; slot and pages went back before.
    pub fn vacate(&mut self, entry: u32) {
        let adapter = &mut self.entries[entry as usize];
        adapter.residency = Residency::Vacant;
        adapter.image = Vec::new();
        self.index.remove(&adapter.id);
        self.vacant.push(entry);
    }

    /// Puts an adapter into the evictable heap where it belongs now.
    pub fn relist(&mut self, entry: u32, key: Key) {
        let adapter = &self.entries[entry as usize];
        let pages = adapter.image.len() as u32;
        let target = match adapter.residency {
            Residency::Hot { .. } if adapter.pinned || adapter.running > 0 => None,
            Residency::Hot { .. } if adapter.waiting == 0 => Some(IDLE),
            Residency::Hot { .. } => Some(RESTED),
            Residency::Vacant
            | Residency::Remote { .. }
            | Residency::Cold
            | Residency::Loading { .. }
            | Residency::Failed { .. } => None,
        };
        let found = self.evictable.heap_of(entry);
        if found != target {
            if let Some(heap) = found {
                self.evictable.remove(entry);
                self.evictable_pages[heap as usize] -= pages;
            }
            if let Some(heap) = target {
                self.evictable_pages[heap as usize] += pages;
            }
        }
        if let Some(heap) = target {
            self.evictable.put(heap, entry, key);
        }
    }

    /// Takes a free slot for an adapter.
    pub fn take_slot(&mut self, entry: u32) -> Option<u32> {
        let slot = self.slots_free.pop()?;
        self.slots[slot as usize] = Some(entry);
        Some(slot)
    }

    /// Gives a slot back; the device empties it with the next plan.
    pub fn give_slot(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
        self.slots_free.push(slot);
        self.clears.push(slot);
    }

    /// Compares the index with the entries.
    pub fn check_index(&self) -> Result<(), String> {
        let living = self.entries.iter().filter(|adapter| adapter.residency != Residency::Vacant).count();
        if living != self.index.len() || living + self.vacant.len() != self.entries.len() {
            return Err(format!(
                "adapters: {living} live, {} in the index, {} vacant of {}",
                self.index.len(),
                self.vacant.len(),
                self.entries.len()
            ));
        }
        match self.index.iter().find(|(id, &entry)| self.entries[entry as usize].id != **id) {
            Some((id, entry)) => Err(format!("adapters: id {id} leads to entry {entry} of another")),
            None => Ok(()),
        }
    }
}

impl std::ops::Index<u32> for Adapters {
    type Output = Adapter;
    fn index(&self, entry: u32) -> &Adapter {
        &self.entries[entry as usize]
    }
}

impl std::ops::IndexMut<u32> for Adapters {
    fn index_mut(&mut self, entry: u32) -> &mut Adapter {
        &mut self.entries[entry as usize]
    }
}
