//! Traces: every input of a core as text, and the same core again from it.
//!
//! ```text
//! lorad-trace 1
//! core pages=64 pages_reserved=0 …                                  the limits
//! # a remark of the host
//! register tag=7 pages=4 layers=2
//! add now=0 id=1 tenant=0 adapter=1 prompt=3,1,4 max_tokens=2 stop_tokens=
//! step now=1000
//! saw plan=1 digest=51b0c0b4a0f9d2e7                                 what the step made, for comparing
//! commit now=1400 plan=1 sampled=42
//! ```
//!
//! One line per call, written before the call, so that the last line of a crashed process is the call that ended it.
//! The core has no clock and no randomness: the same lines give the same plans, events and dump. A [`Recorder`] stands
//! where the core stood and writes the lines, a [`Replay`] reads them, [`redact`] takes the text out and leaves what
//! the scheduler looks at.
//!
//! A line is a name and `field=value` pairs. Lists have commas, an empty list is empty text, no adapter is `base`.
//! `end` is the last line of a log that reached its limit. The fields of each line stand in `trace/input.rs` and
//! `trace/limits.rs` once, for writing and for reading; what is as usual may be left out.

mod apply;
mod error;
mod fields;
mod input;
mod limits;
mod permute;
mod record;
mod redact;
mod replay;
mod saw;
mod value;

pub use apply::{Outcome, Rejected};
pub use error::{Mistake, TraceError};
pub use input::Input;
pub use permute::Key;
pub use record::{Log, Recorder, Sink};
pub use redact::redact;
pub use replay::{Played, Replay};
pub use saw::Saw;

/// The first line of every trace.
pub(crate) const HEADER: &str = "lorad-trace 1";
/// The last line of a log that reached its limit.
pub(crate) const END: &str = "end";
/// The line with the limits.
pub(crate) const CORE: &str = "core";
