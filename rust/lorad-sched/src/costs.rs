//! What work costs: the model that charges tenants, values pages and drives the simulator's clock.
//!
//! ```text
//!   step    = shared + rows + each adapter's pages · adapter_page_ns + pages paged in beside · beside_page_ns
//!   shared  = step_ns + many_ns, with more than few_tokens new tokens + head_ns, if any row samples
//!   row     = tokens · (token_ns + its adapter's pages · adapter_token_page_ns) + pairs · context_ns + sample_ns, if it samples
//!   page-in = page_in_ns + pages · page_in_page_ns
//! ```
//!
//! No part is below 0, so a plan with more in it never costs less. `benches/costs` fits the parts to the real worker and
//! says how far the model is from it.

/// The parts of a step and of a page-in, nanoseconds but for `few_tokens`; `lorad-sim` derives them from a model's shape and
/// a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Each step, whatever it computes: the weights of the layers are read once.
    pub step_ns: u64,
    /// New tokens up to which a step is a small one.
    pub few_tokens: u64,
    /// Each step of more than `few_tokens`, besides: quantised weights are unpacked once for all of them.
    pub many_ns: u64,
    /// Each step in which a row samples: the head's weights are read once.
    pub head_ns: u64,
    /// Each new token in the base's matmuls.
    pub token_ns: u64,
    /// Each row that samples: the head's matmul and the sampler.
    pub sample_ns: u64,
    /// Each pair of a new token and a token of its context, in attention.
    pub context_ns: u64,
    /// Each page of each distinct adapter of a step: its bytes are read once.
    pub adapter_page_ns: u64,
    /// Each pair of a new token and a page of its adapter: the rank's arithmetic.
    pub adapter_token_page_ns: u64,
    /// Each page-in.
    pub page_in_ns: u64,
    /// Each page of a page-in.
    pub page_in_page_ns: u64,
    /// Each page of a page-in that begins with a step, for that step: where the copy takes the step's own cores.
    pub beside_page_ns: u64,
}

/// A row of a plan, as far as its time depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanRow {
    /// Tokens computed before.
    pub start: u32,
    /// New tokens.
    pub count: u32,
    /// Is a token sampled?
    pub sample: bool,
    /// Slot of the adapter, `None` for the base.
    pub adapter: Option<u32>,
    /// Pages of the adapter, 0 for the base.
    pub adapter_pages: u32,
}

impl Default for Costs {
    fn default() -> Self {
        Self::FITTED
    }
}

impl Costs {
    /// SmolLM2-135M in 4 bits on two AVX2 cores, pages of 16 tokens: what `benches/costs` fitted. docs/costs.md has when, on
    /// what, and how far it is off.
    pub const FITTED: Self = Self {
        step_ns: 6_306_000,
        few_tokens: 3,
        many_ns: 3_609_000,
        head_ns: 2_322_000,
        token_ns: 983_000,
        sample_ns: 381_000,
        context_ns: 2_498,
        adapter_page_ns: 37_900,
        adapter_token_page_ns: 7_150,
        page_in_ns: 461_000,
        page_in_page_ns: 57_700,
        beside_page_ns: 52_100,
    };

    /// Name and value of each part, for hosts that read them from text.
    pub fn fields_mut(&mut self) -> [(&'static str, &mut u64); 12] {
        [
            ("step_ns", &mut self.step_ns),
            ("few_tokens", &mut self.few_tokens),
            ("many_ns", &mut self.many_ns),
            ("head_ns", &mut self.head_ns),
            ("token_ns", &mut self.token_ns),
            ("sample_ns", &mut self.sample_ns),
            ("context_ns", &mut self.context_ns),
            ("adapter_page_ns", &mut self.adapter_page_ns),
            ("adapter_token_page_ns", &mut self.adapter_token_page_ns),
            ("page_in_ns", &mut self.page_in_ns),
            ("page_in_page_ns", &mut self.page_in_page_ns),
            ("beside_page_ns", &mut self.beside_page_ns),
        ]
    }

    /// The same with pages of so many tokens instead of `from`: what is counted in pages changes with their bytes.
    pub fn with_pages(&self, page_tokens: u32, from: u32) -> Self {
        let scaled = |ns: u64| {
            let ns = u128::from(ns) * u128::from(page_tokens) / u128::from(from.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        Self {
            adapter_page_ns: scaled(self.adapter_page_ns),
            adapter_token_page_ns: scaled(self.adapter_token_page_ns),
            page_in_page_ns: scaled(self.page_in_page_ns),
            beside_page_ns: scaled(self.beside_page_ns),
            ..*self
        }
    }

    /// A step with these rows, those of an adapter adjacent, with which page-ins of so many pages begin; 0 without rows, as
    /// the model doesn't run then. The simulator's clock goes on by this, and `benches/costs` compares it with the real
    /// worker's time.
    pub fn plan_ns(&self, rows: impl IntoIterator<Item = PlanRow>, page_in_pages: u32) -> u64 {
        let (mut ns, mut last) = (0u64, None);
        let (mut tokens, mut samples) = (0u64, false);
        for row in rows {
            ns = ns.saturating_add(self.row_ns(row.start, row.count, row.sample, row.adapter_pages));
            if row.adapter != last {
                last = row.adapter;
                ns = ns.saturating_add(self.adapter_ns(row.adapter_pages));
            }
            tokens = tokens.saturating_add(row.count.into());
            samples |= row.sample;
        }
        if tokens == 0 {
            return 0;
        }
        ns = ns.saturating_add(self.beside_page_ns.saturating_mul(page_in_pages.into()));
        ns.saturating_add(self.shared_ns(tokens, samples))
    }

    /// What all rows of a step share that has so many new tokens; whether any row samples.
    pub fn shared_ns(&self, tokens: u64, samples: bool) -> u64 {
        let many_ns = if tokens > self.few_tokens { self.many_ns } else { 0 };
        let head_ns = if samples { self.head_ns } else { 0 };
        self.step_ns.saturating_add(many_ns).saturating_add(head_ns)
    }

    /// A row of `count` new tokens after `start` computed ones, without its part of the step and of its adapter's bytes.
    /// `adapter_pages` is 0 for the base.
    pub fn row_ns(&self, start: u32, count: u32, sample: bool, adapter_pages: u32) -> u64 {
        let (start, count) = (u64::from(start), u64::from(count));
        let context = count * start + count * (count + 1) / 2;
        let token_ns = self.adapter_token_page_ns.saturating_mul(u64::from(adapter_pages));
        let ns = self.token_ns.saturating_add(token_ns).saturating_mul(count);
        let ns = ns.saturating_add(self.context_ns.saturating_mul(context));
        ns.saturating_add(if sample { self.sample_ns } else { 0 })
    }

    /// Reading an adapter's bytes, once per step.
    pub fn adapter_ns(&self, pages: u32) -> u64 {
        self.adapter_page_ns.saturating_mul(u64::from(pages))
    }

    /// Paging an adapter in.
    pub fn page_in_ns(&self, pages: u32) -> u64 {
        self.page_in_ns.saturating_add(self.page_in_page_ns.saturating_mul(u64::from(pages)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        step_ns: 1_000_000,
        few_tokens: 3,
        many_ns: 400_000,
        head_ns: 200_000,
        token_ns: 10_000,
        sample_ns: 5_000,
        context_ns: 10,
        adapter_page_ns: 700,
        adapter_token_page_ns: 30,
        page_in_ns: 50_000,
        page_in_page_ns: 2_000,
        beside_page_ns: 3_000,
    };

    fn row(adapter: Option<u32>, start: u32, count: u32, sample: bool) -> PlanRow {
        PlanRow { start, count, sample, adapter, adapter_pages: adapter.map_or(0, |slot| 4 * (slot + 1)) }
    }

    #[test]
    fn a_step_costs_its_rows_each_adapter_once_and_what_it_shares_once() {
        assert_eq!(COSTS.plan_ns([], 7), 0);
        // one decoding base row: the step, the head, a token, its attention over 10 + itself
        let base = row(None, 10, 1, true);
        assert_eq!(COSTS.plan_ns([base], 0), 1_000_000 + 200_000 + 10_000 + 11 * 10 + 5_000);
        // three prompt tokens on an adapter of 4 pages: 1 + 2 + 3 pairs, 3 · 4 token-pages, its bytes, no head
        let chunk = row(Some(0), 0, 3, false);
        let chunk_ns = 30_000 + 6 * 10 + 3 * 4 * 30;
        assert_eq!(COSTS.plan_ns([chunk], 0), 1_000_000 + chunk_ns + 4 * 700);
        // a second row of it reads no bytes again, another adapter does; nine tokens are many
        let all = COSTS.plan_ns([chunk, chunk, row(Some(1), 0, 3, false)], 0);
        assert_eq!(all, 1_400_000 + 3 * chunk_ns + 3 * 4 * 30 + (4 + 8) * 700);
        // a page-in takes from the step that it begins with
        assert_eq!(COSTS.plan_ns([base], 5) - COSTS.plan_ns([base], 0), 15_000);
    }

    #[test]
    fn more_never_costs_less() {
        for few_tokens in [0, 3, 1000] {
            let costs = Costs { few_tokens, ..COSTS };
            let mut last = 0;
            for count in 1..40 {
                let rows = [row(None, 5, 1, false), row(Some(0), 5, count, count > 20)];
                let ns = costs.plan_ns(rows, count / 10);
                assert!(ns > last);
                assert!(costs.plan_ns(rows[1..].iter().copied(), count / 10) < ns);
                last = ns;
            }
        }
    }

    #[test]
    fn the_largest_costs_saturate() {
        let mut costs = COSTS;
        costs.fields_mut().into_iter().for_each(|(_, value)| *value = u64::MAX);
        costs.few_tokens = 0;
        assert_eq!(costs.plan_ns([row(Some(0), 1 << 20, 1 << 20, true)], u32::MAX), u64::MAX);
    }
}
