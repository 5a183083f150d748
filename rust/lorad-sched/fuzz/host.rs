//! A host that makes calls as the bytes say and keeps only what it was promised.

use std::collections::BTreeMap;

use lorad_sched::{
    AdapterId, AdapterSpec, Core, Counters, Event, FinishReason, RequestSpec, StepError, SAMPLE_FAILED,
};

use super::Bytes;

/// Time of a step while everything runs out, µs.
const RUN_OUT_US: u64 = 10_000;

/// What is known about an accepted request.
struct Promise {
    adapter: Option<AdapterId>,
    max_tokens: u32,
    stop_tokens: Vec<u32>,
    work: u64,
    running: bool,
    answer: Vec<u32>,
}

/// The host.
pub struct Host {
    core: Core,
    plan: Vec<i32>,
    now: u64,
    /// Number and sampling rows of the plan in flight.
    flight: Option<(u64, usize)>,
    /// Accepted requests that weren't answered yet.
    open: BTreeMap<u64, Promise>,
    /// Registered adapters that aren't gone.
    adapters: Vec<AdapterId>,
    /// Page-ins that weren't reported yet.
    loading: Vec<AdapterId>,
    events: Vec<Event>,
    next_id: u64,
}

impl Host {
    pub fn new(core: Core) -> Self {
        Self {
            plan: vec![0; core.plan_layout().length()],
            core,
            now: 0,
            flight: None,
            open: BTreeMap::new(),
            adapters: Vec::new(),
            loading: Vec::new(),
            events: Vec::new(),
            next_id: 1,
        }
    }

    pub fn register(&mut self, bytes: &mut Bytes) {
        let before = self.core.dump();
        let (tag, odd) = (u32::from(bytes.byte()), bytes.below(32));
        // now and then none, or more than there may be
        let pages = if odd == 31 { 8 * bytes.below(5) } else { 1 + bytes.below(4) };
        let mut spec = AdapterSpec { tag, pages, ..AdapterSpec::default() };
        spec.layers = 1 + bytes.below(3);
        match self.core.register(spec) {
            Ok(adapter) => {
                assert!(tag > 0 && pages > 0);
                assert!(self.adapters.iter().all(|&other| adapter > other), "an adapter's id again");
                self.adapters.push(adapter);
            }
            Err(refusal) => self.unchanged(&before, &refusal),
        }
    }

    pub fn unregister(&mut self, bytes: &mut Bytes) {
        if let Some(adapter) = self.some_adapter(bytes) {
            self.core.unregister(self.now, adapter);
        }
    }

    /// A known adapter; sometimes one that nobody knows.
    fn some_adapter(&self, bytes: &mut Bytes) -> Option<AdapterId> {
        if bytes.below(16) == 15 {
            return Some(AdapterId::from_number(bytes.byte().into()));
        }
        bytes.one_of(&self.adapters)
    }

    pub fn add(&mut self, bytes: &mut Bytes) {
        let before = self.core.dump();
        let adapter = if bytes.below(4) == 0 { None } else { self.some_adapter(bytes) };
        let (length, max_tokens, odd) = (1 + bytes.below(12), 1 + bytes.below(12), bytes.below(64));
        let mut spec = RequestSpec { id: self.next_id, adapter, ..RequestSpec::default() };
        spec.tenant = bytes.below(4);
        spec.prompt = vec![bytes.below(self.core.config().vocab); length as usize];
        spec.max_tokens = max_tokens;
        spec.stop_tokens = vec![0; bytes.below(4) as usize / 3];
        match odd {
            58 => spec.max_tokens = 0,
            59 => spec.prompt.clear(),
            60 => spec.max_tokens = u32::MAX,
            61 => spec.prompt.push(u32::MAX),
            62 => spec.stop_tokens = vec![u32::MAX; 9],
            63 => spec.id = self.open.keys().next().copied().unwrap_or(u64::MAX),
            _ => {}
        }
        let (id, work) = (spec.id, spec.prompt.len() as u64 + u64::from(spec.max_tokens));
        let promise = Promise {
            adapter,
            max_tokens: spec.max_tokens,
            stop_tokens: spec.stop_tokens.clone(),
            work,
            running: false,
            answer: Vec::new(),
        };
        match self.core.add(self.now, spec) {
            Ok(()) => {
                assert!(self.open.insert(id, promise).is_none(), "request {id} was accepted twice");
                self.next_id += 1;
            }
            Err(refusal) => self.unchanged(&before, &refusal),
        }
    }

    pub fn abort(&mut self, bytes: &mut Bytes) {
        let ids: Vec<u64> = self.open.keys().copied().collect();
        let id = bytes.one_of(&ids).unwrap_or(u64::MAX);
        self.core.abort(self.now, id);
        self.core.abort(self.now, id);
        self.take_events();
        assert!(!self.open.contains_key(&id), "an aborted request is answered at once");
    }

    pub fn step(&mut self) {
        self.now = self.now.saturating_add(1000);
        let before = self.flight.map(|_| self.core.dump());
        let length = self.plan.len() - 1;
        let short = self.core.step(self.now, &mut self.plan[..length]);
        let made = self.core.step(self.now, &mut self.plan);
        if let (Some((number, _)), Some(before)) = (self.flight, before) {
            assert_eq!(made, Err(StepError::PlanInFlight { number }));
            return self.unchanged(&before, &StepError::PlanInFlight { number });
        }
        assert!(matches!(short, Err(StepError::BufferLength { .. })), "{short:?}");
        let Some(number) = made.expect("nothing was in flight") else { return };
        let view = self.core.plan_layout().view(&self.plan);
        let config = self.core.config();
        assert!(view.rows() <= config.rows_max as usize && view.tokens() <= config.tokens_max as usize);
        assert!(view.rows() > 0 || view.page_ins().next().is_some(), "a plan of nothing");
        let counts = (0..view.rows()).map(|row| view.row(row).count as usize);
        assert_eq!(counts.sum::<usize>(), view.tokens());
        assert_eq!((0..view.rows()).filter(|&row| view.row(row).sample).count(), view.samples());
        self.flight = Some((number, view.samples()));
        for load in view.page_ins() {
            assert!(!self.loading.contains(&load.adapter), "paged in twice at once");
            self.loading.push(load.adapter);
        }
    }

    pub fn commit(&mut self, bytes: &mut Bytes) {
        let Some((number, samples)) = self.flight.take() else {
            assert!(self.core.commit(self.now, bytes.byte().into(), &[]).is_err());
            return;
        };
        let vocab = self.core.config().vocab;
        let sampled: Vec<i32> = (0..samples)
            .map(|_| match bytes.byte() {
                255 => SAMPLE_FAILED,
                byte => (u32::from(byte) % vocab) as i32,
            })
            .collect();
        self.core.commit(self.now, number, &sampled).expect("what was asked for");
    }

    pub fn commit_wrongly(&mut self, bytes: &mut Bytes) {
        let Some((number, samples)) = self.flight else { return };
        let before = self.core.dump();
        let mut sampled = vec![0; samples];
        let mut given = number;
        match bytes.below(4) {
            0 => given = number.wrapping_add(1 + u64::from(bytes.byte())),
            1 => sampled.push(0),
            2 if samples > 0 => sampled[samples - 1] = self.core.config().vocab as i32,
            _ if samples > 0 => sampled[0] = -2,
            _ => given = 0,
        }
        let error = self.core.commit(self.now, given, &sampled).expect_err("a wrong commit was taken");
        self.unchanged(&before, &error);
        assert!(self.core.commit_failed(self.now, number + 1).is_err());
    }

    pub fn commit_failed(&mut self) {
        match self.flight.take() {
            Some((number, _)) => self.core.commit_failed(self.now, number).expect("it was in flight"),
            None => assert!(self.core.commit_failed(self.now, 1).is_err()),
        }
    }

    pub fn report_page_in(&mut self, bytes: &mut Bytes) {
        if self.loading.is_empty() {
            return;
        }
        let adapter = self.loading.swap_remove(bytes.below(self.loading.len() as u32) as usize);
        if bytes.below(8) == 7 {
            self.core.page_in_failed(self.now, adapter).expect("it was planned");
        } else {
            self.core.page_in_done(self.now, adapter).expect("it was planned");
        }
    }

    /// Reports an adapter that may be anything.
    pub fn report_any_page_in(&mut self, bytes: &mut Bytes) {
        let Some(adapter) = self.some_adapter(bytes).filter(|adapter| !self.loading.contains(adapter)) else {
            return;
        };
        let before = self.core.dump();
        let error = self.core.page_in_done(self.now, adapter).expect_err("no page-in was planned");
        self.unchanged(&before, &error);
        assert!(self.core.page_in_failed(self.now, adapter).is_err());
    }

    /// Moves the clock: on, far on, or back, which the core takes for standing still.
    pub fn jump(&mut self, bytes: &mut Bytes) {
        let bits = bytes.below(64);
        self.now = match bytes.below(8) {
            0 => self.now >> (bits % 8),
            1 if bits == 63 => u64::MAX,
            _ => self.now.saturating_add(1 << (bits % 40)),
        };
    }

    fn unchanged(&self, before: &str, refusal: &dyn std::fmt::Display) {
        assert_eq!(before, self.core.dump(), "a refused call changed something: {refusal}");
    }

    /// The core's own check, and the events against what was promised.
    pub fn check(&mut self) {
        if let Err(fault) = self.core.check() {
            panic!("{fault}\n{}", self.core.dump());
        }
        self.take_events();
    }

    fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.core.drain_events(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Admitted { request, .. } => {
                    let promise = self.open.get_mut(&request).expect("admitted, not open");
                    assert!(!std::mem::replace(&mut promise.running, true), "{request} admitted twice");
                }
                Event::Preempted { request } => {
                    let promise = self.open.get_mut(&request).expect("preempted, not open");
                    assert!(std::mem::replace(&mut promise.running, false), "{request} wasn't running");
                }
                Event::Token { request, token } => {
                    let promise = self.open.get_mut(&request).expect("a token for nobody");
                    assert!(promise.running && promise.answer.len() < promise.max_tokens as usize);
                    assert!(!promise.stopped(), "a token after the stop token");
                    promise.answer.push(token);
                }
                Event::Finished { request, reason } => {
                    let promise = self.open.remove(&request).expect("finished twice, or never accepted");
                    match reason {
                        FinishReason::Stop => assert!(promise.stopped()),
                        FinishReason::Length => {
                            assert!(
                                !promise.stopped() && promise.answer.len() == promise.max_tokens as usize
                            );
                        }
                        _ => {}
                    }
                }
                Event::AdapterGone { adapter } => {
                    let place = self.adapters.iter().position(|&other| other == adapter);
                    self.adapters.remove(place.expect("gone twice, or never registered"));
                    assert!(self.open.values().all(|promise| promise.adapter != Some(adapter)));
                }
                _ => {}
            }
        }
        self.events = events;
    }

    /// Lets everything end within a bounded number of steps, and gives all back.
    pub fn run_out(mut self) -> Counters {
        let work: u64 = self.open.values().map(|promise| promise.work).sum();
        let bound = 1000 + 64 * work;
        let mut nothing = Bytes(&[]);
        for steps in 0.. {
            if self.flight.is_some() {
                self.commit(&mut nothing);
            }
            while !self.loading.is_empty() {
                self.report_page_in(&mut nothing);
            }
            self.check();
            if !self.core.has_work() {
                break;
            }
            assert!(steps < bound, "{steps} steps for {work} tokens:\n{}", self.core.dump());
            self.now = self.now.saturating_add(RUN_OUT_US);
            self.step();
            assert!(self.flight.is_some(), "nothing can run, nothing is loading:\n{}", self.core.dump());
        }
        assert!(self.open.is_empty(), "never answered: {:?}", self.open.keys());
        for adapter in self.adapters.clone() {
            self.core.unregister(self.now, adapter);
        }
        self.check();
        let stats = self.core.stats();
        assert!(self.adapters.is_empty(), "never gone: {:?}", self.adapters);
        assert_eq!((stats.adapters, stats.pages_sequence), (0, 0), "{}", self.core.dump());
        assert_eq!(stats.slots_free, self.core.config().slots_max, "{}", self.core.dump());
        stats.counters
    }
}

impl Promise {
    fn stopped(&self) -> bool {
        self.answer.last().is_some_and(|token| self.stop_tokens.contains(token))
    }
}
