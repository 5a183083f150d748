//! Plans made ahead: a device that does plans in their order, whose tokens depend on all KV that a row reads, and what every
//! request's answer is when nobody else is there.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, VecDeque};

use lorad_sched::plan::Part;
use lorad_sched::{AdapterId, AdapterSpec, Config, Core, Event, RequestSpec, StepError, SAMPLE_FAILED};

const VOCAB: u64 = 13;
const STOP: u32 = 0;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn mix(value: u64, token: u32) -> u64 {
    (value ^ u64::from(token + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

fn sampled(kv: u64) -> u32 {
    (kv % VOCAB) as u32
}

/// A request's KV and tokens, as far as its answer may go.
struct Alone {
    prompt: usize,
    tokens: Vec<u32>,
    kv: Vec<u64>,
    told: usize,
}

impl Alone {
    fn of(tag: u32, spec: &RequestSpec) -> Self {
        let (mut tokens, mut kv) = (spec.prompt.clone(), Vec::new());
        let mut last = u64::from(tag);
        for index in 0..spec.prompt.len() + spec.max_tokens as usize {
            last = mix(last, tokens[index]);
            kv.push(last);
            if index + 1 >= spec.prompt.len() {
                tokens.push(sampled(last));
            }
        }
        tokens.truncate(spec.prompt.len() + spec.max_tokens as usize);
        Self { prompt: spec.prompt.len(), tokens, kv, told: 0 }
    }
}

/// What the worker has: it does plans at once, but answers at their commit.
struct Device {
    page_tokens: usize,
    kv: Vec<Option<u64>>,
    table: Vec<Vec<u32>>,
    owner: Vec<u64>,
    last: Vec<u32>,
}

struct Run {
    core: Core,
    device: Device,
    adapters: Vec<(AdapterId, u32)>,
    alone: BTreeMap<u64, Alone>,
    answers: VecDeque<(u64, Vec<i32>, Vec<AdapterId>)>,
    now: u64,
    ahead: u64,
    pending: u64,
    ends: BTreeMap<&'static str, u64>,
}

impl Run {
    fn new(config: Config) -> Self {
        let device = Device {
            page_tokens: config.page_tokens as usize,
            kv: vec![None; (config.pages * config.page_tokens) as usize],
            table: vec![vec![u32::MAX; config.cols() as usize]; config.rows_max as usize],
            owner: vec![0; config.rows_max as usize],
            last: vec![u32::MAX; config.rows_max as usize],
        };
        let mut core = Core::new(config).unwrap();
        let adapters = (1..6).map(|tag| {
            let spec = AdapterSpec { tag, pages: 1 + tag % 3, ..AdapterSpec::default() };
            (core.register(spec).unwrap(), tag)
        });
        let adapters = adapters.collect();
        Self {
            core,
            device,
            adapters,
            alone: BTreeMap::new(),
            answers: VecDeque::new(),
            now: 0,
            ahead: 0,
            pending: 0,
            ends: BTreeMap::new(),
        }
    }

    fn add(&mut self, id: u64, random: &mut Random) {
        let adapter = self.adapters.get(random.below(7) as usize).copied();
        // beginnings are shared
        let (like, length) = (random.below(3), 1 + random.below(12));
        let prompt: Vec<u32> = (0..length).map(|index| 1 + ((like + index * index) % 11) as u32).collect();
        let spec = RequestSpec {
            id,
            tenant: random.below(2) as u32,
            adapter: adapter.map(|(adapter, _)| adapter),
            prompt,
            max_tokens: 1 + random.below(9) as u32,
            stop_tokens: vec![STOP],
            ..RequestSpec::default()
        };
        let alone = Alone::of(adapter.map_or(0, |(_, tag)| tag), &spec);
        if self.core.add(self.now, spec).is_ok() {
            self.alone.insert(id, alone);
        }
    }

    /// Has a plan made and done; false if there's none.
    fn step(&mut self) -> bool {
        let layout = self.core.plan_layout().clone();
        let (mut plan, before) = (vec![0; layout.length()], self.core.in_flight());
        let Some(number) = self.core.step(self.now, &mut plan).unwrap() else { return false };
        self.ahead += u64::from(before.is_some());
        let (view, device) = (layout.view(&plan), &mut self.device);
        let size = device.page_tokens;
        for load in view.page_ins() {
            for &page in load.pages {
                device.kv[page as usize * size..][..size].fill(None); // bytes of an adapter
            }
        }
        for (line, request) in view.opened() {
            device.owner[line as usize] = request;
        }
        for (line, col, page) in view.edits() {
            device.table[line as usize][col as usize] = page;
        }
        for (source, target) in view.copies() {
            for offset in 0..size {
                device.kv[target as usize * size + offset] = device.kv[source as usize * size + offset];
            }
        }
        let (mut answers, mut first) = (Vec::new(), 0);
        for row in (0..view.rows()).map(|row| view.row(row)) {
            let line = row.line as usize;
            let place =
                |position: usize| device.table[line][position / size] as usize * size + position % size;
            let tag = row.adapter.map_or(0, |(_, tag)| tag);
            let alone = self.alone.get(&device.owner[line]);
            let start = row.start as usize;
            for position in 0..start {
                let right = alone.is_none_or(|alone| device.kv[place(position)] == Some(alone.kv[position]));
                assert!(right, "plan {number}, request {}: position {position}", device.owner[line]);
            }
            let mut kv = match start {
                0 => u64::from(tag),
                _ => device.kv[place(start - 1)].unwrap_or(0),
            };
            for index in 0..row.count as usize {
                let known = view.part(Part::TokenId)[first + index];
                self.pending += u64::from(known < 0);
                let token = u32::try_from(known).unwrap_or(device.last[line]);
                kv = mix(kv, token);
                let place = place(start + index);
                device.kv[place] = Some(kv);
            }
            first += row.count as usize;
            if row.sample {
                device.last[line] = sampled(kv);
                answers.push(sampled(kv) as i32);
            }
        }
        let loads = view.page_ins().map(|load| load.adapter).collect();
        self.answers.push_back((number, answers, loads));
        true
    }

    fn commit(&mut self, random: &mut Random, faults: bool) {
        let Some((number, mut answers, loads)) = self.answers.pop_front() else { return };
        if faults && random.below(40) == 0 {
            self.core.commit_failed(self.now, number).unwrap();
        } else {
            if faults && !answers.is_empty() && random.below(20) == 0 {
                let index = random.below(answers.len() as u64) as usize;
                answers[index] = SAMPLE_FAILED;
            }
            self.core.commit(self.now, number, &answers).unwrap();
        }
        for adapter in loads {
            self.core.page_in_done(self.now, adapter).unwrap();
        }
        self.hear();
    }

    fn hear(&mut self) {
        let mut events = Vec::new();
        self.core.drain_events(&mut events);
        for event in events {
            match event {
                Event::Token { request, token } => {
                    let alone = self.alone.get_mut(&request).unwrap();
                    assert_eq!(token, alone.tokens[alone.prompt + alone.told], "request {request}");
                    alone.told += 1;
                }
                Event::Finished { request, reason } => {
                    let alone = self.alone.remove(&request).unwrap();
                    let told = &alone.tokens[alone.prompt..][..alone.told];
                    let name = reason.name();
                    match name {
                        "stop" => assert_eq!(told.last(), Some(&STOP)),
                        "length" => assert_eq!(alone.prompt + alone.told, alone.tokens.len()),
                        _ => {}
                    }
                    let goes_on = if name == "stop" { &told[..told.len() - 1] } else { told };
                    assert!(!goes_on.contains(&STOP), "it ends at its first stop token");
                    *self.ends.entry(name).or_default() += 1;
                }
                _ => {}
            }
        }
    }
}

fn config(plans_max: u32, seed: u64) -> Config {
    Config {
        plans_max,
        pages: 14 + (seed % 3) as u32 * 8,
        page_tokens: 4,
        rows_max: 4,
        tokens_max: 12,
        prefill_chunk_max: 5,
        slots_max: 3,
        adapters_step_max: 3,
        page_ins_max: 2,
        sequence_tokens_max: 32,
        vocab: VOCAB as u32,
        waiting_max: 16,
        urgent_after_us: 4000,
        preempt_after_tokens: 2,
        prefix_cache: !seed.is_multiple_of(4),
        ..Config::default()
    }
}

fn drive(plans_max: u32, seed: u64, faults: bool) -> Run {
    let (mut run, mut random, mut id) = (Run::new(config(plans_max, seed)), Random(seed), 0);
    for turn in 0..600 {
        run.now += 1 + random.below(400);
        if turn < 500 && random.below(3) == 0 {
            id += 1;
            run.add(id, &mut random);
        }
        if faults && random.below(15) == 0 {
            let living: Vec<u64> = run.alone.keys().copied().collect();
            if let Some(&request) = living.get(random.below(living.len().max(1) as u64) as usize) {
                run.core.abort(run.now, request);
                run.hear();
            }
        }
        let full = run.answers.len() == plans_max as usize;
        if full || random.below(3) == 0 || !run.step() {
            run.commit(&mut random, faults);
        }
        run.hear();
        run.core.check().unwrap_or_else(|what| panic!("seed {seed}: {what}\n{}", run.core.dump()));
    }
    while run.core.has_work() {
        run.now += 1000;
        if run.answers.len() == plans_max as usize || !run.step() {
            run.commit(&mut random, false);
        }
        run.hear();
    }
    run.core.check().unwrap();
    assert!(run.alone.is_empty(), "seed {seed}: {} requests were never answered", run.alone.len());
    let stats = run.core.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages_sequence), (0, 0, 0));
    run
}

#[test]
fn answers_are_those_of_each_request_alone() {
    let (mut ahead, mut pending, mut preemptions) = (0, 0, 0);
    for seed in 1..150 {
        let run = drive(2, seed, false);
        assert_eq!(run.ends.keys().filter(|name| !["stop", "length"].contains(name)).count(), 0);
        ahead += run.ahead;
        pending += run.pending;
        preemptions += run.core.stats().counters.preemptions;
        drive(1, seed, false);
    }
    assert!(ahead > 5000 && pending > 5000 && preemptions > 50, "{ahead} {pending} {preemptions}");
}

#[test]
fn faults_end_whom_they_concern_and_nobody_else() {
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 1..150 {
        for (name, count) in drive(2, seed, true).ends {
            *ends.entry(name).or_default() += count;
        }
    }
    for name in ["stop", "length", "aborted", "failed_plan", "failed_row"] {
        assert!(ends[name] > 20, "{ends:?}");
    }
}

#[test]
fn the_same_calls_give_the_same_core() {
    let (one, other) = (drive(2, 5, true), drive(2, 5, true));
    assert_eq!(one.core.dump(), other.core.dump());
}

#[test]
fn a_third_plan_is_refused() {
    let mut run = Run::new(config(2, 1));
    let spec = RequestSpec { id: 1, prompt: vec![1, 2, 3], max_tokens: 8, ..RequestSpec::default() };
    run.alone.insert(1, Alone::of(0, &spec));
    run.core.add(0, spec).unwrap();
    assert!(run.step() && run.step());
    let mut plan = vec![0; run.core.plan_layout().length()];
    assert_eq!(run.core.step(9, &mut plan), Err(StepError::PlanInFlight { number: 1 }));
    assert_eq!(
        run.core.commit(9, 2, &[1]).map_err(|error| error.to_string()),
        Err("plan 2: plan 1 is in flight".into())
    );
}
