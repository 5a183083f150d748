//! What can go wrong: a scenario that makes no sense, or a core that breaks a promise.

use std::fmt;

use lorad_blocks::layout::LayoutError;
use lorad_fleet::FleetError;
use lorad_sched::ConfigError;

/// Why there is no report.
#[derive(Clone, Debug, PartialEq)]
pub enum SimError {
    /// The core refuses its limits.
    Config(ConfigError),
    /// An adapter of these ranks can't be laid out in pages.
    Layout(LayoutError),
    /// A line of a scenario or trace can't be read.
    Text {
        /// Line, from 1.
        line: u32,
        /// What is wrong with it.
        what: String,
    },
    /// A scenario's key that doesn't exist.
    Unknown {
        /// Line, from 1.
        line: u32,
        /// The key.
        field: String,
    },
    /// A value that a scenario's key can't have.
    Value {
        /// Line, from 1.
        line: u32,
        /// The key.
        field: String,
        /// The value given.
        value: String,
        /// What its values are.
        wants: String,
    },
    /// A scenario that is too large to be run.
    TooLarge {
        /// The key, or what is derived from several.
        field: &'static str,
        /// The largest value that is taken.
        limit: u64,
        /// The value given.
        value: u64,
    },
    /// The router refuses a call.
    Fleet(FleetError),
    /// A promise was broken while the scenario ran.
    Failed(Box<Failure>),
    /// There is nothing to shrink: the trace runs through.
    NoFailure,
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimError::Config(error) => write!(f, "{error}"),
            SimError::Layout(error) => write!(f, "{error}"),
            SimError::Text { line, what } => write!(f, "line {line}: {what}"),
            SimError::Unknown { line, field } => write!(f, "line {line}: unknown key {field}"),
            SimError::Value { line, field, value, wants } => {
                write!(f, "line {line}: {field}={value}: {wants}")
            }
            SimError::TooLarge { field, limit, value } => write!(f, "{field} = {value}: at most {limit}"),
            SimError::Fleet(error) => write!(f, "{error}"),
            SimError::Failed(failure) => write!(f, "{failure}"),
            SimError::NoFailure => write!(f, "the trace runs through"),
        }
    }
}

impl std::error::Error for SimError {}

impl From<ConfigError> for SimError {
    fn from(error: ConfigError) -> Self {
        SimError::Config(error)
    }
}

impl From<FleetError> for SimError {
    fn from(error: FleetError) -> Self {
        SimError::Fleet(error)
    }
}

impl From<Failure> for SimError {
    fn from(failure: Failure) -> Self {
        SimError::Failed(Box::new(failure))
    }
}

impl From<LayoutError> for SimError {
    fn from(error: LayoutError) -> Self {
        SimError::Layout(error)
    }
}

/// Which promise was broken. A shrunk trace breaks the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The core's own check found a fault.
    Check,
    /// A plan would have computed something wrong.
    Plan,
    /// An event that mustn't come, or one that didn't.
    Event,
    /// The core refused a call that it has to take.
    Call,
    /// Requests live and nothing will ever happen, or their steps don't end.
    Stuck,
    /// Pages, slots or counters didn't come back to where they were.
    Left,
    /// The run's own watch said so.
    Watch,
    /// The core panicked.
    Panic,
}

impl Kind {
    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Check => "check",
            Kind::Plan => "plan",
            Kind::Event => "event",
            Kind::Call => "call",
            Kind::Stuck => "stuck",
            Kind::Left => "left",
            Kind::Watch => "watch",
            Kind::Panic => "panic",
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub kind: Kind,
    /// Steps made before.
    pub step: u64,
    /// Virtual time, in microseconds.
    pub at_us: u64,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at step {}, {} µs: {}", self.kind.name(), self.step, self.at_us, self.what)
    }
}
