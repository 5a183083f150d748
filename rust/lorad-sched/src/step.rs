//! Making a plan: running rows first, then admission, then the arrays.

use crate::adapter::Residency;
use crate::core::Core;
use crate::error::StepError;
use crate::policy::Order;
use crate::request::RequestState;
use crate::share::Budget;

/// A row of the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    /// Entry of the request.
    pub request: u32,
    /// Entry of its group.
    pub group: u32,
    pub line: u32,
    /// Slot and tag of the adapter, `None` for the base.
    pub adapter: Option<(u32, u32)>,
    /// Pages of the adapter.
    pub adapter_pages: u32,
    /// Tokens computed before.
    pub start: u32,
    /// New tokens.
    pub count: u32,
    /// Is a token sampled?
    pub sample: bool,
    /// Was its group charged for it?
    pub charged: bool,
}

impl Core {
    /// Makes the next plan in place and says its number; `None` when nothing can run now: no request lives, or all wait
    /// for page-ins that the host hasn't reported. At most [`crate::Config::plans_max`] plans may be in flight.
    ///
    /// With one in flight this makes the plan ahead. Of a row whose token that one samples, the token's id is −1: the worker
    /// has it when the plan's turn comes. Rows that end with that token by their length aren't in it; of those that end by a stop
    /// token, which only the commit tells, what is computed and sampled is dropped. A plan ahead takes nothing from anybody:
    /// `None` as well where rows would have to give way, for pages or for a group that has waited too long.
    ///
    /// Allocates nothing. What a step visits is bounded by the configuration.
    pub fn step(&mut self, now: u64, plan: &mut [i32]) -> Result<Option<u64>, StepError> {
        if let (true, Some(number)) = (self.flights.full(), self.in_flight()) {
            return Err(StepError::PlanInFlight { number });
        }
        if plan.len() != self.layout.length() {
            return Err(StepError::BufferLength {
                needed: self.layout.length() as u64,
                given: plan.len() as u64,
            });
        }
        self.now = self.now.max(now);
        self.chosen.clear();
        self.charged = 0;
        self.page_ins.clear();
        let mut budget = Budget::new(&self.config);
        self.expire();
        self.turn_clocks();
        self.forget_absent(self.now);
        if !self.grow_rows() || !self.make_way() {
            return Ok(None); // somebody gives way, when the plan in flight is committed
        }
        if !self.page_in_first() {
            self.choose_running(&mut budget);
            self.admit(&mut budget);
        }
        debug_assert_eq!(self.headroom, self.growing_rows(), "kept up by admissions and preemptions");
        if self.chosen.is_empty() && self.page_ins.is_empty() {
            return Ok(None);
        }
        self.counters.plans += 1;
        let number = self.counters.plans;
        self.had_rows = !self.chosen.is_empty();
        self.sort_rows();
        self.charge_step(self.config.tokens_max - budget.tokens);
        self.write(number, plan);
        self.flights.start(number, &mut self.chosen, &mut self.copies);
        Ok(Some(number))
    }

    /// Rows that decode, then prompts in progress: of the tenant with the least service first, then in the order of
    /// admission; before them whoever waits and has had less service. As `rows_max` isn't above `tokens_max`, each decoding
    /// row gets its token and the first prompt at least one.
    fn choose_running(&mut self, budget: &mut Budget) {
        self.prompts.clear();
        for index in 0..self.running.len() {
            let entry = self.running[index];
            let request = &self.requests[entry];
            match request.missing() {
                0 => {} // all of it is in flight
                1 => self.choose(entry, budget),
                _ => {
                    // those of an adapter that is drained first of all
                    let drained = request.adapter.is_some() && request.adapter == self.drained;
                    self.prompts.push(((!drained, true, 0), index as u32, entry));
                }
            }
        }
        if self.tenants.ready.front(0).is_some() {
            self.charge_chosen(); // whoever has just come goes before those that decode
        }
        if self.config.policy.order == Order::Fair {
            for index in 0..self.prompts.len() {
                let tenant = self.groups[self.requests[self.prompts[index].2].group].name.tenant;
                let (others, service) = self.turn_of(tenant);
                let turn = &mut self.prompts[index].0;
                *turn = (turn.0, others, service);
            }
            self.prompts.sort_unstable();
            if let Some(&((true, others, service), ..)) = self.prompts.first() {
                self.admit_before((others, service), budget);
            }
        }
        for index in 0..self.prompts.len() {
            self.choose(self.prompts[index].2, budget);
        }
    }

    /// The plan's order: by slot, the base last; of one adapter in the order of choice. Rows are counted for each slot and put
    /// where they belong, in about half of a sort's time.
    fn sort_rows(&mut self) {
        let base = self.slot_rows.len() - 1;
        let slot_of = |row: &Chosen| row.adapter.map_or(base, |(slot, _)| slot as usize);
        self.slot_rows.fill(0);
        self.chosen.iter().for_each(|row| self.slot_rows[slot_of(row)] += 1);
        let mut first = 0;
        for rows in &mut self.slot_rows {
            first += std::mem::replace(rows, first);
        }
        self.row_order.resize(self.chosen.len(), 0);
        for (index, row) in self.chosen.iter().enumerate() {
            let place = &mut self.slot_rows[slot_of(row)];
            self.row_order[*place as usize] = index as u32;
            *place += 1;
        }
        std::mem::swap(&mut self.chosen, &mut self.unsorted);
        self.chosen.clear();
        self.chosen.extend(self.row_order.iter().map(|&index| self.unsorted[index as usize]));
    }

    /// Charges groups for the rows that were chosen since the last call, before somebody's turn depends on it.
    pub(crate) fn charge_chosen(&mut self) {
        for index in self.charged..self.chosen.len() {
            let Chosen { group, start, count, sample, adapter_pages, .. } = self.chosen[index];
            self.chosen[index].charged = true;
            self.charge(group, self.config.costs.row_ns(start, count, sample, adapter_pages));
        }
        self.charged = self.chosen.len();
        self.settle_charges();
    }

    /// Charges groups for the plan's rows: for each row what it takes, unless that was done, and its part of the step and of its
    /// adapter's bytes.
    fn charge_step(&mut self, tokens: u32) {
        let (chosen, costs) = (std::mem::take(&mut self.chosen), self.config.costs);
        let samples = chosen.iter().any(|row| row.sample);
        let step = costs.shared_ns(tokens.into(), samples) / chosen.len().max(1) as u64;
        for rows in chosen.chunk_by(|one, other| one.adapter == other.adapter) {
            let Chosen { mut group, adapter_pages: pages, .. } = rows[0];
            let (mut ns, shared) = (0u64, step.saturating_add(costs.adapter_ns(pages) / rows.len() as u64));
            for row in rows {
                if row.group != group {
                    self.charge(std::mem::replace(&mut group, row.group), std::mem::take(&mut ns));
                }
                let own = if row.charged { 0 } else { costs.row_ns(row.start, row.count, row.sample, pages) };
                ns = ns.saturating_add(own).saturating_add(shared);
            }
            self.charge(group, ns);
        }
        self.chosen = chosen;
        self.settle_charges();
    }

    /// Puts as much of a running request into the plan as the limits allow.
    #[inline]
    pub(crate) fn choose(&mut self, entry: u32, budget: &mut Budget) {
        let request = &self.requests[entry];
        let RequestState::Running { computed, planned, .. } = request.state else { return };
        let (start, missing) = (computed + planned, request.missing());
        let tenant = || self.groups[request.group].name.tenant;
        let left = if missing == 1 { budget.tokens } else { self.tokens_for(tenant(), budget) };
        let count = missing.min(self.config.prefill_chunk_max).min(left);
        if count == 0 {
            return;
        }
        let request = &mut self.requests[entry];
        let RequestState::Running { line, planned, .. } = &mut request.state else { return };
        *planned += count;
        let (line, sample) = (*line, count == missing);
        let (group, adapter) = (request.group, request.adapter);
        let pages = adapter.map_or(0, |adapter| self.adapters[adapter].spec.pages);
        let adapter = adapter.and_then(|adapter| match self.adapters[adapter].residency {
            Residency::Hot { slot, .. } => Some((slot, self.adapters[adapter].spec.tag)),
            Residency::Vacant
            | Residency::Remote { .. }
            | Residency::Cold
            | Residency::Loading { .. }
            | Residency::Failed { .. } => None,
        });
        if missing == 1 {
            budget.tokens -= 1;
        } else {
            self.spend(self.groups[group].name.tenant, count, budget);
        }
        self.chosen.push(Chosen {
            request: entry,
            group,
            line,
            adapter,
            adapter_pages: pages,
            start,
            count,
            sample,
            charged: false,
        });
    }
}
