//! The simulator for Python: `scenario`, `simulate`, `ScenarioError`, `PromiseBroken`.

pub mod errors;
mod look;
mod report;

use std::cell::Cell;
use std::sync::Once;

use lorad_sched::{Counters, Stats};
use lorad_sim::load::Arrivals;
use lorad_sim::presets::PRESETS;
use lorad_sim::shrink::{shrink, Shrunk};
use lorad_sim::trace::Action;
use lorad_sim::{chaos, watched, Report, Scenario, SimError, Trace};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use self::errors::{promise_broken, promise_broken_type, scenario_error, scenario_error_type};
use self::look::{Counted, Look};
use self::report::report_dict;

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_function(wrap_pyfunction!(scenario, module)?)?;
    module.add_function(wrap_pyfunction!(random_scenario, module)?)?;
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add("ScenarioError", scenario_error_type(py)?)?;
    module.add("PromiseBroken", promise_broken_type(py)?)?;
    let presets = PyDict::new(py);
    for (name, text) in PRESETS {
        presets.set_item(name, text)?;
    }
    module.add("SCENARIOS", presets)?;
    module.add("COUNTERS", Counters::default().named().map(|(name, _)| name).to_vec())
}

fn parse(py: Python<'_>, text: &str) -> PyResult<Scenario> {
    let read = || {
        let scenario = Scenario::parse(text)?;
        scenario.check()?;
        Ok(scenario)
    };
    read().map_err(|error| scenario_error(py, &error))
}

/// All that a scenario says, as text by key, and what follows from it: `adapter_pages`, `page_bytes`, `gap_us` between
/// two requests on average, None when all come at once.
#[pyfunction]
fn scenario<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyDict>> {
    let scenario = parse(py, text)?;
    let (dict, values) = (PyDict::new(py), PyDict::new(py));
    for pair in scenario.to_string().split_whitespace() {
        if let Some((key, value)) = pair.split_once('=') {
            values.set_item(key, value)?;
        }
    }
    dict.set_item("values", values)?;
    let pages = scenario.adapter_pages().map_err(|error| scenario_error(py, &error))?;
    dict.set_item("adapter_pages", pages)?;
    dict.set_item("page_bytes", scenario.page_bytes())?;
    let gap_us = match scenario.load.arrivals {
        Arrivals::AtOnce => None,
        Arrivals::Poisson { .. } | Arrivals::Bursts { .. } => {
            Some(scenario.load.span_us() as f64 / scenario.load.requests.max(1) as f64)
        }
    };
    dict.set_item("gap_us", gap_us)?;
    Ok(dict)
}

/// The text of a random world in which everything collides.
#[pyfunction]
fn random_scenario(seed: u64, steps: u64) -> String {
    chaos::scenario(seed, steps).to_string()
}

/// Runs that a shrink may take.
const SHRINK_RUNS_MAX: u64 = 3000;

/// Runs a scenario, or a trace on its core and machine. `watch` is a counter and the number at which it ends the run as
/// broken. `on_progress(stage, done, total)` is called now and then; what it raises ends the run, and so does a signal.
#[pyfunction]
#[pyo3(signature = (text, *, trace = None, watch = None, on_progress = None))]
fn simulate<'py>(
    py: Python<'py>,
    text: &str,
    trace: Option<&str>,
    watch: Option<(String, u64)>,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let scenario = parse(py, text)?;
    if let Some((name, _)) = &watch {
        if !Counters::default().named().iter().any(|(known, _)| known == name) {
            return Err(PyValueError::new_err(format!("watch: there is no counter named {name}")));
        }
    }
    let ended = py.detach(|| quietly(|| run(&scenario, trace, watch, on_progress)));
    match ended {
        Ended::Reported(report) => report_dict(py, &report),
        Ended::Broken(shrunk) => Err(promise_broken(py, &shrunk)),
        Ended::Refused(error) => Err(scenario_error(py, &error)),
        Ended::Stopped(error) => Err(error),
    }
}

/// How a run ended.
enum Ended {
    Reported(Box<Report>),
    Broken(Box<Shrunk>),
    Refused(SimError),
    /// By a signal, or by what `on_progress` raised.
    Stopped(PyErr),
}

fn run(
    scenario: &Scenario,
    trace: Option<&str>,
    watch: Option<(String, u64)>,
    on_progress: Option<Py<PyAny>>,
) -> Ended {
    let trace = match trace.map_or_else(|| scenario.trace(), Trace::parse) {
        Ok(trace) => trace,
        Err(error) => return Ended::Refused(error),
    };
    let requests = trace.inputs().iter().filter(|input| matches!(input.action, Action::Add(_))).count();
    let (counted, total) = match scenario.host.steps_max {
        0 => (Counted::Requests, requests as u64),
        steps => (Counted::Steps, steps),
    };
    let look = Look::new(on_progress, counted, total);
    let watch = |stats: &Stats| {
        if look.ends(&stats.counters) {
            return Some("stopped".to_string());
        }
        let (name, most) = watch.as_ref()?;
        let reached = |(known, number): &(&str, u64)| known == name && number >= most;
        stats.counters.named().iter().any(reached).then(|| format!("{name} reached {most}"))
    };
    let ended = match watched(scenario, &trace, Some(&watch)) {
        Ok(report) => Ended::Reported(Box::new(report)),
        Err(SimError::Failed(_)) if !look.is_stopped() => {
            look.shrinking();
            let (config, host) = (&scenario.config, &scenario.host);
            match shrink(&trace, config, scenario.seed, host, Some(&watch), SHRINK_RUNS_MAX) {
                Ok(shrunk) => Ended::Broken(Box::new(shrunk)),
                Err(error) => Ended::Refused(error),
            }
        }
        Err(error) => Ended::Refused(error),
    };
    look.into_stopped().map_or(ended, Ended::Stopped)
}

thread_local! {
    /// Panics on this thread are caught, named and shrunk: a few thousand copies of their message help nobody.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without messages of panics on this thread; other threads keep theirs.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                usual(panic);
            }
        }));
    });
    QUIET.set(true);
    let done = work();
    QUIET.set(false);
    done
}
