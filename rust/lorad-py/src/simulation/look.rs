//! A run that goes on without the interpreter lock looks up now and then: signals, progress.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use lorad_sched::Counters;
use pyo3::prelude::*;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Steps between two looks at the clock.
const STEPS_PER_CLOCK: u32 = 16;

/// What `total` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Plans.
    Steps,
    /// Requests that have ended, refused ones too.
    Requests,
}

/// Looks at signals and calls `on_progress(stage, done, total)`. What either raises stops the run for good.
pub struct Look {
    on_progress: Option<Py<PyAny>>,
    counted: Counted,
    total: u64,
    stage: Cell<&'static str>,
    steps: Cell<u32>,
    last: Cell<Instant>,
    stopped: RefCell<Option<PyErr>>,
}

impl Look {
    /// Nothing was looked at.
    pub fn new(on_progress: Option<Py<PyAny>>, counted: Counted, total: u64) -> Self {
        Self {
            on_progress,
            counted,
            total,
            stage: Cell::new("simulating"),
            steps: Cell::new(0),
            last: Cell::new(Instant::now()),
            stopped: RefCell::new(None),
        }
    }

    /// From now on many short runs.
    pub fn shrinking(&self) {
        self.stage.set("shrinking");
    }

    /// After each step: true once the run has to end.
    pub fn ends(&self, counters: &Counters) -> bool {
        if self.is_stopped() {
            return true;
        }
        self.steps.set((self.steps.get() + 1) % STEPS_PER_CLOCK);
        if self.steps.get() > 0 || self.last.get().elapsed() < LOOK {
            return false;
        }
        self.last.set(Instant::now());
        let done = match self.counted {
            Counted::Steps => counters.plans,
            Counted::Requests => counters.finished + counters.aborted + counters.failed + counters.refused,
        };
        // many short runs have no common end
        let (done, total) =
            if self.stage.get() == "shrinking" { (0, 0) } else { (done.min(self.total), self.total) };
        let looked = Python::attach(|py| {
            py.check_signals()?;
            match &self.on_progress {
                Some(call) => call.call1(py, (self.stage.get(), done, total)).map(|_| ()),
                None => Ok(()),
            }
        });
        self.stopped.replace(looked.err());
        self.is_stopped()
    }

    /// Was it stopped?
    pub fn is_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    /// What stopped it.
    pub fn into_stopped(self) -> Option<PyErr> {
        self.stopped.into_inner()
    }
}
