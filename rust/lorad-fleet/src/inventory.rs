//! What a replica publishes of itself.

use crate::adapter::AdapterIndex;

/// Where a replica has an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// In pages of its pool: nothing is waited for. Whether it's in use makes no difference.
    Hot,
    /// On its way into pages.
    Loading,
    /// In the host's memory.
    Warm,
    /// On the replica's disk.
    Cold,
    /// Not there: it's fetched from where adapters are kept.
    #[default]
    Absent,
}

impl Tier {
    /// All of them, the quickest first.
    pub const ALL: [Tier; 5] = [Tier::Hot, Tier::Loading, Tier::Warm, Tier::Cold, Tier::Absent];

    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Tier::Hot => "hot",
            Tier::Loading => "loading",
            Tier::Warm => "warm",
            Tier::Cold => "cold",
            Tier::Absent => "absent",
        }
    }

    /// The tier of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

/// How long a load takes: so much for each, and so much for each KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTime {
    /// µs.
    pub us: u64,
    /// ns for each KiB.
    pub ns_kib: u64,
}

impl LoadTime {
    /// µs for so many KiB.
    pub fn of(&self, kib: u64) -> u64 {
        self.us.saturating_add(self.ns_kib.saturating_mul(kib) / 1000)
    }
}

/// How long an adapter takes into pages, as the replica measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadTimes {
    /// From the host's memory.
    pub warm: LoadTime,
    /// From its disk.
    pub cold: LoadTime,
    /// From where adapters are kept.
    pub absent: LoadTime,
}

impl LoadTimes {
    /// µs from a tier for an adapter of so many KiB. One that is being loaded counts half, as nobody knows how far it is.
    pub fn of(&self, tier: Tier, kib: u64) -> u64 {
        match tier {
            Tier::Hot => 0,
            Tier::Loading => self.warm.of(kib) / 2,
            Tier::Warm => self.warm.of(kib),
            Tier::Cold => self.cold.of(kib),
            Tier::Absent => self.absent.of(kib),
        }
    }
}

impl Default for LoadTimes {
    /// Before anything was measured: 50 ms for 160 MiB from memory, 4 times that from disk, and 800 ms from elsewhere.
    fn default() -> Self {
        Self {
            warm: LoadTime { us: 0, ns_kib: 305 },
            cold: LoadTime { us: 0, ns_kib: 1221 },
            absent: LoadTime { us: 0, ns_kib: 4883 },
        }
    }
}

/// A replica's state, or its changes since an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Its number; larger than the one before.
    pub number: u64,
    /// None: `tiers` is all that the replica has. Else: what has changed since that inventory.
    pub base: Option<u64>,
    /// The last request of this router that it has received, as numbered by [`crate::Choice::number`]; 0: none. Work that was
    /// sent after it isn't part of `queue_us` yet.
    pub seen: u64,
    /// How long a request that came now would wait before its prompt is begun, µs.
    pub queue_us: u64,
    /// How long a load that began now would wait for those before it, µs.
    pub loads_wait_us: u64,
    /// A prompt's token takes so long, ns.
    pub token_ns: u64,
    /// Room for adapters that isn't KV's, KiB.
    pub adapter_kib_max: u64,
    /// It takes no new requests.
    pub draining: bool,
    /// Its load times.
    pub loads: LoadTimes,
    /// Adapters by tier; the rest are [`Tier::Absent`].
    pub tiers: Vec<(AdapterIndex, Tier)>,
}
