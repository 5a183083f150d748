//! What each tenant may have of a step when several are there; only where lines are reserved (`rows_reserved`).
//!
//! A tenant is *present* while it has requests and for a while after: who sends a request now and then is there all the time, so
//! that its next one needn't wait for a step full of another's prompts. A present tenant is *light* when it has fewer rows than
//! its part of them and has hardly been served more than the least served. While several tenants are present
//!
//! - light ones' prompts come first, and in a step that has one nobody else's prompt is computed: the step is shorter;
//! - the others' prompts have a third of a step's tokens, so that no step that a light one meets is long.
//!
//! Rows that decode have their token in each step, whose they are makes no difference. While a group is urgent, and its turn
//! ends when the others' prompts are computed, these keep their third also beside a light one's prompt, and only
//! `rows_reserved` requests of light ones come in during a turn: the bound counts on it.

use crate::config::Config;
use crate::core::Core;
use crate::policy::Order;

/// A tenant stays present so long after its last request, µs.
const PRESENT_US: u64 = 10_000_000;

/// Part of the tokens that decoding leaves which the prompts of tenants that aren't light may have.
const OTHERS_PART: u32 = 3;

/// Tokens of the step being made that may still be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// In all.
    pub tokens: u32,
    /// To the prompts of tenants that aren't light, while several are present.
    pub others: u32,
}

impl Budget {
    pub fn new(config: &Config) -> Self {
        Self { tokens: config.tokens_max, others: config.others_tokens() }
    }
}

impl Config {
    /// Tokens of a step for the prompts of tenants that aren't light, while several are present.
    pub(crate) fn others_tokens(&self) -> u32 {
        (self.tokens_max - self.rows_max + 1).div_ceil(OTHERS_PART)
    }
}

impl Core {
    /// A request of a tenant is about to come.
    pub(crate) fn arrive(&mut self, tenant: u32) {
        if !self.is_present(tenant) {
            self.tenants.present += 1;
            self.tenants.present_weights += u64::from(self.tenants[tenant].spec.weight);
        }
        self.tenants.leaving.remove(tenant);
    }

    /// A request of a tenant has ended.
    pub(crate) fn leave(&mut self, tenant: u32) {
        let state = &self.tenants[tenant];
        if state.waiting + state.running == 0 {
            self.tenants.leaving.put(0, tenant, (self.now.saturating_add(PRESENT_US), 0));
        }
    }

    /// Present tenants after a request of this one; `None`: of one that isn't known yet.
    pub(crate) fn present_with(&self, tenant: Option<u32>) -> u32 {
        self.tenants.present + u32::from(!tenant.is_some_and(|tenant| self.is_present(tenant)))
    }

    /// Has a tenant requests, or had it some a while ago?
    pub(crate) fn is_present(&self, tenant: u32) -> bool {
        let state = &self.tenants[tenant];
        state.waiting + state.running > 0 || self.tenants.leaving.heap_of(tenant).is_some()
    }

    /// Forgets tenants that have been without requests for long enough.
    pub(crate) fn forget_absent(&mut self, now: u64) {
        while let Some(tenant) =
            self.tenants.leaving.front(0).filter(|&tenant| self.tenants.leaving.key(tenant).0 <= now)
        {
            self.tenants.leaving.remove(tenant);
            self.tenants.present -= 1;
            self.tenants.present_weights -= u64::from(self.tenants[tenant].spec.weight);
        }
    }

    /// Has a tenant fewer rows than its part of them?
    pub(crate) fn is_below_share(&self, tenant: u32) -> bool {
        let tenant = &self.tenants[tenant];
        let rows = u64::from(self.config.rows_max) * u64::from(tenant.spec.weight);
        tenant.running == 0 || u64::from(tenant.running) * self.tenants.present_weights < rows
    }

    /// Do its prompts come first?
    pub(crate) fn is_light(&self, tenant: u32) -> bool {
        let most = self.tenants.floor.saturating_add(self.tenants.grace);
        self.is_below_share(tenant) && self.tenants[tenant].service <= most
    }

    /// Do several tenants have to share a step? Not where decoding leaves a single token for prompts.
    pub(crate) fn is_shared(&self) -> bool {
        self.config.rows_reserved > 0
            && self.config.tokens_max > self.config.rows_max
            && self.tenants.present > 1
            && self.config.policy.order == Order::Fair
    }

    /// New tokens that a tenant may have of what is left.
    pub(crate) fn tokens_for(&self, tenant: u32, budget: &Budget) -> u32 {
        if !self.is_shared() {
            return budget.tokens;
        }
        match (self.is_light(tenant), self.groups.urgent.is_empty()) {
            (true, true) => budget.tokens,
            (true, false) => budget.tokens.saturating_sub(budget.others),
            (false, _) => budget.tokens.min(budget.others),
        }
    }

    /// Takes a prompt's tokens from what is left.
    pub(crate) fn spend(&self, tenant: u32, tokens: u32, budget: &mut Budget) {
        budget.tokens -= tokens;
        if !self.is_shared() {
            return;
        }
        if !self.is_light(tenant) {
            budget.others = budget.others.saturating_sub(tokens);
        } else if self.groups.urgent.is_empty() {
            budget.others = 0;
        }
    }
}
