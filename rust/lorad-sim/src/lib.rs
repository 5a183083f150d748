//! lorad's scheduler on a virtual clock.
//!
//! A [`Scenario`] says who asks for what, what goes wrong, and how large and fast the machine is. [`simulate`] runs the
//! real [`lorad_sched::Core`] through it, one plan after the other, and gives a [`Report`]. Beside the core stand a naive
//! worker, which knows what each page holds, and a book of what each request was told: a plan or an event that
//! contradicts them ends the run with a [`Failure`], and [`shrink::shrink`] makes the shortest script that leads to it.
//!
//! ```
//! let scenario = lorad_sim::Scenario::parse("requests=8 adapters=2 prompt=fixed:20 answer=fixed:5")?;
//! let report = lorad_sim::simulate(&scenario)?;
//! assert_eq!((report.all.finished, report.all.tokens), (8, 40));
//! # Ok::<(), lorad_sim::SimError>(())
//! ```
//!
//! # Rules
//!
//! - The same scenario gives the same plans, events, report and dump on every platform: all that is drawn and all times
//!   are whole numbers.
//! - Virtual time is in microseconds. A step takes what [`lorad_sched::Costs`] says of its plan; page-ins take their time
//!   beside it, one after the other.
//! - Only `world` calls the core.
#![forbid(unsafe_code)]

pub mod book;
pub mod chaos;
mod check;
pub mod clock;
mod error;
pub mod faults;
pub mod fleet;
pub mod load;
mod measure;
pub mod model;
pub mod popularity;
pub mod presets;
pub mod random;
mod record;
pub mod report;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod step;
pub mod sums;
mod text;
pub mod trace;
mod worker;
mod world;

pub use crate::error::{Failure, Kind, SimError};
pub use crate::report::Report;
pub use crate::run::{run, Outcome};
pub use crate::scenario::Scenario;
pub use crate::trace::Trace;

/// Runs a scenario. Fails with [`SimError::Failed`] when a promise is broken, else when the scenario makes no sense.
pub fn simulate(scenario: &Scenario) -> Result<Report, SimError> {
    replay(scenario, &scenario.trace()?)
}

/// Runs a trace, perhaps a recorded one, on the core and machine of a scenario. Fails as [`simulate`].
pub fn replay(scenario: &Scenario, trace: &Trace) -> Result<Report, SimError> {
    watched(scenario, trace, None)
}

/// As [`replay`]; `watch` looks on after each step and may end the run.
pub fn watched(
    scenario: &Scenario,
    trace: &Trace,
    watch: Option<&run::Watch<'_>>,
) -> Result<Report, SimError> {
    scenario.check()?;
    let outcome = run(trace, &scenario.config, scenario.seed, &scenario.host, false, watch)?;
    match outcome.failure {
        Some(failure) => Err(SimError::Failed(Box::new(failure))),
        None => Ok(measure::report(&scenario.name, &outcome, scenario.page_bytes())),
    }
}

/// Runs scenarios one after the other. [`report::table`] prints them beside each other. Fails with the first that does.
pub fn compare(scenarios: &[Scenario]) -> Result<Vec<Report>, SimError> {
    scenarios.iter().map(simulate).collect()
}
