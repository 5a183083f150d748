//! How long the first waiting request of a group can wait.
//!
//! A group whose head has waited [`crate::Config::urgent_after_us`] on its tenant's clock is urgent. Urgent groups have
//! their turns one after the other, least turns first over the tenants (by weight), longest wait first within a tenant.
//! While the one whose turn it is lacks a line or pages, nobody else is admitted; while it lacks a slot or a place, one
//! adapter gets no new rows and its prompts come first. So one turn takes no longer than
//!
//! ```text
//!   turn = max(preempt_after_us, (prompts + preempt_after_tokens) · step) + 2 · step + loads
//!
//!   prompts   steps until every running row has computed its known tokens: they all lie in the pool's pages,
//!             ⌈pages · page_tokens ÷ (tokens_max − rows_max + 1)⌉, and, where one row may not have a whole step's tokens,
//!             ⌈sequence_tokens_max ÷ prefill_chunk_max⌉ more
//!   then      each row samples a token in each step; after preempt_after_tokens of them it may be preempted, for a group that
//!             was elected preempt_after_us ago
//!   2         the step in flight when the turn begins, and the one that admits; 3 where two plans may be in flight
//!   step      the longest step of the cost model
//!   loads     page_ins_max page-ins of the largest adapter, one after the other
//! ```
//!
//! Where lines are reserved and several tenants are present, the prompts of those that aren't light have a third of these tokens
//! (`share.rs`), and light ones' requests come in during a turn, at most `rows_reserved`: prompts are divided by that third, and
//! the steps count twice, for the rows that run when the turn begins and for those let in.
//!
//! Where a slot or a place may be lacking (`slots_max` ≤ `rows_max` + `page_ins_max` + 1, `adapters_step_max` < `rows_max`, or pins), the
//! steps count once more: others are admitted while one adapter is drained, and what they grow by may be lacking afterwards.
//!
//! After that all that others hold can be taken, and the head fits the otherwise empty pool (`add` saw to it). A group
//! waits for its own turn and for those before it: the groups of its tenant that have waited longer, and between two turns of its
//! tenant the turns of the others, as many as their weights say, and one each by rounding:
//!
//! ```text
//!   bound = urgent_after_us + turn · (groups · ⌈Σ weights ÷ weight⌉ + tenants)
//! ```
//!
//! with the tenant's waiting groups when the group began to wait, itself included, and the largest Σ weights and number of
//! waiting tenants since nobody waited. The times are the cost model's: with a worker that is slower, the bound is that much longer.

use crate::config::Config;
use crate::core::Core;

impl Config {
    /// Steps after which every row that runs now may be preempted, if nobody else is admitted; so many tenants are
    /// present.
    fn turn_steps(&self, present: u32) -> u64 {
        let shared = self.rows_reserved > 0 && present > 1;
        let known = u64::from(self.pages_usable()) * u64::from(self.page_tokens);
        let known = known.min(u64::from(self.rows_max) * u64::from(self.sequence_tokens_max));
        let tokens = if shared { self.others_tokens() } else { self.tokens_max - self.rows_max + 1 };
        let mut prompts = known.div_ceil(tokens.into());
        if self.prefill_chunk_max < self.tokens_max {
            prompts += u64::from(self.sequence_tokens_max).div_ceil(self.prefill_chunk_max.into());
        }
        let drains = self.slots_max <= self.rows_max.saturating_add(self.page_ins_max).saturating_add(1)
            || self.adapters_step_max < self.rows_max
            || self.pinned_pages_max > 0;
        (prompts + u64::from(self.preempt_after_tokens)) * (1 + u64::from(shared) + u64::from(drains))
    }

    /// The longest step of the cost model, ns.
    pub(crate) fn step_ns_max(&self, adapter_pages_max: u32) -> u64 {
        let costs = &self.costs;
        let (rows, tokens) = (u64::from(self.rows_max), u64::from(self.tokens_max));
        let context = tokens.saturating_mul(self.sequence_tokens_max.into());
        let adapters = u64::from(self.adapters_step_max.min(self.rows_max).min(self.slots_max));
        let pages = adapters.saturating_mul(adapter_pages_max.into()).min(self.pages_usable().into());
        let first = self.page_in_first_us;
        [
            costs.shared_ns(u64::MAX, true),
            // a plan of short page-ins may come before it
            if first > 0 { costs.shared_ns(0, false).saturating_add(first.saturating_mul(1000)) } else { 0 },
            costs
                .beside_page_ns
                .saturating_mul(self.page_ins_max.into())
                .saturating_mul(adapter_pages_max.into()),
            costs.token_ns.saturating_mul(tokens),
            costs.sample_ns.saturating_mul(rows),
            costs.context_ns.saturating_mul(context),
            costs.adapter_page_ns.saturating_mul(pages),
            costs.adapter_token_page_ns.saturating_mul(tokens).saturating_mul(adapter_pages_max.into()),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// The longest turn of an urgent group while so many tenants are present, µs.
    pub fn turn_us(&self, adapter_pages_max: u32, present: u32) -> u64 {
        let loads = self.costs.page_in_ns(adapter_pages_max).saturating_mul(if adapter_pages_max > 0 {
            self.page_ins_max.into()
        } else {
            0
        });
        let step = self.step_ns_max(adapter_pages_max);
        let patience = self.preempt_after_us.saturating_mul(1000);
        let rows = self.turn_steps(present).saturating_mul(step).max(patience);
        rows.saturating_add(step.saturating_mul(1 + u64::from(self.plans_max)))
            .saturating_add(loads)
            .div_ceil(1000)
    }

    /// The bound, µs: see the module.
    pub(crate) fn bound_us(
        &self,
        adapter_pages_max: u32,
        groups: u64,
        weight: u64,
        weights: u64,
        tenants: u64,
        present: u32,
    ) -> u64 {
        let turns =
            groups.saturating_mul(weights.max(weight).div_ceil(weight.max(1))).saturating_add(tenants);
        self.urgent_after_us.saturating_add(self.turn_us(adapter_pages_max, present).saturating_mul(turns))
    }
}

impl Core {
    /// The bound of a group of this tenant, with so many of its groups waiting before it and itself, µs.
    pub(crate) fn wait_bound_us(&self, tenant: u32, groups: u32) -> u64 {
        let (tenants, state) = (&self.tenants, &self.tenants[tenant]);
        self.config.bound_us(
            self.adapters.pages_max,
            groups.into(),
            state.spec.weight.into(),
            tenants.peak_weights,
            tenants.peak_tenants.into(),
            tenants.peak_present,
        )
    }

    /// Compares each group's wait with its bound. Only meaningful where time goes as the cost model says: in simulation.
    pub fn check_waits(&self) -> Result<(), String> {
        for (tenant, state) in self.tenants.entries().iter().enumerate() {
            let clock = state.clock(self.now);
            for group in self.groups.waits.iter(tenant as u32) {
                let (waited, bound) = (clock.saturating_sub(self.groups[group].since), self.bound_now(group));
                if waited > bound {
                    return Err(format!(
                        "group {group} of tenant {} waits {waited} µs, bound {bound}",
                        state.id
                    ));
                }
            }
        }
        Ok(())
    }

    /// The longest that any group waits now, as a part of its bound, in thousandths.
    pub fn longest_wait_permille(&self) -> u64 {
        let tenants = self.tenants.entries().iter().enumerate();
        let parts = tenants.flat_map(|(tenant, state)| {
            let clock = state.clock(self.now);
            self.groups.waits.iter(tenant as u32).map(move |group| (clock, group))
        });
        parts
            .map(|(clock, group)| {
                clock.saturating_sub(self.groups[group].since).saturating_mul(1000)
                    / self.bound_now(group).max(1)
            })
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn bound_now(&self, group: u32) -> u64 {
        self.wait_bound_us(self.groups[group].name.tenant, self.groups[group].ahead)
    }
}
