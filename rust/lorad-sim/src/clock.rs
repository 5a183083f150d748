//! Virtual time: the clock, what a step takes, and the one channel on which adapters are copied.

use std::collections::VecDeque;

use lorad_sched::{Costs, PlanRow};

use crate::step::{Row, Step};

/// Microseconds since the start. It never goes back.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    now_us: u64,
}

impl Clock {
    /// Now.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Goes on to `at_us`; stays when that has passed.
    pub fn advance(&mut self, at_us: u64) {
        self.now_us = self.now_us.max(at_us);
    }
}

/// Nanoseconds as whole microseconds, rounded up, at least 1: so that time always goes on.
pub fn ns_to_us(ns: u64) -> u64 {
    ns.div_ceil(1000).max(1)
}

/// Nanoseconds of a step, as the cost model has it; `pages` says how large the adapter in a slot is.
pub fn step_ns(costs: &Costs, step: &Step, pages: impl Fn(u32) -> u32) -> u64 {
    let rows = step.rows.iter().map(|row| {
        let adapter = row.adapter.map(|(slot, _)| slot);
        let Row { start, count, sample, .. } = *row;
        PlanRow { start, count, sample, adapter, adapter_pages: adapter.map_or(0, &pages) }
    });
    costs.plan_ns(rows, step.page_ins.iter().map(|load| load.pages.len() as u32).sum())
}

/// An adapter on its way into its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The core's number of the adapter.
    pub adapter: u32,
    /// When its bytes are there, or turn out not to come.
    pub done_us: u64,
    /// They don't come.
    pub fails: bool,
}

/// One copy channel: transfers one after the other, beside the steps.
#[derive(Clone, Debug, Default)]
pub struct Channel {
    transfers: VecDeque<Transfer>,
    free_us: u64,
    busy_us: u64,
}

impl Channel {
    /// Begins a transfer of `duration_us` when those before it are done.
    pub fn start(&mut self, now_us: u64, adapter: u32, duration_us: u64, fails: bool) {
        let done_us = self.free_us.max(now_us).saturating_add(duration_us);
        self.free_us = done_us;
        self.busy_us = self.busy_us.saturating_add(duration_us);
        self.transfers.push_back(Transfer { adapter, done_us, fails });
    }

    /// When all are done.
    pub fn free_us(&self) -> u64 {
        self.free_us
    }

    /// When the next one is done.
    pub fn next_us(&self) -> Option<u64> {
        self.transfers.front().map(|transfer| transfer.done_us)
    }

    /// Takes the next one that is done by `now_us`.
    pub fn take(&mut self, now_us: u64) -> Option<Transfer> {
        self.transfers.front().filter(|transfer| transfer.done_us <= now_us)?;
        self.transfers.pop_front()
    }

    /// Time that all transfers took together, in microseconds.
    pub fn busy_us(&self) -> u64 {
        self.busy_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::PageIn;

    const COSTS: Costs = Costs {
        step_ns: 1_000_000,
        token_ns: 10_000,
        sample_ns: 5_000,
        context_ns: 10,
        adapter_page_ns: 700,
        adapter_token_page_ns: 30,
        page_in_ns: 50_000,
        page_in_page_ns: 2_000,
        few_tokens: 0,
        many_ns: 0,
        head_ns: 0,
        beside_page_ns: 400,
    };

    #[test]
    fn a_step_takes_what_the_cost_model_says_of_its_rows_and_page_ins() {
        let pages = |slot| [4, 8][slot as usize];
        let row = |adapter, start| Row { line: 0, adapter, start, count: 1, sample: true };
        let mut step = Step { rows: vec![row(Some((1, 9)), 10), row(None, 0)], ..Step::default() };
        let rows = [(10, Some(1), 8), (0, None, 0)].map(|(start, adapter, adapter_pages)| PlanRow {
            start,
            count: 1,
            sample: true,
            adapter,
            adapter_pages,
        });
        assert_eq!(step_ns(&COSTS, &step, pages), COSTS.plan_ns(rows, 0));
        step.page_ins.push(PageIn { adapter: 3, slot: 0, tag: 1, pages: vec![5, 6, 7] });
        assert_eq!(step_ns(&COSTS, &step, pages), COSTS.plan_ns(rows, 3));
        step.rows.clear();
        assert_eq!(step_ns(&COSTS, &step, pages), 0);
    }

    #[test]
    fn transfers_wait_for_each_other() {
        let mut channel = Channel::default();
        channel.start(100, 1, ns_to_us(COSTS.page_in_ns(5)), false);
        channel.start(110, 2, ns_to_us(COSTS.page_in_ns(10)), true);
        assert_eq!((channel.next_us(), channel.take(159)), (Some(160), None));
        assert_eq!(channel.take(500), Some(Transfer { adapter: 1, done_us: 160, fails: false }));
        assert_eq!(channel.take(500), Some(Transfer { adapter: 2, done_us: 230, fails: true }));
        channel.start(1000, 3, 7, false);
        assert_eq!((channel.next_us(), channel.busy_us()), (Some(1007), 137));
    }

    #[test]
    fn time_goes_on_and_never_back() {
        let mut clock = Clock::default();
        clock.advance(5);
        clock.advance(3);
        assert_eq!(clock.now_us(), 5);
        assert_eq!([0, 1, 1000, 1001].map(ns_to_us), [1, 1, 1, 2]);
    }
}
