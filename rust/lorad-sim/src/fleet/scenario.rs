//! A fleet of replicas that serve one prompt at a time, and what is asked of it.

use std::fmt;

use lorad_fleet::Policy;

use crate::error::SimError;
use crate::text::Line;

/// More than these would only take long.
const COUNT_MAX: usize = 10_000_000;
pub(super) const ROUTINGS: &str =
    "round-robin, least-queue, assigned[:everywhere] or cost[:away_loads[:rebalance_us[:moves_max]]]";

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

    /// Reads what [`fmt::Display`] writes; numbers may be left out from the right.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let name = parts.next()?;
        let numbers: Vec<u64> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let number = |index: usize, usual: u64| numbers.get(index).copied().unwrap_or(usual);
        let (routing, most) = match name {
            "round-robin" => (Routing::RoundRobin, 0),
            "least-queue" => (Routing::LeastQueue, 0),
            "assigned" => (Routing::Assigned { everywhere: number(0, 5) as usize }, 1),
            "cost" => {
                let (away_loads, rebalance_us) = (number(0, 1), number(1, 5_000_000));
                (Routing::Cost { rebalance_us, moves_max: number(2, 8) as usize, away_loads }, 3)
            }
            _ => return None,
        };
        (numbers.len() <= most).then_some(routing)
    }
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Routing::RoundRobin => write!(f, "round-robin"),
            Routing::LeastQueue => write!(f, "least-queue"),
            Routing::Assigned { everywhere } => write!(f, "assigned:{everywhere}"),
            Routing::Cost { rebalance_us, moves_max, away_loads } => {
                write!(f, "cost:{away_loads}:{rebalance_us}:{moves_max}")
            }
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
    /// An adapter's load.
    pub load_us: u64,
    /// From the beginning of a prompt to its first token.
    pub prefill_us: u64,
    /// Such times as they were measured: each request draws one of them. Empty: all take [`Self::prefill_us`].
    pub prefills_us: Vec<u64>,
    /// A first token that comes later than this is late.
    pub late_us: u64,
    /// Adapters that a replica has room for; the one that was used longest ago goes. 0: for all.
    pub room: usize,
    /// How requests are sent.
    pub routing: Routing,
    /// Others are served beside a load. Else the replica does nothing else meanwhile, as in the exercise.
    pub beside: bool,
    /// After a rebalancing adapters are loaded where they live, as many as there may be moves. They're preloads.
    pub prewarm: bool,
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
            prefills_us: Vec::new(),
            late_us: 600_000,
            room: 0,
            routing,
            beside: false,
            prewarm: false,
        }
    }
}

impl FleetScenario {
    /// Reads `key=value` pairs, the fields' names; what isn't named is as in [`FleetScenario::chapter`]. A later pair wins. Refuses
    /// unknown keys, values that don't fit, and fleets without replicas or adapters.
    pub fn parse(text: &str) -> Result<Self, SimError> {
        let mut scenario = Self::chapter(Routing::RoundRobin, 0);
        for mut line in Line::all(text) {
            while let Some((key, value)) = line.pair() {
                scenario.set(&line, key, value)?;
            }
            line.end()?;
        }
        Ok(scenario)
    }

    fn set(&mut self, line: &Line<'_>, key: &str, value: &str) -> Result<(), SimError> {
        let number = |least: u64, most: u64| {
            let fits = |number: &u64| (least..=most).contains(number);
            value.parse().ok().filter(fits).ok_or_else(|| SimError::Value {
                line: line.place(),
                field: key.to_string(),
                value: value.to_string(),
                wants: format!("{least} to {most}"),
            })
        };
        let count = |most: usize| number(1, most as u64).map(|count| count as usize);
        match key {
            "seed" => self.seed = number(0, u64::MAX)?,
            "replicas" => self.replicas = count(10_000)?,
            "adapters" => self.adapters = count(1_000_000)?,
            "zipf_milli" => self.zipf_milli = number(0, 10_000)?,
            "drift_us" => self.drift_us = number(0, u64::MAX)?,
            "requests" => self.requests = count(COUNT_MAX)?,
            "gap_us" => self.gap_us = number(1, 1 << 40)?,
            "kib" => self.kib = number(1, 1 << 40)?,
            "load_us" => self.load_us = number(0, 1 << 40)?,
            "prefill_us" => self.prefill_us = number(1, 1 << 40)?,
            "prefills_us" => {
                let listed: Option<Vec<u64>> = value.split(',').map(|one| one.parse().ok()).collect();
                let fits = |list: &Vec<u64>| list.iter().all(|us| (1..=1 << 40).contains(us));
                self.prefills_us = listed.filter(fits).ok_or_else(|| SimError::Value {
                    line: line.place(),
                    field: key.to_string(),
                    value: value.chars().take(80).collect(),
                    wants: format!("numbers between commas, 1 to {}", 1u64 << 40),
                })?;
            }
            "late_us" => self.late_us = number(0, u64::MAX)?,
            "room" => self.room = number(0, 1_000_000)? as usize,
            "beside" => self.beside = number(0, 1)? == 1,
            "prewarm" => self.prewarm = number(0, 1)? == 1,
            "routing" => {
                self.routing = Routing::parse(value).ok_or_else(|| SimError::Value {
                    line: line.place(),
                    field: key.to_string(),
                    value: value.to_string(),
                    wants: ROUTINGS.to_string(),
                })?;
            }
            _ => return Err(SimError::Unknown { line: line.place(), field: key.to_string() }),
        }
        Ok(())
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetReport {
    /// Requests that waited for a load of their own.
    pub cold_loads: u64,
    /// Loads that no request waited for: before the first one, and of adapters where they live.
    pub preloads: u64,
    /// Requests whose first token came later than [`FleetScenario::late_us`].
    pub late: u64,
    /// Of each replica: the most KiB of adapters that it held.
    pub kib_max: Vec<u64>,
    /// Times to first token, in the order of time.
    pub ttft_us: Vec<u64>,
    /// Of real cores: when each request came that was answered, and its time to first token.
    pub answered: Vec<(u64, u64)>,
    /// Requests that were sent to another replica after one had died.
    pub retried: u64,
    /// Requests whose answer had begun when their replica died, or that a core gave up.
    pub cut: u64,
    /// Requests that nobody took.
    pub refused: u64,
    /// When homes were given, moved or taken away.
    pub moves_us: Vec<u64>,
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
