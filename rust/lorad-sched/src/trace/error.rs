//! What can be wrong with a trace.

use std::fmt;

use super::saw::Saw;
use crate::ConfigError;

/// A line that can't be taken. The replay stands before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub mistake: Mistake,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The first line isn't that of a trace.
    NotATrace,
    /// A trace of another version.
    Version {
        /// The version found.
        found: String,
    },
    /// The second line must give the limits.
    NoCore,
    /// The limits can't be used.
    Config {
        /// Which and why.
        error: ConfigError,
    },
    /// No line begins with this name here.
    UnknownLine {
        /// The name found.
        name: String,
    },
    /// A word that isn't `field=value`.
    NotAField {
        /// The word found.
        word: String,
    },
    /// The line has no such field, or has it twice.
    UnknownField {
        /// The field found.
        field: String,
    },
    /// A field is missing.
    MissingField {
        /// Its name.
        field: &'static str,
    },
    /// A value that doesn't fit its field.
    BadValue {
        /// Name of the field.
        field: &'static str,
        /// The value found.
        value: String,
    },
    /// The last line has no end: its writer was stopped in the middle of it.
    Cut,
    /// A line after the log's end.
    AfterEnd,
    /// The core made something else than the one that was recorded.
    Diverged {
        /// What was recorded.
        recorded: Saw,
        /// What was made now.
        made: Saw,
    },
}

impl Mistake {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Mistake::NotATrace => "not_a_trace",
            Mistake::Version { .. } => "version",
            Mistake::NoCore => "no_core",
            Mistake::Config { .. } => "config",
            Mistake::UnknownLine { .. } => "unknown_line",
            Mistake::NotAField { .. } => "not_a_field",
            Mistake::UnknownField { .. } => "unknown_field",
            Mistake::MissingField { .. } => "missing_field",
            Mistake::BadValue { .. } => "bad_value",
            Mistake::Cut => "cut",
            Mistake::AfterEnd => "after_end",
            Mistake::Diverged { .. } => "diverged",
        }
    }
}

/// The beginning of a text that may be of any length.
pub(crate) fn short(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mistake::NotATrace => write!(f, "not a trace: the first line must be {:?}", super::HEADER),
            Mistake::Version { found } => {
                write!(f, "a trace of version {found:?}, this is {:?}", super::HEADER)
            }
            Mistake::NoCore => write!(f, "the second line must give the core's limits"),
            Mistake::Config { error } => write!(f, "{error}"),
            Mistake::UnknownLine { name } => write!(f, "no line is called {name:?} here"),
            Mistake::NotAField { word } => write!(f, "{word:?} isn't field=value"),
            Mistake::UnknownField { field } => write!(f, "unknown field, or twice: {field:?}"),
            Mistake::MissingField { field } => write!(f, "the field {field} is missing"),
            Mistake::BadValue { field, value } => write!(f, "{field}: {value:?} isn't a value that fits"),
            Mistake::Cut => write!(f, "the line has no end, its writer was stopped"),
            Mistake::AfterEnd => write!(f, "a line after the end"),
            Mistake::Diverged { recorded, made } => {
                write!(f, "the core made {made}, recorded was {recorded}")
            }
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.mistake)
    }
}

impl std::error::Error for TraceError {}
