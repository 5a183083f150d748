//! A naive host beside the core: a worker that keeps what each page holds, and a book of what each request was told.
//! It never looks into the core: only plans and events count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lorad_sched::plan::Part;
use lorad_sched::{
    AdapterId, AdapterSpec, Config, Core, Event, FinishReason, Priority, RequestSpec, StepError, PENDING,
    SAMPLE_FAILED,
};

/// A seeded stream of numbers (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) % u64::from(limit)) as u32
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

/// What a page holds, as the worker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Nothing,
    /// KV: which request and position each of its tokens belongs to is kept in `Worker::kv`.
    Kv,
    Weights {
        adapter: AdapterId,
        part: u32,
    },
}

/// A request in the book.
#[derive(Clone, Debug)]
pub struct Entry {
    pub spec: RequestSpec,
    /// Answer so far.
    pub answer: Vec<u32>,
    /// What plans in flight have sampled for it: tokens that it will be told.
    ahead: VecDeque<u32>,
    /// Admitted and neither preempted nor finished since.
    pub line: Option<u32>,
}

impl Entry {
    /// All that KV at a position depends on: tenant, adapter and the tokens so far.
    fn origin(&self, position: u32) -> u64 {
        let adapter = self.spec.adapter.map_or(0, |adapter| u64::from(adapter.number()));
        let begin = u64::from(self.spec.tenant) << 32 | adapter;
        (0..=position).fold(begin, |origin, position| {
            (origin ^ u64::from(self.token(position) + 1)).wrapping_mul(0x100_0000_01b3).rotate_left(29)
        })
    }

    fn token(&self, position: u32) -> u32 {
        let (prompt, position) = (&self.spec.prompt, position as usize);
        let tokens = prompt.iter().chain(&self.answer).chain(&self.ahead);
        *tokens.clone().nth(position).expect("a token that is known")
    }

    /// Tokens that the core was told.
    fn told(&self) -> u32 {
        (self.spec.prompt.len() + self.answer.len()) as u32
    }
}

/// Two letters and a stop token: a tiny alphabet finds mixed-up tokens only by position, so the letter depends on both.
pub const STOP: u32 = 2;

/// Few different texts, so that beginnings are shared.
pub fn letter(id: u64, position: u32) -> u32 {
    (((id % 5 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (position % 50)) & 1) as u32
}

/// Does the model end this answer here?
fn stops(id: u64, position: u32) -> bool {
    (id.wrapping_mul(0x9e37_79b9) ^ u64::from(position).wrapping_mul(0x85eb_ca6b)) % 11 == 3
}

/// A plan in flight.
pub struct Flight {
    pub number: u64,
    /// Rows that sample: request and token to answer with.
    samples: Vec<(u64, i32)>,
    requests: Vec<u64>,
    /// Pages that it reads or writes: no page-in may come into them before its commit.
    pages: BTreeSet<u32>,
}

pub struct Host {
    pub core: Core,
    pub config: Config,
    pub plan: Vec<i32>,
    pub now: u64,
    pub flights: VecDeque<Flight>,
    /// A sampled row in a hundred that the worker fails.
    pub fails: u32,
    /// Answers of the requests that ended by themselves.
    pub answers: BTreeMap<u64, Vec<u32>>,
    /// Plans that were made while another was in flight, and their tokens that were sampled in vain.
    pub ahead: u64,
    pub dropped: u64,
    pub book: BTreeMap<u64, Entry>,
    pub adapters: BTreeMap<AdapterId, AdapterSpec>,
    /// Unregistered, not gone yet.
    pub draining: BTreeMap<AdapterId, AdapterSpec>,
    pub loading: Vec<(AdapterId, u32, Vec<u32>)>,
    pub finished: BTreeMap<&'static str, u64>,
    pub refused: BTreeMap<&'static str, u64>,
    pub steps: u64,
    next_id: u64,
    next_tag: u32,
    pages: Vec<Held>,
    /// What each token's KV was computed from: see [`Entry::origin`].
    kv: Vec<Option<u64>>,
    table: Vec<Vec<u32>>,
    line_request: Vec<u64>,
    slots: Vec<Option<(AdapterId, Vec<u32>)>>,
    events: Vec<Event>,
    /// Everything the core ever said, for comparing two runs.
    pub transcript: u64,
}

impl Host {
    pub fn new(config: Config) -> Self {
        let core = Core::new(config.clone()).unwrap();
        Self {
            plan: vec![0; core.plan_layout().length()],
            core,
            now: 0,
            flights: VecDeque::new(),
            fails: 1,
            answers: BTreeMap::new(),
            ahead: 0,
            dropped: 0,
            book: BTreeMap::new(),
            adapters: BTreeMap::new(),
            draining: BTreeMap::new(),
            loading: Vec::new(),
            finished: BTreeMap::new(),
            refused: BTreeMap::new(),
            steps: 0,
            next_id: 1,
            next_tag: 1,
            pages: vec![Held::Nothing; config.pages as usize],
            kv: vec![None; (config.pages * config.page_tokens) as usize],
            table: vec![vec![u32::MAX; config.cols() as usize]; config.rows_max as usize],
            line_request: vec![0; config.rows_max as usize],
            slots: vec![None; config.slots_max as usize],
            events: Vec::new(),
            transcript: 0xcbf2_9ce4_8422_2325,
            config,
        }
    }

    fn record(&mut self, text: &str) {
        for byte in text.bytes() {
            self.transcript = (self.transcript ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub fn register(&mut self, pages: u32) {
        let owner = self.next_tag % 3;
        let spec =
            AdapterSpec { tag: self.next_tag, pages, layers: 2, tenant: owner, ..AdapterSpec::default() };
        match self.core.register(spec) {
            Ok(adapter) => {
                self.next_tag += 1;
                assert!(self.adapters.keys().chain(self.draining.keys()).all(|other| adapter > *other));
                self.adapters.insert(adapter, spec);
            }
            Err(refusal) => *self.refused.entry(refusal.code()).or_default() += 1,
        }
        self.take_events();
    }

    pub fn unregister(&mut self, adapter: AdapterId) {
        if let Some(spec) = self.adapters.remove(&adapter) {
            self.draining.insert(adapter, spec);
        }
        self.core.unregister(self.now, adapter);
        self.take_events();
    }

    pub fn add(&mut self, adapter: Option<AdapterId>, prompt: u32, max_tokens: u32, stops: bool) {
        let id = self.next_id;
        let spec = RequestSpec {
            id,
            tenant: prompt % 3,
            adapter,
            priority: [Priority::Low, Priority::Normal, Priority::High][(max_tokens % 3) as usize],
            deadline: None,
            after: None,
            fresh: false,
            prompt: (0..prompt).map(|position| letter(id, position)).collect(),
            max_tokens,
            stop_tokens: if stops { vec![9, STOP] } else { Vec::new() },
        };
        let dump = self.steps.is_multiple_of(64).then(|| self.core.dump());
        match self.core.add(self.now, spec.clone()) {
            Ok(()) => {
                self.next_id += 1;
                self.book.insert(id, Entry { spec, answer: Vec::new(), ahead: VecDeque::new(), line: None });
            }
            Err(refusal) => {
                *self.refused.entry(refusal.code()).or_default() += 1;
                if let Some(dump) = dump {
                    assert_eq!(dump, self.core.dump(), "a refused call changed something");
                }
            }
        }
        self.take_events();
    }

    pub fn abort(&mut self, id: u64) {
        let known = self.book.contains_key(&id);
        self.core.abort(self.now, id);
        self.take_events();
        assert!(!self.book.contains_key(&id), "an aborted request is answered at once");
        let _ = known;
    }

    /// Makes a plan and does what it says, comparing everything that can be compared.
    pub fn step(&mut self, random: &mut Random) -> bool {
        self.now += 1 + u64::from(random.below(1000));
        let result = self.core.step(self.now, &mut self.plan);
        if self.flights.len() == self.config.plans_max as usize {
            let number = self.flights[0].number;
            assert_eq!(result, Err(StepError::PlanInFlight { number }));
            return false;
        }
        let number = result.unwrap();
        self.take_events();
        let Some(number) = number else { return false };
        self.steps += 1;
        self.ahead += u64::from(!self.flights.is_empty());
        let (mut samples, mut requests, mut used) = (Vec::new(), Vec::new(), BTreeSet::new());
        let layout = self.core.plan_layout().clone();
        let plan = std::mem::take(&mut self.plan);
        let view = layout.view(&plan);
        self.record(&view.to_string());
        assert_eq!(u64::from(view.number()), number);

        for &slot in view.clears() {
            self.slots[slot as usize] = None;
        }
        for load in view.page_ins() {
            let spec = *self.adapters.get(&load.adapter).or(self.draining.get(&load.adapter)).unwrap();
            assert_eq!((load.tag, load.pages.len() as u32), (spec.tag, spec.pages));
            assert!(self.slots[load.slot as usize].is_none(), "slot {} is loaded over another", load.slot);
            let pages: Vec<u32> = load.pages.iter().map(|&page| page as u32).collect();
            let read =
                self.flights.iter().find(|flight| pages.iter().any(|page| flight.pages.contains(page)));
            assert!(read.is_none(), "a page-in into pages of a plan in flight");
            self.copy(load.adapter, &pages); // the copy may write at any moment until it's reported
            self.loading.push((load.adapter, load.slot, pages));
        }
        assert!(self.loading.len() <= self.config.page_ins_max as usize);
        for (line, request) in view.opened() {
            self.line_request[line as usize] = request;
            self.table[line as usize].fill(u32::MAX);
        }
        for (line, col, page) in view.edits() {
            self.table[line as usize][col as usize] = page;
        }
        for (source, target) in view.copies() {
            assert_eq!(self.pages[source as usize], Held::Kv, "page {source} is copied and was written over");
            self.pages[target as usize] = Held::Kv;
            used.extend([source, target]);
            let size = self.config.page_tokens;
            for offset in 0..size {
                self.kv[(target * size + offset) as usize] = self.kv[(source * size + offset) as usize];
            }
        }

        assert!(
            view.rows() <= self.config.rows_max as usize && view.tokens() <= self.config.tokens_max as usize
        );
        let (mut token, mut distinct) = (0, Vec::new());
        for row in 0..view.rows() {
            let row = view.row(row);
            let id = self.line_request[row.line as usize];
            let entry =
                self.book.get(&id).unwrap_or_else(|| panic!("request {id} has a row and isn't known"));
            assert_eq!(entry.line, Some(row.line));
            assert!(row.count >= 1 && row.count <= self.config.prefill_chunk_max);
            requests.push(id);
            let known = entry.told() + entry.ahead.len() as u32;
            assert!(row.start + row.count <= known);
            assert_eq!(row.sample, row.start + row.count == known, "sampled from the last known token");
            match (entry.spec.adapter, row.adapter) {
                (None, None) => {}
                (Some(adapter), Some((slot, tag))) => {
                    let spec = self.adapters.get(&adapter).or(self.draining.get(&adapter)).unwrap();
                    assert_eq!(tag, spec.tag, "the row names another generation");
                    let (held, pages) = self.slots[slot as usize].as_ref().expect("an empty slot in a row");
                    assert_eq!(*held, adapter, "the slot holds another adapter");
                    used.extend(pages);
                    for (part, &page) in pages.iter().enumerate() {
                        let weights = Held::Weights { adapter, part: part as u32 };
                        assert_eq!(self.pages[page as usize], weights, "page {page} was written over");
                    }
                    if distinct.last() != Some(&adapter) {
                        assert!(!distinct.contains(&adapter), "an adapter's rows aren't adjacent");
                        distinct.push(adapter);
                        let group = distinct.len() - 1;
                        assert_eq!(view.part(Part::GroupSlot)[group], slot as i32);
                        assert_eq!(view.part(Part::GroupTag)[group], tag as i32);
                        assert_eq!(view.part(Part::GroupBegin)[group], token);
                    }
                    let end = view.part(Part::GroupEnd)[distinct.len() - 1];
                    assert!(end >= token + row.count as i32);
                }
                (wanted, given) => panic!("request {id} wants {wanted:?}, the row has {given:?}"),
            }
            let size = self.config.page_tokens;
            let cell = |position: u32| {
                let page = self.table[row.line as usize][(position / size) as usize];
                (page, (page * size + position % size) as usize)
            };
            for position in 0..row.start {
                let (page, cell) = cell(position);
                used.insert(page);
                assert_eq!(
                    self.pages[page as usize],
                    Held::Kv,
                    "page {page} of request {id} was written over"
                );
                assert_eq!(self.kv[cell], Some(entry.origin(position)), "KV of another");
            }
            for position in row.start..row.start + row.count {
                let pending = position >= entry.told();
                let expected = if pending { PENDING } else { entry.token(position) as i32 };
                assert_eq!(view.part(Part::TokenId)[token as usize], expected);
                assert_eq!(view.part(Part::TokenPos)[token as usize], position as i32);
                assert_eq!(view.part(Part::TokenLine)[token as usize], row.line as i32);
                let (page, cell) = cell(position);
                used.insert(page);
                self.pages[page as usize] = Held::Kv;
                self.kv[cell] = Some(entry.origin(position));
                token += 1;
            }
            if row.sample {
                let ends = !entry.spec.stop_tokens.is_empty() && stops(id, known);
                let token = if random.below(100) < self.fails {
                    SAMPLE_FAILED
                } else if ends {
                    STOP as i32
                } else {
                    letter(id, known) as i32
                };
                samples.push((id, token));
                // of a row that failed the worker has something, which nobody is told
                let entry = self.book.get_mut(&id).expect("it has a row");
                entry.ahead.push_back(token.max(0) as u32);
            }
        }
        assert_eq!(token as usize, view.tokens());
        assert_eq!(view.part(Part::Header)[3] as usize, distinct.len());
        assert!(distinct.len() <= self.config.adapters_step_max as usize);
        assert_eq!(samples.len(), view.samples());
        self.flights.push_back(Flight { number, samples, requests, pages: used });
        self.plan = plan;
        true
    }

    /// Copies an adapter's image into its pages; KV that was there is gone.
    fn copy(&mut self, adapter: AdapterId, pages: &[u32]) {
        for (part, &page) in pages.iter().enumerate() {
            self.pages[page as usize] = Held::Weights { adapter, part: part as u32 };
        }
    }

    pub fn commit(&mut self) {
        let Some(Flight { number, samples, .. }) = self.flights.pop_front() else {
            assert!(self.core.commit(self.now, 1, &[]).is_err());
            return;
        };
        assert!(self.core.commit(self.now, number + 1, &[]).is_err());
        let tokens: Vec<i32> = samples.iter().map(|(_, token)| *token).collect();
        self.core.commit(self.now, number, &tokens).unwrap();
        self.dropped += samples.iter().filter(|(id, _)| !self.book.contains_key(id)).count() as u64;
        // what must be said, in the plan's order
        let told: Vec<(u64, u32)> = samples
            .iter()
            .filter(|(id, token)| self.book.contains_key(id) && *token != SAMPLE_FAILED)
            .map(|(id, token)| (*id, *token as u32))
            .collect();
        let said = self.take_events();
        assert_eq!(said, told);
    }

    pub fn lose_plan(&mut self) {
        let Some(flight) = self.flights.pop_front() else { return };
        self.core.commit_failed(self.now, flight.number).unwrap();
        assert_eq!(self.take_events(), []);
        assert!(
            flight.requests.iter().all(|id| !self.book.contains_key(id)),
            "a request of a lost plan lives"
        );
    }

    pub fn report_page_in(&mut self, random: &mut Random, failed: bool) {
        if self.loading.is_empty() {
            let unknown = AdapterId::from_number(random.below(1 << 20));
            assert!(self.core.page_in_done(self.now, unknown).is_err());
            return;
        }
        let (adapter, slot, pages) =
            self.loading.swap_remove(random.below(self.loading.len() as u32) as usize);
        self.copy(adapter, &pages);
        if failed {
            self.core.page_in_failed(self.now, adapter).unwrap();
        } else {
            self.slots[slot as usize] = Some((adapter, pages));
            self.core.page_in_done(self.now, adapter).unwrap();
        }
        self.take_events();
    }

    /// Books the events; returns the tokens that were said.
    fn take_events(&mut self) -> Vec<(u64, u32)> {
        let mut events = std::mem::take(&mut self.events);
        self.core.drain_events(&mut events);
        let mut said = Vec::new();
        for event in events.drain(..) {
            self.record(&format!("{event:?}"));
            match event {
                Event::Admitted { request, line } => {
                    let entry = self.book.get_mut(&request).expect("admitted, not known");
                    assert_eq!(entry.line.replace(line), None, "request {request} admitted twice");
                }
                Event::Preempted { request } => {
                    let entry = self.book.get_mut(&request).expect("preempted, not known");
                    assert!(entry.line.take().is_some(), "request {request} preempted, not running");
                    assert!(entry.ahead.is_empty(), "request {request} preempted in flight");
                }
                Event::Token { request, token } => {
                    let entry = self.book.get_mut(&request).expect("a token for nobody");
                    assert!(entry.line.is_some(), "a token while waiting");
                    let position = (entry.spec.prompt.len() + entry.answer.len()) as u32;
                    assert!(
                        token == STOP || token == letter(request, position),
                        "a gap or a repeat in {request}"
                    );
                    assert!((entry.answer.len() as u32) < entry.spec.max_tokens);
                    assert_eq!(entry.ahead.pop_front(), Some(token));
                    entry.answer.push(token);
                    said.push((request, token));
                }
                Event::Finished { request, reason } => {
                    let entry = self.book.remove(&request).expect("finished twice, or not known");
                    let stopped = entry.answer.last() == Some(&STOP) && !entry.spec.stop_tokens.is_empty();
                    match reason {
                        FinishReason::Stop => assert!(stopped),
                        FinishReason::Length => {
                            assert!(!stopped && entry.answer.len() as u32 == entry.spec.max_tokens);
                        }
                        FinishReason::Aborted | FinishReason::Failed { .. } => {}
                    }
                    if matches!(reason, FinishReason::Stop | FinishReason::Length) {
                        self.answers.insert(request, entry.answer);
                    }
                    *self.finished.entry(reason.name()).or_default() += 1;
                }
                Event::AdapterGone { adapter } => {
                    assert!(
                        self.draining.remove(&adapter).is_some(),
                        "an adapter went that wasn't unregistered"
                    );
                    assert!(self.book.values().all(|entry| entry.spec.adapter != Some(adapter)));
                }
                Event::AdapterLoading { .. }
                | Event::AdapterHot { .. }
                | Event::AdapterWanted { .. }
                | Event::AdapterDropped { .. }
                | Event::AdapterEvicted { .. }
                | Event::AdapterFailed { .. } => {}
            }
        }
        self.events = events;
        said
    }

    /// Lets everything end; the count of steps is bounded, so that nobody waits for ever.
    pub fn drain(&mut self, random: &mut Random) {
        let work: u32 =
            self.book.values().map(|entry| entry.spec.prompt.len() as u32 + entry.spec.max_tokens).sum();
        let bound = 64 + 8 * u64::from(work);
        let mut steps = 0;
        while self.core.has_work() {
            if !self.step(random) {
                assert!(
                    !self.loading.is_empty() || !self.flights.is_empty(),
                    "nothing can run and nothing is loading:\n{}",
                    self.core.dump()
                );
            }
            if self.flights.len() == self.config.plans_max as usize || random.chance(50) {
                self.commit();
            }
            self.report_page_in(random, false);
            self.core.check().unwrap();
            steps += 1;
            assert!(steps < bound, "{steps} steps for {work} tokens:\n{}", self.core.dump());
        }
        assert!(self.book.is_empty(), "never answered: {:?}", self.book.keys());
        while !self.loading.is_empty() {
            self.report_page_in(random, false);
        }
        let stats = self.core.stats();
        assert_eq!(stats.pages_sequence, 0);
        let registered: Vec<AdapterId> = self.adapters.keys().copied().collect();
        for adapter in registered {
            self.unregister(adapter);
        }
        assert!(self.draining.is_empty());
        let stats = self.core.stats();
        let back = stats.pages_free + stats.pages_cached;
        assert_eq!(back, self.config.pages - self.config.pages_reserved, "{}", self.core.dump());
        assert_eq!((stats.slots_free, stats.adapters), (self.config.slots_max, 0));
        self.core.check().unwrap();
    }
}
