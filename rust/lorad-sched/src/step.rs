//! Making a plan: running rows first, then admission, then the arrays.

use crate::adapter::Residency;
use crate::core::Core;
use crate::error::StepError;
use crate::plan::{Head, Part};
use crate::policy::Order;
use crate::request::RequestState;
use crate::share::Budget;

/// A row of the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    /// Entry of the request.
    pub request: u32,
    pub line: u32,
    /// Slot and tag of the adapter, `None` for the base.
    pub adapter: Option<(u32, u32)>,
    /// Tokens computed before.
    pub start: u32,
    /// New tokens.
    pub count: u32,
    /// Is a token sampled?
    pub sample: bool,
}

impl Core {
    /// Makes the next plan in place and says its number; `None` when nothing can run now: no request lives, or all wait
    /// for page-ins that the host hasn't reported. Only one plan may be in flight.
    ///
    /// Allocates nothing. What a step visits is bounded by the configuration.
    pub fn step(&mut self, now: u64, plan: &mut [i32]) -> Result<Option<u64>, StepError> {
        if let Some(number) = self.flight {
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
        self.page_ins.clear();
        let mut budget = Budget::new(&self.config);
        self.expire();
        self.turn_clocks();
        self.forget_absent(self.now);
        self.grow_rows();
        self.make_way();
        self.choose_running(&mut budget);
        self.admit(&mut budget);
        if self.chosen.is_empty() && self.page_ins.is_empty() {
            return Ok(None);
        }
        self.counters.plans += 1;
        let number = self.counters.plans;
        self.sort_rows();
        self.charge_step();
        self.settle_charges();
        self.write(number, plan);
        self.flight = Some(number);
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
            if let RequestState::Running { computed, .. } = request.state {
                if request.length() - computed == 1 {
                    self.choose(entry, budget);
                } else {
                    // those of an adapter that is drained first of all
                    let drained = request.adapter.is_some() && request.adapter == self.drained;
                    self.prompts.push(((!drained, true, 0), index as u32, entry));
                }
            }
        }
        if self.tenants.ready.front(0).is_some() {
            self.settle_charges(); // whoever has just come goes before those that decode
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

    /// The plan's order: by slot, the base last, then by line. Numbers are sorted instead of rows: 3% of a step instead of
    /// 13%.
    fn sort_rows(&mut self) {
        self.row_keys.clear();
        self.row_keys.extend(self.chosen.iter().enumerate().map(|(index, row)| {
            let slot = row.adapter.map_or(u64::from(u32::MAX), |(slot, _)| slot.into());
            slot << 32 | u64::from(row.line) << 16 | index as u64 // lines and rows are below 2^16: `Config::check`
        }));
        self.row_keys.sort_unstable();
        std::mem::swap(&mut self.chosen, &mut self.unsorted);
        self.chosen.clear();
        self.chosen.extend(self.row_keys.iter().map(|key| self.unsorted[(key & 0xffff) as usize]));
    }

    /// Charges what the plan's rows share: the step itself by rows, an adapter's bytes by the adapter's rows.
    fn charge_step(&mut self) {
        let tokens = self.chosen.iter().map(|row| u64::from(row.count)).sum();
        let samples = self.chosen.iter().any(|row| row.sample);
        let share = self.config.costs.shared_ns(tokens, samples) / self.chosen.len().max(1) as u64;
        let mut first = 0;
        while first < self.chosen.len() {
            let adapter = self.chosen[first].adapter;
            let alike = |row: &&Chosen| adapter.is_some() && row.adapter == adapter;
            let rows = self.chosen[first..].iter().take_while(alike).count().max(1);
            let pages = self.requests[self.chosen[first].request]
                .adapter
                .map_or(0, |entry| self.adapters[entry].spec.pages);
            let bytes = self.config.costs.adapter_ns(pages) / rows as u64;
            for index in first..first + rows {
                self.charge(self.requests[self.chosen[index].request].group, share.saturating_add(bytes));
            }
            first += rows;
        }
    }

    /// Puts as much of a running request into the plan as the limits allow.
    pub(crate) fn choose(&mut self, entry: u32, budget: &mut Budget) {
        let tenant = self.groups[self.requests[entry].group].name.tenant;
        let left = self.tokens_for(tenant, budget);
        let request = &mut self.requests[entry];
        let length = request.tokens.len() as u32;
        let RequestState::Running { line, computed, planned, .. } = &mut request.state else { return };
        let missing = length - *computed;
        let count =
            missing.min(self.config.prefill_chunk_max).min(if missing == 1 { budget.tokens } else { left });
        if count == 0 {
            return;
        }
        *planned = count;
        let (line, start, sample) = (*line, *computed, count == missing);
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
            self.spend(tenant, count, budget);
        }
        self.chosen.push(Chosen { request: entry, line, adapter, start, count, sample });
        self.charge(group, self.config.costs.row_ns(start, count, sample, pages));
    }

    fn write(&mut self, number: u64, plan: &mut [i32]) {
        let layout = &self.layout;
        let (mut tokens, mut groups, mut edits, mut opened, mut samples) =
            (0usize, 0usize, 0usize, 0usize, 0usize);
        let mut group = None;
        layout.set(plan, Part::RowOffset, 0, 0);
        for (row, chosen) in self.chosen.iter().enumerate() {
            let request = &self.requests[chosen.request];
            layout.set(plan, Part::RowLine, row, chosen.line);
            let (slot, tag) = chosen.adapter.unwrap_or((-1i32 as u32, 0));
            layout.set(plan, Part::RowSlot, row, slot);
            layout.set(plan, Part::RowTag, row, tag);
            layout.set(plan, Part::RowStart, row, chosen.start);
            layout.set(plan, Part::RowSample, row, chosen.sample.into());
            samples += usize::from(chosen.sample);
            if chosen.adapter.is_some() && chosen.adapter != group {
                group = chosen.adapter;
                layout.set(plan, Part::GroupSlot, groups, slot);
                layout.set(plan, Part::GroupTag, groups, tag);
                layout.set(plan, Part::GroupBegin, groups, tokens as u32);
                groups += 1;
            }
            for position in chosen.start..chosen.start + chosen.count {
                layout.set(plan, Part::TokenId, tokens, request.tokens[position as usize]);
                layout.set(plan, Part::TokenPos, tokens, position);
                layout.set(plan, Part::TokenLine, tokens, chosen.line);
                tokens += 1;
            }
            layout.set(plan, Part::RowOffset, row + 1, tokens as u32);
            if chosen.adapter.is_some() {
                layout.set(plan, Part::GroupEnd, groups - 1, tokens as u32);
            }
            let (told, new) = self.lines.tell(chosen.line);
            for (col, &page) in self.lines.pages(chosen.line).iter().enumerate().skip(told as usize) {
                layout.set(plan, Part::EditLine, edits, chosen.line);
                layout.set(plan, Part::EditCol, edits, col as u32);
                layout.set(plan, Part::EditPage, edits, page);
                edits += 1;
            }
            if new {
                layout.set(plan, Part::OpenLine, opened, chosen.line);
                layout.set(plan, Part::OpenRequestLo, opened, request.id as u32);
                layout.set(plan, Part::OpenRequestHi, opened, (request.id >> 32) as u32);
                opened += 1;
            }
        }
        for (index, &slot) in self.adapters.clears.iter().enumerate() {
            layout.set(plan, Part::ClearSlot, index, slot);
        }
        for (index, copy) in self.copies.iter().enumerate() {
            let target = self.lines.pages(copy.line)[copy.col as usize];
            layout.set(plan, Part::CopySource, index, copy.source.page());
            layout.set(plan, Part::CopyTarget, index, target);
        }
        let mut pages = 0usize;
        layout.set(plan, Part::PageinBegin, 0, 0);
        for (index, &entry) in self.page_ins.iter().enumerate() {
            let adapter = &self.adapters[entry];
            let Residency::Loading { slot, .. } = adapter.residency else { continue };
            layout.set(plan, Part::PageinAdapter, index, adapter.id.number());
            layout.set(plan, Part::PageinSlot, index, slot);
            layout.set(plan, Part::PageinTag, index, adapter.spec.tag);
            // a slot's padding holds nothing
            for &page in adapter.image.iter().take(adapter.spec.pages as usize) {
                layout.set(plan, Part::PageinPage, pages, page);
                pages += 1;
            }
            layout.set(plan, Part::PageinBegin, index + 1, pages as u32);
        }
        let heads = [
            (Head::Step, number as usize & 0x7fff_ffff),
            (Head::Rows, self.chosen.len()),
            (Head::Tokens, tokens),
            (Head::Groups, groups),
            (Head::Edits, edits),
            (Head::Opened, opened),
            (Head::PageIns, self.page_ins.len()),
            (Head::PageInPages, pages),
            (Head::Clears, self.adapters.clears.len()),
            (Head::Samples, samples),
            (Head::Copies, self.copies.len()),
        ];
        for (head, value) in heads {
            layout.set_head(plan, head, value);
        }
        self.adapters.clears.clear();
    }
}
