//! A host that makes calls as the bytes say.

use std::collections::VecDeque;
use std::fmt::Display;

use lorad_sched::{
    AdapterId, AdapterSpec, Core, Counters, Event, Priority, RequestSpec, StepError, TenantSpec,
    SAMPLE_FAILED,
};

use super::book::{Book, Promise};
use super::Bytes;

/// Time of a step while everything runs out, µs.
const RUN_OUT_US: u64 = 10_000;
const TENANTS: u32 = 4;

/// The host.
pub struct Host {
    core: Core,
    plan: Vec<i32>,
    now: u64,
    /// Numbers and sampling rows of the plans in flight.
    flights: VecDeque<(u64, usize)>,
    book: Book,
    events: Vec<Event>,
    next_id: u64,
    calls: u64,
}

impl Host {
    pub fn new(core: Core) -> Self {
        let plan = vec![0; core.plan_layout().length()];
        Self {
            plan,
            core,
            now: 0,
            flights: VecDeque::new(),
            book: Book::default(),
            events: Vec::new(),
            next_id: 1,
            calls: 0,
        }
    }

    pub fn register(&mut self, bytes: &mut Bytes) {
        let before = self.before();
        // now and then none, or more than there may be
        let pages = if bytes.rarely(32) { 8 * bytes.below(5) } else { 1 + bytes.below(4) };
        let mut spec = AdapterSpec { tag: bytes.byte().into(), pages, ..AdapterSpec::default() };
        spec.layers = 1 + bytes.below(3);
        spec.tenant = bytes.below(TENANTS);
        spec.weight = [100, 1, 1000, 0][bytes.below(4) as usize];
        spec.remote = bytes.rarely(3);
        match self.core.register(spec) {
            Ok(adapter) => {
                assert!(self.book.adapters.iter().all(|&other| adapter > other), "an adapter's id again");
                self.book.adapters.push(adapter);
            }
            Err(refusal) => self.unchanged(&before, &refusal),
        }
    }

    pub fn unregister(&mut self, bytes: &mut Bytes) {
        if let Some(adapter) = self.some_adapter(bytes) {
            self.core.unregister(self.now, adapter);
        }
    }

    /// Pins, unpins or prewarms.
    pub fn keep(&mut self, bytes: &mut Bytes) {
        let Some(adapter) = self.some_adapter(bytes) else { return };
        let before = self.before();
        let kept = match bytes.below(3) {
            0 => self.core.prewarm(self.now, adapter),
            pinned => self.core.pin(self.now, adapter, pinned == 1),
        };
        if let Err(refusal) = kept {
            self.unchanged(&before, &refusal);
        }
    }

    pub fn set_tenant(&mut self, bytes: &mut Bytes) {
        let before = self.before();
        let mut limit = || if bytes.rarely(2) { u32::MAX } else { bytes.below(8) };
        let spec = TenantSpec {
            pages_max: limit(),
            adapters_max: limit(),
            running_max: limit(),
            waiting_max: limit(),
            weight: [100, 1, 1000, 0][bytes.below(4) as usize],
        };
        if let Err(refusal) = self.core.set_tenant(bytes.below(TENANTS), spec) {
            self.unchanged(&before, &refusal);
        }
    }

    /// A known adapter; sometimes one that nobody knows.
    fn some_adapter(&self, bytes: &mut Bytes) -> Option<AdapterId> {
        if bytes.rarely(16) {
            return Some(AdapterId::from_number(bytes.byte().into()));
        }
        bytes.one_of(&self.book.adapters)
    }

    fn some_request(&self, bytes: &mut Bytes) -> Option<u64> {
        let ids: Vec<u64> = self.book.open.keys().copied().collect();
        bytes.one_of(&ids)
    }

    pub fn add(&mut self, bytes: &mut Bytes) {
        let before = self.before();
        let adapter = if bytes.below(4) == 0 { None } else { self.some_adapter(bytes) };
        let mut spec = RequestSpec { id: self.next_id, adapter, ..RequestSpec::default() };
        spec.tenant = bytes.below(TENANTS);
        // beginnings that are often the same
        let (length, same) = (1 + bytes.below(12), bytes.below(13));
        let vocab = self.core.config().vocab;
        spec.prompt = (0..length).map(|place| if place < same { 0 } else { bytes.below(vocab) }).collect();
        spec.max_tokens = 1 + bytes.below(12);
        spec.stop_tokens = vec![1; bytes.below(4) as usize / 3];
        spec.priority = [Priority::Normal, Priority::Low, Priority::High][bytes.below(3) as usize];
        spec.deadline = bytes.rarely(8).then(|| self.now.saturating_add(bytes.time(20_000)));
        spec.after = if bytes.rarely(4) { self.some_request(bytes) } else { None };
        match bytes.below(64) {
            58 => spec.max_tokens = 0,
            59 => spec.prompt.clear(),
            60 => spec.max_tokens = u32::MAX,
            61 => spec.prompt.push(u32::MAX),
            62 => spec.stop_tokens = vec![u32::MAX; 9],
            63 => spec.id = self.some_request(bytes).unwrap_or(u64::MAX),
            _ => {}
        }
        let id = spec.id;
        let promise = Promise::new(adapter, spec.prompt.len(), spec.max_tokens, spec.stop_tokens.clone());
        match self.core.add(self.now, spec) {
            Ok(()) => {
                self.book.accept(id, promise);
                self.next_id += 1;
            }
            Err(refusal) => self.unchanged(&before, &refusal),
        }
    }

    pub fn abort(&mut self, bytes: &mut Bytes) {
        let id = self.some_request(bytes).unwrap_or(u64::MAX);
        self.core.abort(self.now, id);
        self.core.abort(self.now, id);
        self.take_events();
        assert!(!self.book.open.contains_key(&id), "an aborted request is answered at once");
    }

    pub fn step(&mut self) {
        self.now = self.now.saturating_add(1000);
        let before = self.before();
        let full = self.flights.len() == self.core.config().plans_max as usize;
        if let Some(&(number, _)) = self.flights.front().filter(|_| full) {
            let error = StepError::PlanInFlight { number };
            assert_eq!(self.core.step(self.now, &mut self.plan), Err(error));
            return self.unchanged(&before, &error);
        }
        let length = self.plan.len() - 1;
        let short = self.core.step(self.now, &mut self.plan[..length]).expect_err("a short buffer");
        self.unchanged(&before, &short);
        let made = self.core.step(self.now, &mut self.plan).expect("there was room in flight");
        self.take_events();
        let Some(number) = made else { return };
        let (view, config) = (self.core.plan_layout().view(&self.plan), self.core.config());
        assert!(view.rows() <= config.rows_max as usize && view.tokens() <= config.tokens_max as usize);
        let counts = (0..view.rows()).map(|row| view.row(row).count as usize);
        assert_eq!(counts.sum::<usize>(), view.tokens());
        assert_eq!((0..view.rows()).filter(|&row| view.row(row).sample).count(), view.samples());
        assert!(view.page_ins().all(|load| self.book.is_loading(load.adapter)));
        self.flights.push_back((number, view.samples()));
    }

    pub fn commit(&mut self, bytes: &mut Bytes) {
        let Some((number, samples)) = self.flights.pop_front() else {
            assert!(self.core.commit(self.now, bytes.byte().into(), &[]).is_err());
            return;
        };
        let vocab = self.core.config().vocab;
        let sample = |bytes: &mut Bytes| match bytes.byte() {
            255 => SAMPLE_FAILED,
            byte => (u32::from(byte) % vocab) as i32,
        };
        let sampled: Vec<i32> = (0..samples).map(|_| sample(bytes)).collect();
        self.core.commit(self.now, number, &sampled).expect("what was asked for");
    }

    pub fn commit_wrongly(&mut self, bytes: &mut Bytes) {
        let Some(&(number, samples)) = self.flights.front() else { return };
        let before = self.before();
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
        match self.flights.pop_front() {
            Some((number, _)) => self.core.commit_failed(self.now, number).expect("it was in flight"),
            None => assert!(self.core.commit_failed(self.now, 1).is_err()),
        }
    }

    pub fn report_page_in(&mut self, bytes: &mut Bytes) {
        if self.book.loading.is_empty() {
            return;
        }
        let place = bytes.below(self.book.loading.len() as u32) as usize;
        let (adapter, dropped) = self.book.loading[place];
        let reported = match bytes.below(8) {
            7 => self.core.page_in_failed(self.now, adapter),
            6 => return self.core.page_in_reached(self.now, adapter, bytes.below(5)).expect("it loads"),
            4 | 5 if dropped => self.core.page_in_dropped(self.now, adapter),
            _ => self.core.page_in_done(self.now, adapter),
        };
        reported.expect("it was planned");
        self.book.loading.swap_remove(place);
    }

    /// Reports an adapter that may be anything, in a state in which it can't be reported.
    pub fn report_wrongly(&mut self, bytes: &mut Bytes) {
        let Some(adapter) = self.some_adapter(bytes) else { return };
        let before = self.before();
        let dropped = self.book.loading.contains(&(adapter, true));
        if !dropped {
            let error = self.core.page_in_dropped(self.now, adapter).expect_err("nothing was dropped");
            self.unchanged(&before, &error);
        }
        if !self.book.is_loading(adapter) {
            let error = self.core.page_in_done(self.now, adapter).expect_err("no page-in was planned");
            self.unchanged(&before, &error);
            assert!(self.core.page_in_failed(self.now, adapter).is_err());
            assert!(self.core.page_in_reached(self.now, adapter, 1).is_err());
        } else {
            let error = self.core.arrived(self.now, adapter).expect_err("it was there already");
            self.unchanged(&before, &error);
        }
    }

    pub fn report_fetch(&mut self, bytes: &mut Bytes) {
        let Some(adapter) = bytes.one_of(&self.book.wanted) else { return };
        self.book.wanted.retain(|&other| other != adapter);
        let reported = if bytes.rarely(4) {
            self.core.fetch_failed(self.now, adapter)
        } else {
            self.core.arrived(self.now, adapter)
        };
        reported.expect("it was asked for");
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

    /// The state before a call that may be refused; of every fourth one, because dumps are slow.
    fn before(&mut self) -> Option<String> {
        self.calls += 1;
        self.calls.is_multiple_of(4).then(|| self.core.dump())
    }

    fn unchanged(&self, before: &Option<String>, refusal: &dyn Display) {
        if let Some(before) = before {
            assert_eq!(*before, self.core.dump(), "a refused call changed something: {refusal}");
        }
    }

    /// The core's own check, and the events against the book.
    pub fn check(&mut self) {
        if let Err(fault) = self.core.check() {
            panic!("{fault}\n{}", self.core.dump());
        }
        self.take_events();
    }

    fn take_events(&mut self) {
        self.core.drain_events(&mut self.events);
        for event in self.events.drain(..) {
            self.book.take(event);
        }
    }

    /// Lets everything end within a bounded number of steps, and gives all back.
    pub fn run_out(mut self) -> Counters {
        // a limit that was set below what waits would keep it waiting
        for tenant in 0..TENANTS {
            let _ = self.core.set_tenant(tenant, TenantSpec::default());
        }
        let bound = 1000 + 64 * self.book.work();
        let mut nothing = Bytes(&[]);
        for steps in 0.. {
            if steps % 3 > 0 && !self.flights.is_empty() {
                self.commit(&mut nothing);
            }
            while !self.book.loading.is_empty() {
                self.report_page_in(&mut nothing);
                self.take_events();
            }
            while !self.book.wanted.is_empty() {
                self.report_fetch(&mut nothing);
                self.take_events();
            }
            self.check();
            if !self.core.has_work() {
                break;
            }
            assert!(steps < bound, "{steps} steps, at most {bound}:\n{}", self.core.dump());
            self.now = self.now.saturating_add(RUN_OUT_US);
            self.step();
            let all_wait = self.flights.is_empty() && !self.book.open.is_empty();
            assert!(!all_wait, "nothing can run, nothing is loading:\n{}", self.core.dump());
        }
        assert!(self.book.open.is_empty(), "never answered: {:?}", self.book.open.keys());
        for adapter in self.book.adapters.clone() {
            self.core.unregister(self.now, adapter);
        }
        self.check();
        let stats = self.core.stats();
        assert!(self.book.adapters.is_empty(), "never gone: {:?}", self.book.adapters);
        assert_eq!((stats.adapters, stats.pages_sequence, stats.pages_adapter), (0, 0, 0));
        assert_eq!(stats.slots_free, self.core.config().slots_max, "{}", self.core.dump());
        stats.counters
    }
}
