//! A replica around a real core, driven as the engine's loop drives it: what comes in during a step waits for its end.

use std::collections::VecDeque;

use lorad_fleet::{AdapterIndex, Inventory, LoadTime, LoadTimes, Tier};

use super::cores::CoresScenario;
use crate::book::{End, Record};
use crate::error::{Failure, SimError};
use crate::trace::{Action, Ask, Input};
use crate::world::{Manner, World};

/// A replica.
pub(super) struct Node {
    world: World,
    /// When the step in flight ends.
    ends_us: Option<u64>,
    /// What came in since the last plan.
    inbox: VecDeque<Input>,
    /// Something has happened that a plan may come from.
    stirred: bool,
    /// Places in the book of requests that haven't ended.
    living: Vec<usize>,
    rows_max: u64,
    page_kib: u64,
    loads: LoadTimes,
    token_ns: u64,
    /// Mean time from a request's admission to its end, µs: each counts an eighth.
    residence_us: u64,
    /// Page-ins that were asked for beforehand.
    pub preloads: u64,
    /// The most KiB of adapters that it held.
    pub kib_max: u64,
}

impl Node {
    /// An empty one, at this time.
    pub fn new(scenario: &CoresScenario, number: usize, now: u64) -> Result<Self, SimError> {
        let (replica, costs) = (&scenario.replica, scenario.replica.config.costs);
        let manner = Manner {
            seed: replica.seed.wrapping_add(number as u64),
            noise_milli: replica.host.noise_milli,
            load_percent: 100,
            audit: replica.host.audit,
            waits: false,
            record: false,
        };
        let mut world = World::new(&replica.config, manner)?;
        world.clock.advance(now);
        let page_kib = scenario.page_kib();
        let warm = LoadTime { us: costs.page_in_ns / 1000, ns_kib: costs.page_in_page_ns / page_kib };
        Ok(Self {
            world,
            ends_us: None,
            inbox: VecDeque::new(),
            stirred: false,
            living: Vec::new(),
            rows_max: u64::from(replica.config.rows_max.max(1)),
            page_kib,
            // images of all adapters are in the host's memory
            loads: LoadTimes { warm, cold: warm, absent: warm },
            token_ns: costs.token_ns,
            residence_us: 0,
            preloads: 0,
            kib_max: 0,
        })
    }

    /// When something happens here by itself: a step ends, or bytes have arrived while none runs.
    pub fn next_us(&self) -> Option<u64> {
        self.ends_us.or_else(|| self.world.channel.next_us())
    }

    pub fn has_work(&self) -> bool {
        self.world.has_work() || !self.inbox.is_empty()
    }

    /// Something comes in.
    pub fn hand(&mut self, input: Input) {
        self.inbox.push_back(input);
        self.stirred = true;
    }

    /// Has an adapter paged in before anybody asks for it.
    pub fn prewarm(&mut self, name: u32, now: u64) -> Result<(), Failure> {
        self.world.clock.advance(now);
        if self.world.prewarm(name)? {
            self.preloads += 1;
            self.stirred = true;
        }
        Ok(())
    }

    /// Does what is due by now, and begins a step if none is in flight.
    pub fn turn(&mut self, now: u64) -> Result<(), Failure> {
        if let Some(ends_us) = self.ends_us.filter(|&ends_us| ends_us <= now) {
            self.world.clock.advance(ends_us);
            self.world.commit()?;
            self.ends_us = None;
            self.stirred = true;
        }
        if self.ends_us.is_some() {
            return Ok(());
        }
        self.world.clock.advance(now);
        while self.world.report_transfer()? {
            self.stirred = true;
        }
        while let Some(input) = self.inbox.pop_front() {
            let place = self.world.book.records().len();
            self.world.tell(&input)?;
            if self.world.book.records().len() > place {
                self.living.push(place);
            }
        }
        if std::mem::take(&mut self.stirred) {
            self.ends_us = self.world.step()?.map(|duration_us| now + duration_us);
            let held = u64::from(self.world.stats().pages_adapter) * self.page_kib;
            self.kib_max = self.kib_max.max(held);
        }
        Ok(())
    }

    /// The core's own check, at the end of a run.
    pub fn close(&mut self) -> Result<(), Failure> {
        self.world.close()
    }

    /// Every request that came, refused ones too.
    pub fn records(&self) -> &[Record] {
        self.world.book.records()
    }

    /// Requests that it leaves when it dies: those in its book, and those that it never looked at.
    pub fn abandoned(&self) -> Vec<(Ask, bool)> {
        let begun = |record: &Record| (record.ask, record.first_us.is_some());
        let living = self.records().iter().filter(|record| record.end.is_none()).map(begun);
        let waiting = self.inbox.iter().filter_map(|input| match input.action {
            Action::Add(ask) => Some((ask, false)),
            _ => None,
        });
        living.chain(waiting).collect()
    }

    /// Page-ins that somebody waited for.
    pub fn cold_loads(&self) -> u64 {
        self.world.stats().counters.page_ins.saturating_sub(self.preloads)
    }

    /// All that it publishes. `number`: of this inventory; `seen`: the last request that was handed to it; `adapters`: the
    /// router's, by their names here.
    pub fn inventory(&mut self, now: u64, number: u64, seen: u64, adapters: &[AdapterIndex]) -> Inventory {
        let tier = |state: &str| match state {
            "hot" => Tier::Hot,
            "loading" => Tier::Loading,
            _ => Tier::Warm,
        };
        let standings = self.world.standings();
        let known = |name: u32| adapters.get(name as usize).copied();
        let tiers = standings.iter().filter_map(|one| known(one.name).map(|index| (index, tier(one.state))));
        let stats = self.world.stats();
        Inventory {
            number,
            base: None,
            seen,
            queue_us: self.queue_us(now),
            loads_wait_us: self.world.channel.free_us().saturating_sub(now),
            token_ns: self.token_ns,
            adapter_kib_max: u64::from(stats.pages_total - stats.pages_sequence) * self.page_kib,
            draining: false,
            loads: self.loads,
            tiers: tiers.collect(),
        }
    }

    /// How long a request that comes now waits until its prompt is begun, as a host can know it: the rest of the step, the
    /// prompts before it that this step doesn't compute, and, where there are more requests than rows, as many ends as it takes until
    /// one is free.
    fn queue_us(&mut self, now: u64) -> u64 {
        let (records, mut prompts) = (self.world.book.records(), 0u64);
        let residence_us = &mut self.residence_us;
        self.living.retain(|&place| {
            let record = &records[place];
            match (record.admitted_us, record.ended_us) {
                (Some(admitted_us), Some(ended_us)) if record.end != Some(End::Aborted) => {
                    *residence_us = (7 * *residence_us + (ended_us - admitted_us)) / 8;
                }
                (_, None) if record.first_us.is_none() => prompts += u64::from(record.ask.prompt),
                _ => {}
            }
            record.ended_us.is_none()
        });
        for input in &self.inbox {
            if let Action::Add(ask) = input.action {
                prompts += u64::from(ask.prompt);
            }
        }
        let prompts = prompts.saturating_sub(self.world.prompt_tokens_in_flight());
        let step_us = self.ends_us.map_or(0, |ends_us| ends_us.saturating_sub(now));
        let beyond = (self.living.len() + self.inbox.len()) as u64;
        let beyond = (beyond + 1).saturating_sub(self.rows_max);
        step_us + prompts.saturating_mul(self.token_ns) / 1000 + beyond * self.residence_us / self.rows_max
    }
}
