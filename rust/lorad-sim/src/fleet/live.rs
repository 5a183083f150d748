//! Runs a fleet of real cores: one virtual clock, the real router between requests and replicas.
//!
//! Order at one moment: steps end, inventories arrive, replicas die or join, requests come, inventories are published,
//! homes are looked at again, steps begin.

use std::collections::{HashMap, VecDeque};

use lorad_fleet::{Adapter, AdapterIndex, Fleet, FleetError, Inventory, ReplicaIndex, Request, Settings};

use super::cores::{CoresScenario, Down};
use super::homes::{assign, settings};
use super::node::Node;
use super::scenario::{FleetReport, Routing};
use crate::book::End;
use crate::error::{Failure, Kind, SimError};
use crate::random::{mix, Random};
use crate::trace::{Action, Ask, Input};

/// Names' hashes, a stream of the scenario's seed apart from the replica's own.
const NAMES: u64 = 51;

/// Simulates a fleet. Fails where a core breaks a promise, or its limits make no sense.
pub fn run(scenario: &CoresScenario) -> Result<FleetReport, SimError> {
    let trace = scenario.replica.trace()?;
    let mut live = Live::new(scenario, trace.inputs())?;
    while let Some(now) = live.next_us() {
        live.turn(now)?;
    }
    live.report()
}

/// A place among the replicas, whether or not there is one now.
struct Seat {
    key: u64,
    node: Option<Node>,
    /// The router's, from when it joined until it's given up.
    index: Option<ReplicaIndex>,
    /// The last request that was handed to it.
    seen: u64,
    inventories: u64,
}

/// Where a request is.
struct Sent {
    ask: Ask,
    arrived_us: u64,
    seat: usize,
}

struct Live<'a> {
    scenario: &'a CoresScenario,
    inputs: VecDeque<Input>,
    now: u64,
    fleet: Fleet,
    settings: Settings,
    /// By name.
    adapters: Vec<AdapterIndex>,
    /// Inputs that register: what a replica that joins is told first.
    registered: Vec<Input>,
    seats: Vec<Seat>,
    /// Seats by the router's numbers.
    seat_of: Vec<usize>,
    sent: HashMap<u64, Sent>,
    /// Inventories on their way, in the order of their arrival.
    posted: VecDeque<(u64, usize, Inventory)>,
    publish_at: u64,
    balance_at: u64,
    changes: VecDeque<(u64, Down)>,
    report: FleetReport,
}

impl<'a> Live<'a> {
    fn new(scenario: &'a CoresScenario, inputs: &[Input]) -> Result<Self, SimError> {
        let settings = settings(&scenario.routing);
        let mut names = Random::fork(scenario.replica.seed, NAMES);
        let seat = |_| Seat { key: names.bits(), node: None, index: None, seen: 0, inventories: 0 };
        let mut changes: Vec<(u64, Down)> =
            scenario.downs.iter().flat_map(|&down| [(down.from_us, down), (down.until_us, down)]).collect();
        changes.sort_by_key(|(at_us, _)| *at_us);
        let mut live = Self {
            scenario,
            inputs: inputs.iter().copied().collect(),
            now: 0,
            fleet: Fleet::new(settings.clone()),
            settings,
            adapters: Vec::new(),
            registered: Vec::new(),
            seats: (0..scenario.replicas).map(seat).collect(),
            seat_of: Vec::new(),
            sent: HashMap::new(),
            posted: VecDeque::new(),
            publish_at: 0,
            balance_at: 0,
            changes: changes.into(),
            report: FleetReport {
                kib_max: vec![0; scenario.replicas],
                served: vec![0; scenario.replicas],
                ..FleetReport::default()
            },
        };
        let begins = |input: &Input| input.at_us == 0 && matches!(input.action, Action::Register { .. });
        while let Some(input) = take_if(&mut live.inputs, begins) {
            live.register(input);
        }
        let absent =
            |seat: usize| scenario.downs.iter().any(|down| down.replica == seat && down.from_us == 0);
        for seat in (0..scenario.replicas).filter(|&seat| !absent(seat)) {
            live.join(seat)?;
        }
        if let Routing::Assigned { everywhere } = scenario.routing {
            let indices: Vec<ReplicaIndex> = live.seats.iter().filter_map(|seat| seat.index).collect();
            assign(&mut live.fleet, &live.adapters, &indices, everywhere, scenario.replica.seed)?;
            for name in 0..everywhere.min(live.adapters.len()) {
                for node in live.seats.iter_mut().filter_map(|seat| seat.node.as_mut()) {
                    node.turn(0)?; // it knows its adapters now
                    node.prewarm(name as u32, 0)?;
                }
            }
        }
        // what replicas say at the start is known at the start
        for seat in 0..scenario.replicas {
            if let Some((index, inventory)) = live.inventory(seat) {
                live.fleet.publish(index, 0, &inventory)?;
            }
        }
        live.publish_at = scenario.publish_us;
        Ok(live)
    }

    fn register(&mut self, input: Input) {
        let Action::Register { adapter: name, pages, .. } = input.action else { return };
        if name as usize == self.adapters.len() {
            let key = mix(self.scenario.replica.seed ^ mix(u64::from(name) + 1));
            let kib = u64::from(pages) * self.scenario.page_kib();
            self.adapters.push(self.fleet.add_adapter(Adapter { key, kib }));
        }
        self.registered.push(input);
    }

    /// When anything happens next; `None` once all has happened.
    fn next_us(&self) -> Option<u64> {
        let nodes = self.seats.iter().filter_map(|seat| seat.node.as_ref());
        let busy = nodes.clone().any(Node::has_work);
        let own = nodes.filter_map(Node::next_us).min();
        let input = self.inputs.front().map(|input| input.at_us);
        if !busy && input.is_none() && own.is_none() {
            return None;
        }
        let post = self.posted.front().map(|(at_us, ..)| *at_us);
        let change = self.changes.front().map(|(at_us, _)| *at_us);
        [own, input, post, change, Some(self.publish_at)].into_iter().flatten().min()
    }

    fn turn(&mut self, now: u64) -> Result<(), SimError> {
        self.now = now;
        self.turn_nodes()?;
        while let Some((_, seat, inventory)) = take_if(&mut self.posted, |(at_us, ..)| *at_us <= now) {
            if let Some(index) = self.seats[seat].index.filter(|_| self.seats[seat].node.is_some()) {
                self.fleet.publish(index, now, &inventory)?;
            }
        }
        while let Some((at_us, down)) = take_if(&mut self.changes, |(at_us, _)| *at_us <= now) {
            if at_us == down.until_us {
                self.join(down.replica)?;
            } else {
                self.die(down.replica)?;
            }
        }
        while let Some(input) = take_if(&mut self.inputs, |input| input.at_us <= now) {
            self.input(input)?;
        }
        if now >= self.publish_at {
            self.publish_at = now + self.scenario.publish_us;
            for seat in 0..self.seats.len() {
                if let Some((_, inventory)) = self.inventory(seat) {
                    self.posted.push_back((now + self.scenario.delay_us, seat, inventory));
                }
            }
            self.give_up()?;
        }
        if let Routing::Cost { rebalance_us, moves_max, .. } = self.scenario.routing {
            if now - self.balance_at >= rebalance_us {
                self.balance_at = now;
                self.rebalance(moves_max)?;
            }
        }
        self.turn_nodes()
    }

    fn turn_nodes(&mut self) -> Result<(), SimError> {
        for node in self.seats.iter_mut().filter_map(|seat| seat.node.as_mut()) {
            node.turn(self.now)?;
        }
        Ok(())
    }

    fn inventory(&mut self, seat: usize) -> Option<(ReplicaIndex, Inventory)> {
        let Seat { node: Some(node), index: Some(index), seen, inventories, .. } = &mut self.seats[seat]
        else {
            return None;
        };
        *inventories += 1;
        Some((*index, node.inventory(self.now, *inventories, *seen, &self.adapters)))
    }

    fn join(&mut self, seat: usize) -> Result<(), SimError> {
        let mut node = Node::new(self.scenario, seat, self.now)?;
        for &input in &self.registered {
            node.hand(input);
        }
        node.turn(self.now)?;
        let weight = 1;
        let index = match self.seats[seat].index {
            Some(index) => index, // it was away for less time than it takes to be given up
            None => {
                self.seat_of.push(seat);
                self.fleet.add_replica(self.seats[seat].key, weight)
            }
        };
        let place = &mut self.seats[seat];
        (place.node, place.index) = (Some(node), Some(index));
        Ok(())
    }

    /// A replica dies. The router hears of it from the connections that break, or else from the next request.
    fn die(&mut self, seat: usize) -> Result<(), SimError> {
        let Some(node) = self.seats[seat].node.take() else { return Ok(()) };
        self.take_figures(seat, &node);
        let abandoned = node.abandoned();
        if let Some(index) = self.seats[seat].index.filter(|_| !abandoned.is_empty()) {
            self.fleet.fail(index, self.now)?;
        }
        for (ask, begun) in abandoned {
            match self.sent.remove(&ask.id) {
                Some(sent) if !begun => {
                    self.report.retried += 1;
                    self.send(sent.ask, sent.arrived_us)?;
                }
                _ => self.report.cut += 1,
            }
        }
        Ok(())
    }

    /// Gives up replicas that have been silent for long: their adapters live elsewhere from now on.
    fn give_up(&mut self) -> Result<(), SimError> {
        for seat in 0..self.seats.len() {
            let Seat { node: None, index: Some(index), .. } = self.seats[seat] else { continue };
            let down = |down: &&Down| down.replica == seat && down.from_us <= self.now;
            let since = self.scenario.downs.iter().filter(down).map(|down| down.from_us).max();
            if since.is_some_and(|since| self.now - since > self.settings.silent_us) {
                self.fleet.remove_replica(index, self.now)?;
                self.seats[seat].index = None;
            }
        }
        Ok(())
    }

    fn rebalance(&mut self, moves_max: usize) -> Result<(), SimError> {
        for one in self.fleet.rebalance(self.now, moves_max) {
            self.report.moves_us.push(self.now);
            let Some(to) = one.to else { continue };
            if let Some(node) = self.seats[self.seat_of[to.number()]].node.as_mut() {
                node.prewarm(one.adapter.number() as u32, self.now)?;
            }
        }
        Ok(())
    }

    fn input(&mut self, input: Input) -> Result<(), SimError> {
        match input.action {
            Action::Add(ask) => return self.send(ask, input.at_us),
            Action::Abort { id } | Action::FailRow { id } => {
                let seat = self.sent.get(&id).map(|sent| sent.seat);
                if let Some(node) = seat.and_then(|seat| self.seats[seat].node.as_mut()) {
                    node.hand(input);
                }
                return Ok(());
            }
            Action::Register { .. } => self.register(input),
            _ => {}
        }
        for node in self.seats.iter_mut().filter_map(|seat| seat.node.as_mut()) {
            node.hand(input);
        }
        Ok(())
    }

    /// Sends a request where the router says; where that replica is dead, to the next one.
    fn send(&mut self, ask: Ask, arrived_us: u64) -> Result<(), SimError> {
        let blocks = self.blocks(&ask);
        let adapter = ask.adapter.and_then(|name| self.adapters.get(name as usize).copied());
        let request = Request { adapter, tokens: ask.prompt, blocks: &blocks };
        loop {
            let choice = match self.fleet.route(&request, self.now) {
                Ok(choice) => choice,
                Err(FleetError::NoReplica { .. }) => {
                    self.report.refused += 1;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            let seat = self.seat_of[choice.replica.number()];
            let Some(node) = self.seats[seat].node.as_mut() else {
                self.fleet.fail(choice.replica, self.now)?;
                self.report.retried += 1;
                continue;
            };
            node.hand(Input { at_us: arrived_us, action: Action::Add(ask) });
            self.seats[seat].seen = choice.number;
            self.sent.insert(ask.id, Sent { ask, arrived_us, seat });
            return Ok(());
        }
    }

    /// Hashes of a prompt's whole blocks: a trace's prompts are alike if they count on from the same number.
    fn blocks(&self, ask: &Ask) -> Vec<u64> {
        let like = if ask.like > 0 { ask.like } else { ask.id };
        let whose = u64::from(ask.tenant) << 32 | u64::from(ask.adapter.map_or(0, |name| name + 1));
        let mut hash = mix(like ^ mix(whose));
        let block = |_| {
            hash = mix(hash);
            hash
        };
        (0..ask.prompt / self.settings.block_tokens).map(block).collect()
    }

    fn take_figures(&mut self, seat: usize, node: &Node) {
        let report = &mut self.report;
        report.cold_loads += node.cold_loads();
        report.preloads += node.preloads;
        report.kib_max[seat] = report.kib_max[seat].max(node.kib_max);
        for record in node.records() {
            match (record.end, record.first_us) {
                (Some(End::Stop | End::Length), Some(first_us)) => {
                    let ttft_us = first_us - record.arrived_us;
                    report.answered.push((record.arrived_us, ttft_us));
                    report.late += u64::from(ttft_us > self.scenario.late_us);
                    report.served[seat] += 1;
                }
                (Some(End::Refused(_)), _) => report.refused += 1,
                (Some(End::Failed(_)), _) => report.cut += 1,
                _ => {}
            }
        }
    }

    fn report(mut self) -> Result<FleetReport, SimError> {
        for seat in 0..self.seats.len() {
            let Some(mut node) = self.seats[seat].node.take() else { continue };
            if node.has_work() {
                let what = format!("replica {seat}: requests live, and nothing will ever happen");
                let failure = Failure { kind: Kind::Stuck, step: 0, at_us: self.now, what };
                return Err(failure.into());
            }
            self.take_figures(seat, &node);
            node.close()?;
        }
        self.report.answered.sort_unstable();
        self.report.ttft_us = self.report.answered.iter().map(|(_, ttft_us)| *ttft_us).collect();
        self.report.moves = self.report.moves_us.len() as u64;
        Ok(self.report)
    }
}

/// The first one, if it's meant.
fn take_if<T>(queue: &mut VecDeque<T>, is_meant: impl Fn(&T) -> bool) -> Option<T> {
    queue.front().is_some_and(is_meant).then(|| queue.pop_front())?
}
