//! The world around one core: this folder is all that calls it. Time, the worker and the book are beside it.
//!
//! Order of things in a turn: what happened is told, a plan is made, its events are booked, the worker does it, its
//! transfers start, its time passes, it's committed.

mod close;
mod read;
mod standing;
mod tell;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use lorad_sched::{
    AdapterId, Config, ConfigError, Core, Costs, Event, Eviction, FinishReason, Order, Policy, SampledToken,
    Split, Stats, SAMPLE_FAILED,
};

use crate::book::{Book, End, STOP};
use crate::clock::{ns_to_us, step_ns, Channel, Clock};
use crate::error::{Failure, Kind};
use crate::random::Random;
use crate::record::Recorder;
use crate::step::{Fingerprint, Row, Step};
use crate::worker::{Sizes, Worker};

/// A registered generation.
#[derive(Clone, Copy, Debug)]
struct Adapter {
    tag: u32,
    pages: u32,
    /// Its name in the trace.
    name: u32,
    open: bool,
}

/// What a name of the trace stands for: its last generation, which may be gone.
#[derive(Clone, Copy, Debug)]
struct Named {
    id: AdapterId,
    tag: u32,
}

/// A plan in flight: its number, its rows and whose they are.
#[derive(Clone, Debug)]
struct Flight {
    number: u64,
    rows: Vec<(Row, u64)>,
}

/// Faults that wait for their moment, by the trace's names.
#[derive(Clone, Debug, Default)]
struct Armed {
    loads: BTreeSet<u32>,
    slow_percent: BTreeMap<u32, u32>,
    rows: BTreeSet<u64>,
    plans: u32,
}

/// Sums over all steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Plans.
    pub steps: u64,
    /// Their time.
    pub steps_us: u64,
    /// Their rows.
    pub rows: u64,
    /// Their distinct adapters.
    pub groups: u64,
    /// Pages of their page-ins.
    pub page_in_pages: u64,
    /// The longest wait, in thousandths of its bound.
    pub longest_wait_milli: u64,
}

/// How the world behaves.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Seed of the noise.
    pub seed: u64,
    /// A step's time is off by up to so many thousandths.
    pub noise_milli: u64,
    /// The slowest page-in takes so many percent of its time.
    pub load_percent: u32,
    /// Keep and compare what each page holds.
    pub audit: bool,
    /// Compare every group's wait with its bound.
    pub waits: bool,
    /// Write all calls down.
    pub record: bool,
}

/// The world.
pub struct World {
    /// Virtual time.
    pub clock: Clock,
    /// Page-ins on their way.
    pub channel: Channel,
    /// What each request was told.
    pub book: Book,
    /// Sums.
    pub totals: Totals,
    core: Core,
    /// What things take here.
    costs: Costs,
    waits: bool,
    worker: Worker,
    plan: Vec<i32>,
    step: Step,
    flights: VecDeque<Flight>,
    events: Vec<Event>,
    names: BTreeMap<u32, Named>,
    /// Generations that aren't gone.
    adapters: HashMap<AdapterId, Adapter>,
    registrations: u32,
    armed: Armed,
    noise: Random,
    noise_milli: u64,
    fingerprint: Fingerprint,
    recorder: Option<Recorder>,
}

type Done<T = ()> = Result<T, Failure>;

impl World {
    /// An empty world around a new core.
    pub fn new(config: &Config, manner: Manner) -> Result<Self, ConfigError> {
        let told = if manner.waits { worst(config, &manner) } else { config.clone() };
        let core = Core::new(told)?;
        let sizes = Sizes {
            pages: config.pages,
            page_tokens: config.page_tokens,
            rows_max: config.rows_max,
            cols: config.cols(),
            slots_max: config.slots_max,
            tokens_max: config.tokens_max,
            prefill_chunk_max: config.prefill_chunk_max,
            adapters_step_max: config.adapters_step_max,
        };
        let mut world = Self {
            clock: Clock::default(),
            channel: Channel::default(),
            book: Book::default(),
            totals: Totals::default(),
            plan: vec![0; core.plan_layout().length()],
            core,
            costs: config.costs,
            waits: manner.waits,
            worker: Worker::new(sizes, manner.audit),
            step: Step::default(),
            flights: VecDeque::new(),
            events: Vec::new(),
            names: BTreeMap::new(),
            adapters: HashMap::new(),
            registrations: 0,
            armed: Armed::default(),
            noise: Random::fork(manner.seed, 21),
            noise_milli: manner.noise_milli.min(1000),
            fingerprint: Fingerprint::default(),
            recorder: manner.record.then(Recorder::default),
        };
        let line = core_line(world.core.config());
        world.record(|| line);
        Ok(world)
    }

    /// A failure at this moment.
    pub fn fail(&self, kind: Kind, what: impl Into<String>) -> Failure {
        Failure { kind, step: self.totals.steps, at_us: self.clock.now_us(), what: what.into() }
    }

    /// The core's figures.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// The core's state as text.
    pub fn dump(&self) -> String {
        self.core.dump()
    }

    /// Does any request live, or any page-in run?
    pub fn has_work(&self) -> bool {
        self.core.has_work()
    }

    /// A hash of all plans and events so far.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint.value()
    }

    /// The calls so far, if they are written down.
    pub fn script(&self) -> Option<&str> {
        self.recorder.as_ref().map(Recorder::text)
    }

    fn record(&mut self, call: impl FnOnce() -> String) {
        if let Some(recorder) = &mut self.recorder {
            recorder.call(self.clock.now_us(), &call());
        }
    }

    /// The core's own check, and whether anybody waits longer than the bound.
    pub fn check(&mut self) -> Done {
        self.core.check().map_err(|what| self.fail(Kind::Check, what))?;
        if self.waits {
            self.core.check_waits().map_err(|what| self.fail(Kind::Check, what))?;
            let longest = self.core.longest_wait_permille();
            self.totals.longest_wait_milli = self.totals.longest_wait_milli.max(longest);
        }
        Ok(())
    }

    /// Makes a plan, lets the worker do it and starts its transfers. What its step takes, in microseconds; `None` when
    /// nothing can run.
    pub fn step(&mut self) -> Done<Option<u64>> {
        let now_us = self.clock.now_us();
        if let Some(recorder) = &mut self.recorder {
            recorder.step(now_us);
        }
        let planned = self.core.step(now_us, &mut self.plan);
        let planned = planned.map_err(|error| self.fail(Kind::Call, error.to_string()))?;
        self.hear()?;
        let Some(number) = planned else { return Ok(None) };
        read::read(number, &self.core.plan_layout().view(&self.plan), &mut self.step);
        self.fingerprint.add_step(&self.step);
        let adapters = &self.adapters;
        let known = |number| adapters.get(&AdapterId::from_number(number)).map(|own| (own.tag, own.pages));
        let done = self.worker.apply(&self.step, &self.book, known);
        done.map_err(|what| self.fail(Kind::Plan, what))?;

        let pages = |slot| self.worker.adapter(slot).and_then(known).map_or(0, |(_, pages)| pages);
        let ns = step_ns(&self.costs, &self.step, pages);
        let milli = 1000 - self.noise_milli + self.noise.below(2 * self.noise_milli + 1);
        let duration_us = ns_to_us((u128::from(ns) * u128::from(milli) / 1000) as u64);
        self.totals.steps += 1;
        self.totals.steps_us += duration_us;
        self.totals.rows += self.step.rows.len() as u64;
        self.totals.groups += self.step.groups.len() as u64;
        self.start_transfers();
        let whose = |row: &Row| self.worker.request(row).map(|id| (*row, id));
        let rows: Vec<(Row, u64)> = self.step.rows.iter().filter_map(whose).collect();
        for (row, id) in rows.iter().filter(|(row, _)| row.sample) {
            let token = self.sampled(row, *id);
            self.book.sampled(*id, token);
        }
        self.flights.push_back(Flight { number, rows });
        Ok(Some(duration_us))
    }

    /// Is there room for a plan ahead of those in flight, and does the worker take it? It always does without one in flight.
    pub fn goes_ahead(&mut self) -> bool {
        let room = self.flights.len() < self.core.config().plans_max as usize;
        room && (self.flights.is_empty() || self.noise.below(4) > 0)
    }

    /// What the model answers behind a row: the tokens of `lorad_sched::script`, or others.
    fn sampled(&self, row: &Row, id: u64) -> u32 {
        let scripted = self.scripted(row, id);
        let record = self.book.find(id).filter(|record| record.line == Some(row.line));
        let number = record.map_or(0, |record| record.known() - record.ask.prompt + 1);
        match record {
            Some(record) if record.ask.stop_after == number => STOP,
            Some(_) if scripted == STOP => STOP + 1,
            _ => scripted,
        }
    }

    fn scripted(&self, row: &Row, id: u64) -> u32 {
        let token = id.wrapping_mul(1000).wrapping_add(u64::from(row.start + row.count));
        (token % u64::from(self.core.config().vocab)) as u32
    }

    fn start_transfers(&mut self) {
        for load in &self.step.page_ins {
            let Some(adapter) = self.adapters.get(&AdapterId::from_number(load.adapter)) else { continue };
            let percent = self.armed.slow_percent.remove(&adapter.name).unwrap_or(100);
            let ns = u128::from(self.costs.page_in_ns(adapter.pages)) * u128::from(percent) / 100;
            let duration_us = ns_to_us(u64::try_from(ns).unwrap_or(u64::MAX));
            let fails = self.armed.loads.remove(&adapter.name);
            self.channel.start(self.clock.now_us(), load.adapter, duration_us, fails);
            self.totals.page_in_pages += u64::from(adapter.pages);
        }
    }

    /// Commits the first plan in flight: each row that samples gets its token, unless the worker fails it.
    pub fn commit(&mut self) -> Done {
        let now_us = self.clock.now_us();
        let Some(Flight { number, rows }) = self.flights.pop_front() else { return Ok(()) };
        let committed = if self.armed.plans > 0 && !rows.is_empty() {
            self.armed.plans -= 1;
            rows.iter().for_each(|&(_, id)| self.book.promise(id, None));
            self.record(|| "commit_failed".to_string());
            self.core.commit_failed(now_us, number)
        } else {
            let mut call = "commit".to_string();
            let sampled = self.sample(&rows, &mut call);
            self.record(|| call);
            self.core.commit(now_us, number, &sampled)
        };
        committed.map_err(|error| self.fail(Kind::Call, error.to_string()))?;
        self.hear()?;
        self.book.settled().map_err(|what| self.fail(Kind::Event, what))
    }

    /// What the model has answered: the tokens of `lorad_sched::script`, others are added to `call`.
    fn sample(&mut self, rows: &[(Row, u64)], call: &mut String) -> Vec<SampledToken> {
        let mut sampled = Vec::new();
        for &(row, id) in rows.iter().filter(|(row, _)| row.sample) {
            let scripted = self.scripted(&row, id);
            // one that was taken back meanwhile isn't told; its id may belong to another by now
            let record = self.book.find(id).filter(|record| record.line == Some(row.line));
            let token = match record {
                None => scripted as SampledToken,
                Some(_) if self.armed.rows.remove(&id) => SAMPLE_FAILED,
                Some(record) => record.token(record.told()).unwrap_or(scripted) as SampledToken,
            };
            if record.is_some() {
                self.book.promise(id, u32::try_from(token).ok());
            }
            if token == SAMPLE_FAILED {
                call.push_str(&format!(" {id}=failed"));
            } else if token as u32 != scripted {
                call.push_str(&format!(" {id}={token}"));
            }
            sampled.push(token);
        }
        sampled
    }

    /// Books the core's events.
    fn hear(&mut self) -> Done {
        let (now_us, mut events) = (self.clock.now_us(), std::mem::take(&mut self.events));
        self.core.drain_events(&mut events);
        for event in events.drain(..) {
            let heard = match event {
                Event::Admitted { request, line } => {
                    self.note(1, request, line);
                    self.book.admitted(request, line, now_us)
                }
                Event::Token { request, token } => {
                    self.note(2, request, token);
                    self.book.token(request, token, now_us)
                }
                Event::Preempted { request } => {
                    self.note(3, request, 0);
                    self.book.preempted(request)
                }
                Event::Finished { request, reason } => {
                    self.note(4, request, 0);
                    self.fingerprint.add_text(reason.name());
                    self.book.finished(request, end(reason), now_us)
                }
                Event::AdapterGone { adapter } => {
                    self.note(5, adapter.number().into(), 0);
                    self.gone(adapter)
                }
                ref other => {
                    self.fingerprint.add_text(&format!("{other:?}"));
                    Ok(())
                }
            };
            heard.map_err(|what| self.fail(Kind::Event, what))?;
        }
        self.events = events;
        Ok(())
    }

    fn note(&mut self, code: u64, number: u64, detail: u32) {
        [code, number, detail.into()].into_iter().for_each(|part| self.fingerprint.add(part));
    }

    fn gone(&mut self, id: AdapterId) -> Result<(), String> {
        match self.adapters.remove(&id) {
            Some(adapter) if !adapter.open => Ok(()),
            found => Err(format!("adapter {id} is gone, it was {found:?}")),
        }
    }
}

/// The limits with costs as large as they can become here.
fn worst(config: &Config, manner: &Manner) -> Config {
    let mut worst = config.clone();
    for (name, ns) in worst.costs.fields_mut() {
        *ns = match name {
            "few_tokens" => *ns,
            "page_in_ns" | "page_in_page_ns" => ns.saturating_mul(u64::from(manner.load_percent)) / 100,
            _ => ns.saturating_mul(1000 + manner.noise_milli.min(1000)) / 1000,
        };
    }
    // times are whole microseconds here
    worst.costs.step_ns = worst.costs.step_ns.saturating_add(2000);
    worst.costs.page_in_ns = worst.costs.page_in_ns.saturating_add(2000);
    worst
}

/// The command of a script that makes such a core.
fn core_line(config: &Config) -> String {
    let mut config = config.clone();
    let mut line = "core".to_string();
    let mut say = |name: &str, value: &dyn std::fmt::Display| line.push_str(&format!(" {name}={value}"));
    config.fields_mut().into_iter().for_each(|(name, value)| say(name, value));
    config.times_mut().into_iter().for_each(|(name, value)| say(name, value));
    config.costs.fields_mut().into_iter().for_each(|(name, value)| say(name, value));
    config.switches_mut().into_iter().for_each(|(name, value)| say(name, &u8::from(*value)));
    let Policy { order, eviction, split } = config.policy;
    say(
        "order",
        &match order {
            Order::Fair => "fair",
            Order::Arrival => "arrival",
            Order::Affinity => "affinity",
        },
    );
    say(
        "eviction",
        &match eviction {
            Eviction::Cost => "cost",
            Eviction::Lru => "lru",
        },
    );
    match split {
        Split::Unified => {}
        Split::Fixed { adapter_pages } => say("adapter_pages", &adapter_pages),
        Split::Slots { count, pages } => say("slots", &format!("{count}x{pages}")),
    }
    line
}

fn end(reason: FinishReason) -> End {
    match reason {
        FinishReason::Stop => End::Stop,
        FinishReason::Length => End::Length,
        FinishReason::Aborted => End::Aborted,
        other => End::Failed(other.name()),
    }
}
