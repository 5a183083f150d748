//! An input given to a core, and what the core answered.

use std::fmt;

use super::input::Input;
use crate::{AdapterId, CommitError, Core, PageInError, Refusal, StepError};

/// What a call answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; there is nothing to say.
    Done,
    /// An adapter was registered.
    Registered {
        /// Its id.
        adapter: AdapterId,
    },
    /// A plan was made.
    Planned {
        /// Its number.
        plan: u64,
    },
    /// Nothing can run now.
    Idle,
    /// The call was refused.
    Rejected {
        /// Why.
        why: Rejected,
    },
}

/// Why a call was refused, whichever it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A registration, a request, or what is set about a tenant or an adapter.
    Call(Refusal),
    /// A step.
    Step(StepError),
    /// A commit.
    Commit(CommitError),
    /// The report of a page-in.
    PageIn(PageInError),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::Call(why) => why.fmt(f),
            Rejected::Step(why) => why.fmt(f),
            Rejected::Commit(why) => why.fmt(f),
            Rejected::PageIn(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => write!(f, "done"),
            Outcome::Registered { adapter } => write!(f, "adapter {adapter}"),
            Outcome::Planned { plan } => write!(f, "plan {plan}"),
            Outcome::Idle => write!(f, "nothing can run"),
            Outcome::Rejected { why } => write!(f, "refused: {why}"),
        }
    }
}

fn done<E>(result: Result<(), E>, rejected: impl FnOnce(E) -> Rejected) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(why) => Outcome::Rejected { why: rejected(why) },
    }
}

/// Makes the call. `plan` has the length of the core's layout.
pub(crate) fn apply(core: &mut Core, plan: &mut [i32], input: &Input) -> Outcome {
    match *input {
        Input::Register { spec } => match core.register(spec) {
            Ok(adapter) => Outcome::Registered { adapter },
            Err(why) => Outcome::Rejected { why: Rejected::Call(why) },
        },
        Input::SetTenant { tenant, spec } => done(core.set_tenant(tenant, spec), Rejected::Call),
        Input::Pin { now, adapter, pinned } => done(core.pin(now, adapter, pinned), Rejected::Call),
        Input::Prewarm { now, adapter } => done(core.prewarm(now, adapter), Rejected::Call),
        Input::Unregister { now, adapter } => {
            core.unregister(now, adapter);
            Outcome::Done
        }
        Input::Add { now, ref spec } => done(core.add(now, spec.clone()), Rejected::Call),
        Input::Abort { now, request } => {
            core.abort(now, request);
            Outcome::Done
        }
        Input::Step { now, buffer } => match step(core, plan, now, buffer) {
            Ok(Some(plan)) => Outcome::Planned { plan },
            Ok(None) => Outcome::Idle,
            Err(why) => Outcome::Rejected { why: Rejected::Step(why) },
        },
        Input::Commit { now, plan, ref sampled } => done(core.commit(now, plan, sampled), Rejected::Commit),
        Input::CommitFailed { now, plan } => done(core.commit_failed(now, plan), Rejected::Commit),
        Input::PageInDone { now, adapter } => done(core.page_in_done(now, adapter), Rejected::PageIn),
        Input::PageInFailed { now, adapter } => done(core.page_in_failed(now, adapter), Rejected::PageIn),
        Input::PageInDropped { now, adapter } => done(core.page_in_dropped(now, adapter), Rejected::PageIn),
        Input::PageInReached { now, adapter, layers } => {
            done(core.page_in_reached(now, adapter, layers), Rejected::PageIn)
        }
        Input::Arrived { now, adapter } => done(core.arrived(now, adapter), Rejected::PageIn),
        Input::FetchFailed { now, adapter } => done(core.fetch_failed(now, adapter), Rejected::PageIn),
    }
}

/// A step into a buffer of a wrong length is made with none at all: the core refuses both before it looks into them.
fn step(core: &mut Core, plan: &mut [i32], now: u64, buffer: Option<u32>) -> Result<Option<u64>, StepError> {
    let Some(given) = buffer else { return core.step(now, plan) };
    core.step(now, &mut []).map_err(|why| match why {
        StepError::BufferLength { needed, .. } => StepError::BufferLength { needed, given: given.into() },
        StepError::PlanInFlight { .. } => why,
    })
}
