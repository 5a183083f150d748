//! The inputs of a core: a line each. What a line holds is said here and nowhere else.

use std::borrow::Cow;

use super::error::{short, Mistake};
use super::fields::{Fields, Reader, Writer};
use crate::{AdapterId, AdapterSpec, Config, Costs, Policy, RequestId, RequestSpec, SampledToken};

/// A call of the core that can change it, with all its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are the calls, the fields their arguments
pub enum Input {
    Register {
        spec: AdapterSpec,
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
}

impl Input {
    /// The line's name: the call's.
    pub fn name(&self) -> &'static str {
        match self {
            Input::Register { .. } => "register",
            Input::Unregister { .. } => "unregister",
            Input::Add { .. } => "add",
            Input::Abort { .. } => "abort",
            Input::Step { .. } => "step",
            Input::Commit { .. } => "commit",
            Input::CommitFailed { .. } => "commit_failed",
            Input::PageInDone { .. } => "page_in_done",
            Input::PageInFailed { .. } => "page_in_failed",
        }
    }

    /// The time that the call gave; registering has none.
    pub fn now(&self) -> Option<u64> {
        match *self {
            Input::Register { .. } => None,
            Input::Unregister { now, .. }
            | Input::Add { now, .. }
            | Input::Abort { now, .. }
            | Input::Step { now, .. }
            | Input::Commit { now, .. }
            | Input::CommitFailed { now, .. }
            | Input::PageInDone { now, .. }
            | Input::PageInFailed { now, .. } => Some(now),
        }
    }

    /// The input of this name, its fields still to be read.
    fn blank(name: &str) -> Option<Self> {
        let (now, plan, request, adapter) = (0, 0, 0, AdapterId::from_number(0));
        Some(match name {
            "register" => Input::Register { spec: AdapterSpec { tag: 0, pages: 0, layers: 0 } },
            "unregister" => Input::Unregister { now, adapter },
            "add" => Input::Add { now, spec: RequestSpec::default() },
            "abort" => Input::Abort { now, request },
            "step" => Input::Step { now, buffer: None },
            "commit" => Input::Commit { now, plan, sampled: Vec::new() },
            "commit_failed" => Input::CommitFailed { now, plan },
            "page_in_done" => Input::PageInDone { now, adapter },
            "page_in_failed" => Input::PageInFailed { now, adapter },
            _ => return None,
        })
    }

    fn fields(&mut self, fields: &mut impl Fields) {
        match self {
            Input::Register { spec } => register(fields, spec),
            Input::Add { now, spec } => add(fields, now, spec),
            Input::Step { now, buffer } => step(fields, now, buffer),
            Input::Commit { now, plan, sampled } => {
                let mut tokens = Cow::Owned(std::mem::take(sampled));
                commit(fields, now, plan, &mut tokens);
                *sampled = tokens.into_owned();
            }
            Input::CommitFailed { now, plan } => about_plan(fields, now, plan),
            Input::Abort { now, request } => about_request(fields, now, request),
            Input::Unregister { now, adapter }
            | Input::PageInDone { now, adapter }
            | Input::PageInFailed { now, adapter } => about_adapter(fields, now, adapter),
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
    let AdapterSpec { tag, pages, layers } = spec;
    fields.field("tag", tag);
    fields.field("pages", pages);
    fields.field("layers", layers);
}

pub(crate) fn add(fields: &mut impl Fields, now: &mut u64, spec: &mut RequestSpec) {
    let RequestSpec { id, tenant, adapter, prompt, max_tokens, stop_tokens } = spec;
    fields.field("now", now);
    fields.field("id", id);
    fields.field("tenant", tenant);
    fields.field("adapter", adapter);
    fields.field("prompt", prompt);
    fields.field("max_tokens", max_tokens);
    fields.field("stop_tokens", stop_tokens);
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

/// The limits: the line `core`.
pub(crate) fn core(fields: &mut impl Fields, config: &mut Config) {
    let Config {
        pages,
        pages_reserved,
        page_tokens,
        rows_max,
        tokens_max,
        prefill_chunk_max,
        slots_max,
        adapters_step_max,
        page_ins_max,
        adapters_max,
        waiting_max,
        sequence_tokens_max,
        stop_tokens_max,
        vocab,
        pass_overs_max,
        costs,
        policy,
    } = config;
    fields.field("pages", pages);
    fields.field("pages_reserved", pages_reserved);
    fields.field("page_tokens", page_tokens);
    fields.field("rows_max", rows_max);
    fields.field("tokens_max", tokens_max);
    fields.field("prefill_chunk_max", prefill_chunk_max);
    fields.field("slots_max", slots_max);
    fields.field("adapters_step_max", adapters_step_max);
    fields.field("page_ins_max", page_ins_max);
    fields.field("adapters_max", adapters_max);
    fields.field("waiting_max", waiting_max);
    fields.field("sequence_tokens_max", sequence_tokens_max);
    fields.field("stop_tokens_max", stop_tokens_max);
    fields.field("vocab", vocab);
    fields.field("pass_overs_max", pass_overs_max);
    let Costs {
        step_ns,
        token_ns,
        sample_ns,
        context_ns,
        adapter_page_ns,
        adapter_token_page_ns,
        page_in_ns,
        page_in_page_ns,
    } = costs;
    fields.field("step_ns", step_ns);
    fields.field("token_ns", token_ns);
    fields.field("sample_ns", sample_ns);
    fields.field("context_ns", context_ns);
    fields.field("adapter_page_ns", adapter_page_ns);
    fields.field("adapter_token_page_ns", adapter_token_page_ns);
    fields.field("page_in_ns", page_in_ns);
    fields.field("page_in_page_ns", page_in_page_ns);
    let Policy { order, eviction, split } = policy;
    fields.field("order", order);
    fields.field("eviction", eviction);
    fields.field("split", split);
}
