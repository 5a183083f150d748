//! A fleet of replicas that serve one prompt at a time, and what is asked of it.

use lorad_fleet::Policy;

/// How requests are sent and where adapters live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// One replica after the other, whatever is asked for.
    RoundRobin,
    /// The shortest queue.
    LeastQueue,
    /// So many of the most popular adapters are on every replica before the first request comes, each other one has one replica by
    /// the hash of its name: what is popular is known and doesn't change.
    Assigned {
        /// Adapters that are everywhere.
        everywhere: usize,
    },
    /// lorad's: the least cost, homes from what is asked for, looked at again every so often.
    Cost {
        /// µs between two rebalancings.
        rebalance_us: u64,
        /// Moves of each.
        moves_max: usize,
        /// As [`lorad_fleet::Settings::away_loads`].
        away_loads: u64,
    },
}

impl Routing {
    /// The fleet's policy.
    pub fn policy(&self) -> Policy {
        match self {
            Routing::RoundRobin => Policy::RoundRobin,
            Routing::LeastQueue => Policy::LeastQueue,
            Routing::Assigned { .. } => Policy::Affinity,
            Routing::Cost { .. } => Policy::Cost,
        }
    }

    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Routing::RoundRobin => "round-robin",
            Routing::LeastQueue => "least-queue",
            Routing::Assigned { .. } => "assigned",
            Routing::Cost { .. } => "cost",
        }
    }
}

/// What is simulated. Times are in µs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetScenario {
    /// Decides everything that is drawn.
    pub seed: u64,
    /// Replicas, all alike.
    pub replicas: usize,
    /// Adapters, all of a size.
    pub adapters: usize,
    /// Zipf's exponent in thousandths.
    pub zipf_milli: u64,
    /// Popularity drifts: so often two adapters change places; 0: never.
    pub drift_us: u64,
    /// Requests, by Poisson's law.
    pub requests: usize,
    /// Between two of them, on average.
    pub gap_us: u64,
    /// An adapter's KiB.
    pub kib: u64,
    /// An adapter's load; the replica does nothing else meanwhile.
    pub load_us: u64,
    /// From the beginning of a prompt to its first token.
    pub prefill_us: u64,
    /// A first token that comes later than this is late.
    pub late_us: u64,
    /// Adapters that a replica has room for; the one that was used longest ago goes. 0: for all.
    pub room: usize,
    /// How requests are sent.
    pub routing: Routing,
}

impl FleetScenario {
    /// The exercise of the chapter on adapters at fleet scale: 50 adapters of 160 MiB by Zipf's law with exponent 1, 8 replicas, 1,000
    /// requests, 50 ms a load, 400 ms to a first token, late after 600 ms; 14 requests a second, 70% of what the replicas can do.
    pub fn chapter(routing: Routing, seed: u64) -> Self {
        Self {
            seed,
            replicas: 8,
            adapters: 50,
            zipf_milli: 1000,
            drift_us: 0,
            requests: 1000,
            gap_us: 1_000_000 / 14,
            kib: 160 << 10,
            load_us: 50_000,
            prefill_us: 400_000,
            late_us: 600_000,
            room: 0,
            routing,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetReport {
    /// Requests that waited for a load of their own.
    pub cold_loads: u64,
    /// Loads before the first request.
    pub preloads: u64,
    /// Requests whose first token came later than [`FleetScenario::late_us`].
    pub late: u64,
    /// Of each replica: the most KiB of adapters that it held.
    pub kib_max: Vec<u64>,
    /// Times to first token, in the order of time.
    pub ttft_us: Vec<u64>,
    /// Requests that each replica served.
    pub served: Vec<u64>,
    /// Homes that were given, moved or taken away after the first request.
    pub moves: u64,
}

impl FleetReport {
    /// The time to first token that so many of a hundred don't exceed, by nearest rank; 0 without any.
    pub fn ttft_us(&self, percent: usize) -> u64 {
        let mut sorted = self.ttft_us.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(0)
    }

    /// The most KiB that any replica held.
    pub fn kib_most(&self) -> u64 {
        self.kib_max.iter().copied().max().unwrap_or(0)
    }
}
