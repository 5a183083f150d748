//! What a router hears of a replica, and has it do.

use super::{Done, World};
use crate::step::Row;

/// An adapter that takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its name in the trace.
    pub name: u32,
    /// As [`lorad_sched::AdapterStats::state`].
    pub state: &'static str,
}

impl World {
    /// Where each adapter is that takes requests, in the order of registration.
    pub fn standings(&self) -> Vec<Standing> {
        let open = |stats: lorad_sched::AdapterStats| {
            let adapter = self.adapters.get(&stats.adapter).filter(|adapter| adapter.open)?;
            Some(Standing { name: adapter.name, state: stats.state })
        };
        self.core.adapter_stats().into_iter().filter_map(open).collect()
    }

    /// Has an adapter paged in before anybody asks for it; whether it wasn't there.
    pub fn prewarm(&mut self, name: u32) -> Done<bool> {
        let Some(&named) = self.names.get(&name) else { return Ok(false) };
        let away = self.standings().iter().any(|one| one.name == name && one.state == "cold");
        if away {
            self.record(|| format!("prewarm a{}", named.tag));
            // one that drains is no longer wanted by anybody
            let _ = self.core.prewarm(self.clock.now_us(), named.id);
            self.hear()?;
        }
        Ok(away)
    }

    /// Tokens of prompts that the step in flight computes; 0 without one.
    pub fn prompt_tokens_in_flight(&self) -> u64 {
        if self.in_flight.is_none() {
            return 0;
        }
        let waits = |row: &&Row| {
            let record = self.worker.request(row).and_then(|id| self.book.find(id));
            record.is_some_and(|record| record.first_us.is_none())
        };
        self.step.rows.iter().filter(waits).map(|row| u64::from(row.count)).sum()
    }
}
