//! Telling the core what happened: from outside, and on the copy channel.

use lorad_sched::{AdapterId, AdapterSpec, RequestSpec};

use super::{Adapter, Done, Named, World};
use crate::book::STOP;
use crate::error::Kind;
use crate::trace::{Action, Ask, Input};

impl World {
    /// Tells the core what happened. Requests count from when they arrived, though the core may hear of them later.
    pub fn tell(&mut self, input: &Input) -> Done {
        match input.action {
            Action::Register { adapter, pages, layers } => self.register(adapter, pages, layers),
            Action::Unregister { adapter } => {
                if let Some(&named) = self.names.get(&adapter) {
                    self.unregister(named.id);
                }
            }
            Action::Add(ask) => self.add(ask, input.at_us),
            Action::Abort { id } => {
                self.record(|| format!("abort {id}"));
                self.book.abort(id);
                self.core.abort(self.clock.now_us(), id);
            }
            Action::FailLoad { adapter } => {
                self.armed.loads.insert(adapter);
            }
            Action::SlowLoad { adapter, percent } => {
                self.armed.slow_percent.insert(adapter, percent);
            }
            Action::FailRow { id } => {
                self.armed.rows.insert(id);
            }
            Action::FailPlan => self.armed.plans += 1,
        }
        self.hear()
    }

    fn register(&mut self, name: u32, pages: u32, layers: u32) {
        self.registrations += 1;
        let tag = self.registrations;
        self.record(|| format!("register a{tag} pages={pages} layers={layers} tag={tag}"));
        if let Ok(id) = self.core.register(AdapterSpec { tag, pages, layers, ..AdapterSpec::default() }) {
            self.adapters.insert(id, Adapter { tag, pages, name, open: true });
            if let Some(older) = self.names.insert(name, Named { id, tag }) {
                self.unregister(older.id); // it drains
            }
        }
    }

    pub(super) fn unregister(&mut self, id: AdapterId) {
        if let Some(adapter) = self.adapters.get_mut(&id) {
            adapter.open = false;
            let tag = adapter.tag;
            self.record(|| format!("unregister a{tag}"));
            self.core.unregister(self.clock.now_us(), id);
        }
    }

    fn add(&mut self, ask: Ask, arrived_us: u64) {
        let named = ask.adapter.map(|name| self.names.get(&name).copied());
        if let Some(None) = named {
            return self.book.open(ask, 0, Vec::new(), arrived_us, Some("unknown_name"));
        }
        let named = named.flatten();
        let tag = named.map_or(0, |named| named.tag);
        // as `lorad_sched::script` makes them
        let like = if ask.like > 0 { ask.like } else { ask.id };
        let (first, vocab) = (like.wrapping_mul(1000) as u32, self.core.config().vocab);
        let prompt: Vec<u32> = (0..ask.prompt).map(|index| first.wrapping_add(index) % vocab).collect();
        self.record(|| {
            let adapter = if tag > 0 { format!(" adapter=a{tag}") } else { String::new() };
            let stop = if ask.stop_after > 0 { format!(" stop={STOP}") } else { String::new() };
            let Ask { id, tenant, prompt, max_tokens, .. } = ask;
            let from = if ask.like > 0 { format!(" from={first}") } else { String::new() };
            format!("add {id} tenant={tenant}{adapter} prompt={prompt}{from} max={max_tokens}{stop}")
        });
        let spec = RequestSpec {
            id: ask.id,
            tenant: ask.tenant,
            adapter: named.map(|named| named.id),
            prompt: prompt.clone(),
            max_tokens: ask.max_tokens,
            stop_tokens: if ask.stop_after > 0 { vec![STOP] } else { Vec::new() },
            ..RequestSpec::default()
        };
        let refused = self.core.add(self.clock.now_us(), spec).err();
        self.book.open(ask, tag, prompt, arrived_us, refused.map(|refusal| refusal.code()));
    }

    /// Reports the next transfer that is done by now; false when none is.
    pub fn report_transfer(&mut self) -> Done<bool> {
        let now_us = self.clock.now_us();
        let Some(transfer) = self.channel.take(now_us) else { return Ok(false) };
        let id = AdapterId::from_number(transfer.adapter);
        let tag = self.adapters.get(&id).map_or(0, |adapter| adapter.tag);
        self.record(|| format!("{} a{tag}", if transfer.fails { "failed" } else { "done" }));
        self.worker.arrived(transfer.adapter, transfer.fails).map_err(|what| self.fail(Kind::Plan, what))?;
        let reported = if transfer.fails {
            self.book.failing_tag = Some(tag);
            self.core.page_in_failed(now_us, id)
        } else {
            self.core.page_in_done(now_us, id)
        };
        reported.map_err(|error| self.fail(Kind::Call, error.to_string()))?;
        self.hear()?;
        self.book.failing_tag = None;
        Ok(true)
    }
}
