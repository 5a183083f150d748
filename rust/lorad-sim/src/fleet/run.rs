//! Runs a fleet: the real router and placement, replicas of whole numbers.

use lorad_fleet::{
    Adapter, AdapterIndex, Fleet, FleetError, Inventory, LoadTime, LoadTimes, ReplicaIndex, Request, Tier,
};

use super::homes::{assign, settings};
use super::replica::Fifo;
use super::scenario::{FleetReport, FleetScenario, Routing};
use crate::popularity::Popularity;
use crate::random::Random;

/// Streams of the scenario's seed.
const ARRIVALS: u64 = 1;
const ADAPTERS: u64 = 2;
/// A name's hash, so that which replica an adapter falls on changes with the seed.
const NAMES: u64 = 3;
const PREFILLS: u64 = 4;

/// When each request comes and for which adapter, µs from the beginning: what the scenario's seed draws.
pub fn requests(scenario: &FleetScenario) -> Vec<(u64, usize)> {
    let mut gaps = Random::fork(scenario.seed, ARRIVALS);
    let mut draws = Random::fork(scenario.seed, ADAPTERS);
    let mut popularity =
        Popularity::new((0..scenario.adapters as u32).collect(), scenario.zipf_milli, scenario.drift_us);
    let mut now = 0;
    let mut made = Vec::with_capacity(scenario.requests);
    for _ in 0..scenario.requests {
        now += gaps.exponential(scenario.gap_us);
        if let Some(adapter) = popularity.draw(now, &mut draws) {
            made.push((now, adapter as usize));
        }
    }
    made
}

/// Simulates a fleet. Fails where the router does: without replicas.
pub fn run(scenario: &FleetScenario) -> Result<FleetReport, FleetError> {
    let mut world = World::new(scenario)?;
    for (now, adapter) in requests(scenario) {
        world.ask(adapter, now)?;
    }
    Ok(world.report())
}

struct World<'a> {
    scenario: &'a FleetScenario,
    fleet: Fleet,
    adapters: Vec<AdapterIndex>,
    indices: Vec<ReplicaIndex>,
    replicas: Vec<Fifo>,
    /// Inventories that each has published.
    published: Vec<u64>,
    balanced_at: u64,
    prefills: Random,
    report: FleetReport,
}

impl<'a> World<'a> {
    fn new(scenario: &'a FleetScenario) -> Result<Self, FleetError> {
        let mut fleet = Fleet::new(settings(&scenario.routing));
        let mut names = Random::fork(scenario.seed, NAMES);
        let indices: Vec<ReplicaIndex> =
            (0..scenario.replicas).map(|_| fleet.add_replica(names.bits(), 1)).collect();
        fleet.add_adapters((0..scenario.adapters).map(|_| Adapter { key: names.bits(), kib: scenario.kib }));
        let mut world = Self {
            scenario,
            adapters: (0..scenario.adapters).filter_map(|number| fleet.adapter(number)).collect(),
            fleet,
            indices,
            replicas: vec![Fifo::new(scenario.room); scenario.replicas],
            published: vec![0; scenario.replicas],
            balanced_at: 0,
            prefills: Random::fork(scenario.seed, PREFILLS),
            report: FleetReport::default(),
        };
        if let Routing::Assigned { everywhere } = scenario.routing {
            assign(&mut world.fleet, &world.adapters, &world.indices, everywhere, scenario.seed)?;
            for number in 0..everywhere.min(scenario.adapters) {
                world.replicas.iter_mut().for_each(|replica| {
                    replica.hold(number);
                });
                world.report.preloads += scenario.replicas as u64;
            }
        }
        for replica in 0..scenario.replicas {
            world.publish(replica, 0, None)?;
        }
        Ok(world)
    }

    /// Says how a replica stands; `changes`: adapters that came or went, None for all.
    fn publish(&mut self, replica: usize, now: u64, changes: Option<&[usize]>) -> Result<(), FleetError> {
        let load = LoadTime { us: self.scenario.load_us, ns_kib: 0 };
        let held = &self.replicas[replica];
        let tier =
            |number: usize| (self.adapters[number], if held.holds(number) { Tier::Hot } else { Tier::Warm });
        let tiers = match changes {
            Some(changes) => changes.iter().map(|&number| tier(number)).collect(),
            None => (0..self.adapters.len()).map(tier).collect(),
        };
        let inventory = Inventory {
            number: self.published[replica] + 1,
            base: changes.map(|_| self.published[replica]),
            seen: u64::MAX,
            queue_us: held.queue_us(now),
            loads_wait_us: 0, // a load is part of the queue
            token_ns: 0,
            adapter_kib_max: self.scenario.kib.saturating_mul(self.scenario.room as u64),
            draining: false,
            loads: LoadTimes { warm: load, cold: load, absent: load },
            tiers,
        };
        self.published[replica] += 1;
        self.fleet.publish(self.indices[replica], now, &inventory)
    }

    fn ask(&mut self, number: usize, now: u64) -> Result<(), FleetError> {
        for replica in 0..self.replicas.len() {
            self.publish(replica, now, Some(&[]))?; // the queues are shorter by the time that has passed
        }
        if let Routing::Cost { rebalance_us, moves_max, .. } = self.scenario.routing {
            if now - self.balanced_at >= rebalance_us {
                self.balanced_at = now;
                self.report.moves += self.fleet.rebalance(now, moves_max).len() as u64;
                if self.scenario.prewarm {
                    self.prewarm(now, moves_max)?;
                }
            }
        }
        let request = Request { adapter: Some(self.adapters[number]), tokens: 1, blocks: &[] };
        let chosen = self.fleet.route(&request, now)?.replica.number();
        let replica = &mut self.replicas[chosen];
        let is_cold = !replica.holds(number);
        let gone = replica.hold(number);
        let load = if is_cold { self.scenario.load_us } else { 0 };
        let measured = &self.scenario.prefills_us;
        let prefill = match measured.len() {
            0 => self.scenario.prefill_us,
            count => measured[self.prefills.below(count as u64) as usize],
        };
        let ttft = if self.scenario.beside {
            replica.serve_beside(now, load, prefill)
        } else {
            replica.serve(now, load + prefill)
        };
        self.report.cold_loads += u64::from(is_cold);
        self.report.late += u64::from(ttft > self.scenario.late_us);
        self.report.ttft_us.push(ttft);
        let changes: Vec<usize> = gone.into_iter().chain([number]).collect();
        self.publish(chosen, now, Some(&changes))
    }

    /// Loads the most asked for adapters where they live and aren't held.
    fn prewarm(&mut self, now: u64, most: usize) -> Result<(), FleetError> {
        let mut heats = Vec::new();
        for (number, &adapter) in self.adapters.iter().enumerate() {
            heats.push((self.fleet.heat(adapter, now)?, number));
        }
        heats.sort_by(|one, two| two.0.total_cmp(&one.0).then(one.1.cmp(&two.1)));
        let mut left = most;
        for (_, number) in heats.into_iter().filter(|(heat, _)| *heat >= 1.0) {
            for home in self.fleet.homes(self.adapters[number])?.to_vec() {
                let replica = &mut self.replicas[home.number()];
                if left == 0 || replica.holds(number) {
                    continue;
                }
                let changes: Vec<usize> = replica.hold(number).into_iter().chain([number]).collect();
                left -= 1;
                self.report.preloads += 1;
                self.publish(home.number(), now, Some(&changes))?;
            }
        }
        Ok(())
    }

    fn report(mut self) -> FleetReport {
        self.report.kib_max =
            self.replicas.iter().map(|one| one.held_max as u64 * self.scenario.kib).collect();
        self.report.served = self.replicas.iter().map(|one| one.served).collect();
        self.report
    }
}
