//! The states of figure C6: 256 rows that decode, 1,000 adapters, and requests that wait because nothing of what they
//! need is free. `step.rs` and `examples/step_times.rs` measure the same ones.

use std::time::{Duration, Instant};

use lorad_sched::{AdapterId, AdapterSpec, Config, Core, Event, RequestSpec, Stats};

/// Rows that decode.
pub const ROWS: u32 = 256;
/// Registered adapters.
pub const ADAPTERS: u32 = 1000;
/// Adapters that are hot, each with running rows.
pub const RESIDENT: u32 = 64;
/// Steps that a state is used for before it's made anew: rows grow by a token a step and must not end.
pub const WINDOW: u32 = 2000;

/// Rank 16 on all linear modules of an 8B model, in pages of 2 MiB.
const ADAPTER_PAGES: u32 = 40;
const PAGE_TOKENS: u32 = 16;
const PROMPT: u32 = 64;
const MAX_TOKENS: u32 = 512;
const TENANTS: u32 = 50;
/// So short that a window is over before any waiting request is entitled to somebody's row.
const STEP_US: u64 = 100;
const TOKEN: i32 = 7;
const STOP: i32 = 3;
/// Steps within which the rows run: page-ins and prompts, with plenty to spare.
const FILL_STEPS_MAX: u32 = 10_000;

/// What keeps the waiting requests out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Half of the rows are free; every adapter slot has an adapter with rows, and those that wait want another one.
    Slots,
    /// Rows and slots are free; each adapter that is waited for needs more pages than are free.
    Pages,
    /// Every row is taken, and every slot.
    Rows,
    /// As `Rows`, with hot adapters only: in each step one row ends and one is admitted, and one request is added.
    Churn,
}

impl State {
    pub const ALL: [State; 4] = [State::Slots, State::Pages, State::Rows, State::Churn];

    pub fn name(self) -> &'static str {
        match self {
            State::Slots => "slots",
            State::Pages => "pages",
            State::Rows => "rows",
            State::Churn => "churn",
        }
    }
}

/// What a step took.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    pub step: Duration,
    pub commit: Duration,
}

impl Spent {
    pub fn both(self) -> Duration {
        self.step + self.commit
    }
}

/// A core in one of the states, and the host around it.
pub struct Load {
    pub core: Core,
    state: State,
    waiting: u32,
    adapters: Vec<AdapterId>,
    plan: Vec<i32>,
    sampled: Vec<i32>,
    events: Vec<Event>,
    now: u64,
    next_id: u64,
    steps: u32,
    filled: Stats,
}

impl Load {
    /// Rows that decode and `waiting` requests that can't be admitted, good for [`WINDOW`] steps.
    pub fn new(state: State, waiting: u32) -> Result<Self, String> {
        let config = config(state, waiting);
        let kv_pages = config.pages - RESIDENT * ADAPTER_PAGES;
        let core = Core::new(config).map_err(|error| error.to_string())?;
        let mut load = Self {
            plan: vec![0; core.plan_layout().length()],
            core,
            state,
            waiting,
            adapters: Vec::new(),
            sampled: Vec::new(),
            events: Vec::new(),
            now: 0,
            next_id: 1,
            steps: 0,
            filled: Stats::default(),
        };
        for index in 0..ADAPTERS {
            let cold = state == State::Pages && index >= RESIDENT;
            let pages = if cold { kv_pages } else { ADAPTER_PAGES };
            let spec =
                AdapterSpec { tag: index + 1, pages, tenant: index % TENANTS, ..AdapterSpec::default() };
            load.adapters.push(load.core.register(spec).map_err(|error| error.to_string())?);
        }
        load.fill()?;
        for index in 0..waiting {
            let adapter = match state {
                State::Slots | State::Pages => RESIDENT + index % (ADAPTERS - RESIDENT),
                State::Rows => index % ADAPTERS,
                State::Churn => index % RESIDENT,
            };
            load.add(adapter, PROMPT, MAX_TOKENS)?;
        }
        // those that lack something are met for the first time
        for _ in 0..8 {
            load.step()?;
        }
        load.steps = 0;
        load.filled = load.core.stats();
        Ok(load)
    }

    /// Admits the rows and steps until all of them decode. Their lengths differ, so that the same few need a page in
    /// each step.
    fn fill(&mut self) -> Result<(), String> {
        for index in 0..ROWS {
            let max_tokens = if self.state == State::Churn { MAX_TOKENS } else { 2 * WINDOW };
            self.add(index % RESIDENT, PROMPT + index / RESIDENT + 4 * (index % 4), max_tokens)?;
        }
        for _ in 0..FILL_STEPS_MAX {
            let number = self.plan_and_commit()?.1;
            let view = self.core.plan_layout().view(&self.plan);
            if number.is_some() && view.rows() == ROWS as usize && view.tokens() == ROWS as usize {
                return Ok(());
            }
        }
        Err(format!("the rows don't run:\n{}", self.core.dump()))
    }

    /// A request that nobody has added yet; `adapter` counts from 0.
    pub fn request(&mut self, adapter: u32, prompt: u32, max_tokens: u32) -> RequestSpec {
        let id = self.next_id;
        self.next_id += 1;
        let mut spec = RequestSpec {
            id,
            tenant: adapter % TENANTS,
            adapter: self.adapters.get(adapter as usize).copied(),
            // nobody's beginning is anybody else's
            prompt: (0..prompt).map(|place| id as u32 * 64 + place % 64).collect(),
            max_tokens,
            ..RequestSpec::default()
        };
        spec.stop_tokens = vec![STOP as u32];
        spec
    }

    fn add(&mut self, adapter: u32, prompt: u32, max_tokens: u32) -> Result<(), String> {
        let request = self.request(adapter, prompt, max_tokens);
        self.core.add(self.now, request).map_err(|error| error.to_string())
    }

    /// How long one more request takes to be added. It's taken back, so that as many wait as before.
    pub fn time_add(&mut self) -> Result<Duration, String> {
        let request = self.request(ADAPTERS - 1, PROMPT, MAX_TOKENS);
        let id = request.id;
        let begin = Instant::now();
        let added = self.core.add(self.now, request);
        let spent = begin.elapsed();
        added.map_err(|error| error.to_string())?;
        self.core.abort(self.now, id);
        self.core.drain_events(&mut self.events);
        self.events.clear();
        Ok(spent)
    }

    /// One plan, made and committed. A state that is used up is made anew, which isn't counted.
    pub fn step(&mut self) -> Result<Spent, String> {
        if self.steps == WINDOW {
            *self = Self::new(self.state, self.waiting)?;
        }
        self.steps += 1;
        match self.plan_and_commit()? {
            (spent, Some(_)) => Ok(spent),
            (_, None) => Err(format!("nothing can run:\n{}", self.core.dump())),
        }
    }

    fn plan_and_commit(&mut self) -> Result<(Spent, Option<u64>), String> {
        self.now += STEP_US;
        let begin = Instant::now();
        let number = self.core.step(self.now, &mut self.plan);
        let step = begin.elapsed();
        let Some(number) = number.map_err(|error| error.to_string())? else {
            return Ok((Spent { step, commit: Duration::ZERO }, None));
        };
        let view = self.core.plan_layout().view(&self.plan);
        let loads: Vec<_> = view.page_ins().map(|load| load.adapter).collect();
        self.sampled.clear();
        self.sampled.resize(view.samples(), TOKEN);
        if self.state == State::Churn && self.steps > 0 {
            // each row's turn comes once in as many steps as there are rows: before its length is reached
            let ending = self.steps as usize % self.sampled.len().max(1);
            self.sampled[ending] = STOP;
        }
        let begin = Instant::now();
        let committed = self.core.commit(self.now, number, &self.sampled);
        let commit = begin.elapsed();
        committed.map_err(|error| error.to_string())?;
        for adapter in loads {
            self.core.page_in_done(self.now, adapter).map_err(|error| error.to_string())?;
        }
        self.core.drain_events(&mut self.events);
        let ended = self.events.iter().filter(|event| matches!(event, Event::Finished { .. })).count();
        self.events.clear();
        for _ in 0..ended {
            self.add(self.next_id as u32 % RESIDENT, PROMPT, MAX_TOKENS)?;
        }
        Ok((Spent { step, commit }, Some(number)))
    }

    /// Admissions and preemptions since the state was made: none, but for [`State::Churn`], if it held.
    pub fn moved(&self) -> u64 {
        let (now, then) = (self.core.stats().counters, self.filled.counters);
        now.admissions - then.admissions + now.preemptions - then.preemptions
    }
}

fn config(state: State, waiting: u32) -> Config {
    let sequence = PROMPT + 16 + if state == State::Churn { MAX_TOKENS } else { 2 * WINDOW };
    // what the rows hold when the window ends, and a few steps more
    let kv_tokens = PROMPT + 16 + if state == State::Churn { MAX_TOKENS } else { WINDOW + WINDOW / 8 };
    let rows_max = match state {
        State::Slots | State::Pages => 2 * ROWS,
        State::Rows | State::Churn => ROWS,
    };
    let slots_max = if state == State::Pages { ADAPTERS } else { RESIDENT };
    Config {
        pages: RESIDENT * ADAPTER_PAGES + ROWS * kv_tokens.div_ceil(PAGE_TOKENS),
        page_tokens: PAGE_TOKENS,
        rows_max,
        tokens_max: 8192,
        prefill_chunk_max: 2048,
        slots_max,
        adapters_step_max: slots_max,
        page_ins_max: RESIDENT,
        adapters_max: ADAPTERS,
        waiting_max: ROWS + waiting + 1,
        sequence_tokens_max: sequence,
        ..Config::default()
    }
}
