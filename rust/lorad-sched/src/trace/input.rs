//! The inputs of a core: a line each. What a line holds is said here and nowhere else.

use std::borrow::Cow;

use super::error::{short, Mistake};
use super::fields::{Fields, Reader, Writer};
use crate::{AdapterId, AdapterSpec, Priority, RequestId, RequestSpec, SampledToken, TenantId, TenantSpec};

/// A call of the core that can change it, with all its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are the calls, the fields their arguments
pub enum Input {
    Register {
        spec: AdapterSpec,
    },
    SetTenant {
        tenant: TenantId,
        spec: TenantSpec,
    },
    Pin {
        now: u64,
        adapter: AdapterId,
        pinned: bool,
    },
    Prewarm {
        now: u64,
        adapter: AdapterId,
    },
    Unregister {
        now: u64,
        adapter: AdapterId,
    },
    Add {
        now: u64,
        spec: RequestSpec,
    },
    Abort {
        now: u64,
        request: RequestId,
    },
    Step {
        now: u64,
        /// Length of the plan's buffer where it isn't the layout's: such a step is refused.
        buffer: Option<u32>,
    },
    Commit {
        now: u64,
        plan: u64,
        sampled: Vec<SampledToken>,
    },
    CommitFailed {
        now: u64,
        plan: u64,
    },
    PageInDone {
        now: u64,
        adapter: AdapterId,
    },
    PageInFailed {
        now: u64,
        adapter: AdapterId,
    },
    PageInDropped {
        now: u64,
        adapter: AdapterId,
    },
    PageInReached {
        now: u64,
        adapter: AdapterId,
        layers: u32,
    },
    Arrived {
        now: u64,
        adapter: AdapterId,
    },
    FetchFailed {
        now: u64,
        adapter: AdapterId,
    },
}

impl Input {
    /// The line's name: the call's.
    pub fn name(&self) -> &'static str {
        match self {
            Input::Register { .. } => "register",
            Input::SetTenant { .. } => "set_tenant",
            Input::Pin { .. } => "pin",
            Input::Prewarm { .. } => "prewarm",
            Input::Unregister { .. } => "unregister",
            Input::Add { .. } => "add",
            Input::Abort { .. } => "abort",
            Input::Step { .. } => "step",
            Input::Commit { .. } => "commit",
            Input::CommitFailed { .. } => "commit_failed",
            Input::PageInDone { .. } => "page_in_done",
            Input::PageInFailed { .. } => "page_in_failed",
            Input::PageInDropped { .. } => "page_in_dropped",
            Input::PageInReached { .. } => "page_in_reached",
            Input::Arrived { .. } => "arrived",
            Input::FetchFailed { .. } => "fetch_failed",
        }
    }

    /// The time that the call gave; the calls that set something up have none.
    pub fn now(&self) -> Option<u64> {
        match *self {
            Input::Register { .. } | Input::SetTenant { .. } => None,
            Input::Pin { now, .. }
            | Input::Prewarm { now, .. }
            | Input::Unregister { now, .. }
            | Input::Add { now, .. }
            | Input::Abort { now, .. }
            | Input::Step { now, .. }
            | Input::Commit { now, .. }
            | Input::CommitFailed { now, .. }
            | Input::PageInDone { now, .. }
            | Input::PageInFailed { now, .. }
            | Input::PageInDropped { now, .. }
            | Input::PageInReached { now, .. }
            | Input::Arrived { now, .. }
            | Input::FetchFailed { now, .. } => Some(now),
        }
    }

    /// The input of this name, its fields still to be read.
    fn blank(name: &str) -> Option<Self> {
        let (now, plan, request, adapter) = (0, 0, 0, AdapterId::from_number(0));
        Some(match name {
            "register" => Input::Register { spec: AdapterSpec::default() },
            "set_tenant" => Input::SetTenant { tenant: 0, spec: TenantSpec::default() },
            "pin" => Input::Pin { now, adapter, pinned: false },
            "prewarm" => Input::Prewarm { now, adapter },
            "unregister" => Input::Unregister { now, adapter },
            "add" => Input::Add { now, spec: RequestSpec::default() },
            "abort" => Input::Abort { now, request },
            "step" => Input::Step { now, buffer: None },
            "commit" => Input::Commit { now, plan, sampled: Vec::new() },
            "commit_failed" => Input::CommitFailed { now, plan },
            "page_in_done" => Input::PageInDone { now, adapter },
            "page_in_failed" => Input::PageInFailed { now, adapter },
            "page_in_dropped" => Input::PageInDropped { now, adapter },
            "page_in_reached" => Input::PageInReached { now, adapter, layers: 0 },
            "arrived" => Input::Arrived { now, adapter },
            "fetch_failed" => Input::FetchFailed { now, adapter },
            _ => return None,
        })
    }

    fn fields(&mut self, fields: &mut impl Fields) {
        match self {
            Input::Register { spec } => register(fields, spec),
            Input::SetTenant { tenant, spec } => set_tenant(fields, tenant, spec),
            Input::Pin { now, adapter, pinned } => pin(fields, now, adapter, pinned),
            Input::Add { now, spec } => add(fields, now, spec),
            Input::Step { now, buffer } => step(fields, now, buffer),
            Input::Commit { now, plan, sampled } => {
                let mut tokens = Cow::Owned(std::mem::take(sampled));
                commit(fields, now, plan, &mut tokens);
                *sampled = tokens.into_owned();
            }
            Input::CommitFailed { now, plan } => about_plan(fields, now, plan),
            Input::Abort { now, request } => about_request(fields, now, request),
            Input::PageInReached { now, adapter, layers } => page_in_reached(fields, now, adapter, layers),
            Input::Prewarm { now, adapter }
            | Input::Unregister { now, adapter }
            | Input::PageInDone { now, adapter }
            | Input::PageInFailed { now, adapter }
            | Input::PageInDropped { now, adapter }
            | Input::Arrived { now, adapter }
            | Input::FetchFailed { now, adapter } => about_adapter(fields, now, adapter),
        }
    }

    /// From a line without its end.
    pub(crate) fn read(line: &str) -> Result<Self, Mistake> {
        let (name, rest) = split(line);
        let mut input = Self::blank(name).ok_or_else(|| Mistake::UnknownLine { name: short(name) })?;
        let mut reader = Reader::new(rest);
        input.fields(&mut reader);
        reader.end()?;
        Ok(input)
    }

    /// As a line.
    pub(crate) fn write(mut self, text: &mut String) {
        text.push_str(self.name());
        self.fields(&mut Writer(text));
        text.push('\n');
    }
}

/// A line's name, and the rest of it.
pub(crate) fn split(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}

pub(crate) fn register(fields: &mut impl Fields, spec: &mut AdapterSpec) {
    // taken apart so that a new field of the struct doesn't compile before it's recorded
    let AdapterSpec { tag, pages, layers, tenant, weight, remote } = spec;
    fields.field("tag", tag);
    fields.field("pages", pages);
    fields.field("layers", layers);
    fields.unless("tenant", tenant, 0);
    fields.unless("weight", weight, 100);
    fields.unless("remote", remote, false);
}

pub(crate) fn set_tenant(fields: &mut impl Fields, tenant: &mut TenantId, spec: &mut TenantSpec) {
    let TenantSpec { weight, pages_max, adapters_max, running_max, waiting_max } = spec;
    fields.field("tenant", tenant);
    fields.field("weight", weight);
    fields.unless("pages_max", pages_max, u32::MAX);
    fields.unless("adapters_max", adapters_max, u32::MAX);
    fields.unless("running_max", running_max, u32::MAX);
    fields.unless("waiting_max", waiting_max, u32::MAX);
}

pub(crate) fn pin(fields: &mut impl Fields, now: &mut u64, adapter: &mut AdapterId, pinned: &mut bool) {
    about_adapter(fields, now, adapter);
    fields.field("pinned", pinned);
}

pub(crate) fn page_in_reached(
    fields: &mut impl Fields,
    now: &mut u64,
    adapter: &mut AdapterId,
    layers: &mut u32,
) {
    about_adapter(fields, now, adapter);
    fields.field("layers", layers);
}

pub(crate) fn add(fields: &mut impl Fields, now: &mut u64, spec: &mut RequestSpec) {
    let RequestSpec {
        id,
        tenant,
        adapter,
        prompt,
        max_tokens,
        stop_tokens,
        priority,
        deadline,
        after,
        fresh,
    } = spec;
    fields.field("now", now);
    fields.field("id", id);
    fields.field("tenant", tenant);
    fields.field("adapter", adapter);
    fields.field("prompt", prompt);
    fields.field("max_tokens", max_tokens);
    fields.field("stop_tokens", stop_tokens);
    fields.unless("priority", priority, Priority::Normal);
    fields.unless("deadline", deadline, None);
    fields.unless("after", after, None);
    fields.unless("fresh", fresh, false);
}

pub(crate) fn step(fields: &mut impl Fields, now: &mut u64, buffer: &mut Option<u32>) {
    fields.field("now", now);
    fields.unless("buffer", buffer, None);
}

pub(crate) fn commit(
    fields: &mut impl Fields,
    now: &mut u64,
    plan: &mut u64,
    sampled: &mut Cow<'_, [SampledToken]>,
) {
    fields.field("now", now);
    fields.field("plan", plan);
    fields.field("sampled", sampled);
}

pub(crate) fn about_plan(fields: &mut impl Fields, now: &mut u64, plan: &mut u64) {
    fields.field("now", now);
    fields.field("plan", plan);
}

pub(crate) fn about_request(fields: &mut impl Fields, now: &mut u64, request: &mut RequestId) {
    fields.field("now", now);
    fields.field("request", request);
}

pub(crate) fn about_adapter(fields: &mut impl Fields, now: &mut u64, adapter: &mut AdapterId) {
    fields.field("now", now);
    fields.field("adapter", adapter);
}
