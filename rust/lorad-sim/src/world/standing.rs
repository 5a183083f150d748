//! What a router hears of a replica, and has it do.

use super::{Done, World};

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

    /// Tokens of prompts that steps in flight compute.
    pub fn prompt_tokens_in_flight(&self) -> u64 {
        let rows = self.flights.iter().flat_map(|flight| &flight.rows);
        let waits = |id: u64| self.book.find(id).is_some_and(|record| record.first_us.is_none());
        rows.filter(|(_, id)| waits(*id)).map(|(row, _)| u64::from(row.count)).sum()
    }
}
