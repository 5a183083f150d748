//! What work costs: the model that charges tenants, values pages and drives the simulator's clock.

/// Nanoseconds of the parts of a step and of a page-in. A step's time is their sum; `lorad-sim` derives them from a
/// model's shape and a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Each step, whatever it computes: the weights are read once.
    pub step_ns: u64,
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
}

impl Default for Costs {
    /// SmolLM2-135M in 4 bits on two AVX2 cores, roughly.
    fn default() -> Self {
        Self {
            step_ns: 12_000_000,
            token_ns: 1_500_000,
            sample_ns: 500_000,
            context_ns: 200,
            adapter_page_ns: 4_000,
            adapter_token_page_ns: 1_000,
            page_in_ns: 100_000,
            page_in_page_ns: 50_000,
        }
    }
}

impl Costs {
    /// Name and value of each part, for hosts that read them from text.
    pub fn fields_mut(&mut self) -> [(&'static str, &mut u64); 8] {
        [
            ("step_ns", &mut self.step_ns),
            ("token_ns", &mut self.token_ns),
            ("sample_ns", &mut self.sample_ns),
            ("context_ns", &mut self.context_ns),
            ("adapter_page_ns", &mut self.adapter_page_ns),
            ("adapter_token_page_ns", &mut self.adapter_token_page_ns),
            ("page_in_ns", &mut self.page_in_ns),
            ("page_in_page_ns", &mut self.page_in_page_ns),
        ]
    }

    /// A row of `count` new tokens after `start` computed ones, without its part of the step and of its adapter's bytes.
    /// `adapter_pages` is 0 for the base.
    pub fn row_ns(&self, start: u32, count: u32, sample: bool, adapter_pages: u32) -> u64 {
        let (start, count) = (u64::from(start), u64::from(count));
        let context = count * start + count * (count + 1) / 2;
        let mut ns = self.token_ns.saturating_mul(count);
        ns = ns.saturating_add(self.context_ns.saturating_mul(context));
        ns = ns.saturating_add(
            self.adapter_token_page_ns.saturating_mul(count).saturating_mul(u64::from(adapter_pages)),
        );
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
