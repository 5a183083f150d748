//! The embeddable scheduler of lorad: many LoRA adapters on one base model.
//!
//! [`Core`] is a value that the host steps. It has no thread, clock, file or channel inside: time and all that happened
//! come in as arguments, one numbered plan goes out, its result comes back.
//!
//! ```
//! use lorad_sched::{AdapterSpec, Config, Core, Event, RequestSpec};
//!
//! let mut core = Core::new(Config { pages: 64, ..Config::default() })?;
//! let adapter = core.register(AdapterSpec { tag: 7, pages: 4, ..AdapterSpec::default() })?;
//! core.add(0, RequestSpec { id: 1, adapter: Some(adapter), prompt: vec![3, 1, 4], max_tokens: 2, ..RequestSpec::default() })?;
//!
//! let mut plan = vec![0; core.plan_layout().length()];
//! let mut events = Vec::new();
//! let mut now = 0;
//! while core.has_work() {
//!     now += 1000;
//!     let Some(number) = core.step(now, &mut plan)? else { break };
//!     let view = core.plan_layout().view(&plan);
//!     let sampled = vec![42; view.samples()]; // what the model would answer
//!     let loads: Vec<_> = view.page_ins().map(|page_in| page_in.adapter).collect();
//!     core.commit(now, number, &sampled)?;
//!     for adapter in loads {
//!         core.page_in_done(now, adapter)?; // when its bytes have arrived
//!     }
//!     core.drain_events(&mut events);
//! }
//! assert_eq!(events.iter().filter(|event| matches!(event, Event::Token { token: 42, .. })).count(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Rules that hold at all times
//!
//! - Pages: free + sequence + cached + adapter + reserved = total; table and owner name each other ([`Core::check`]).
//! - Every request that was accepted ends with exactly one [`Event::Finished`], its tokens in order before it.
//! - A refused call changes nothing and says its numbers.
//! - One plan may be in flight, or two ([`Config::plans_max`]). What a plan uses stays where it is until [`Core::commit`].
//! - The same calls give the same plans, events and dump.
#![forbid(unsafe_code)]

mod adapter;
mod admit;
mod bound;
mod check;
mod commit;
mod config;
mod core;
mod costs;
mod dump;
mod ending;
mod error;
mod event;
mod explain;
mod flight;
mod group;
mod heap;
mod intake;
mod line;
mod list;
mod marks;
mod memory;
mod order;
pub mod plan;
mod policy;
mod registry;
mod request;
mod reuse;
mod ring;
pub mod script;
mod share;
pub mod snapshot;
mod stats;
mod step;
mod tenant;
pub mod trace;
mod transfer;
mod urgent;
mod write;

pub use crate::adapter::{AdapterId, AdapterSpec};
pub use crate::config::{Config, ConfigError};
pub use crate::core::Core;
pub use crate::costs::{Costs, PlanRow};
pub use crate::error::{CommitError, PageInError, Refusal, StepError};
pub use crate::event::{Event, FailReason, FinishReason};
pub use crate::explain::Explanation;
pub use crate::plan::PENDING;
pub use crate::policy::{Eviction, Order, Policy, Split};
pub use crate::request::{Priority, RequestId, RequestSpec, SampledToken, SAMPLE_FAILED};
pub use crate::ring::{Happened, Ring};
pub use crate::stats::{AdapterStats, Counters, Stats, TenantStats};
pub use crate::tenant::{TenantId, TenantSpec, WEIGHT_MAX};

/// The README's loop is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
