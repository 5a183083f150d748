//! Which scenarios are too large to be run. Each draw, adapter and fault takes memory before the first step is made.

use crate::error::SimError;
use crate::load::{Arrivals, Load};
use crate::scenario::{Scenario, Sizes};

/// Requests, adapters or faults of one kind that a scenario may have.
pub const INPUTS_MAX: u64 = 10_000_000;
/// Tenants that a scenario may have.
pub const TENANTS_MAX: u64 = 1 << 20;
/// Tokens that the pool may have while what each page holds is kept.
pub const AUDITED_TOKENS_MAX: u64 = 1 << 27;

impl Load {
    /// Microseconds from the first request to the last, on average.
    pub fn span_us(&self) -> u64 {
        match self.arrivals {
            Arrivals::AtOnce => 0,
            Arrivals::Poisson { gap_us } => self.requests.saturating_mul(gap_us),
            Arrivals::Bursts { gap_us, on_us, off_us } => {
                let busy_us = self.requests.saturating_mul(gap_us);
                busy_us.saturating_add((busy_us / on_us.max(1)).saturating_mul(off_us))
            }
        }
    }
}

impl Scenario {
    /// Fails with [`SimError::TooLarge`] when the scenario would need more than a machine has, else with the core's own
    /// answer to its limits.
    pub fn check(&self) -> Result<(), SimError> {
        let Self { load, faults, config, .. } = self;
        let span_us = load.span_us();
        let times = |gap_us: u64| span_us.checked_div(gap_us).unwrap_or(0);
        let flood = load.requests.div_ceil(load.tenants.max(1)).saturating_mul(load.flood_times);
        let tokens = u64::from(config.pages) * u64::from(config.page_tokens);
        let sizes = match &self.sizes {
            Sizes::Ranks(sizes) | Sizes::Pages(sizes) => sizes.len() as u64,
        };
        let limits = [
            ("tenants", load.tenants, TENANTS_MAX),
            ("requests", load.requests, INPUTS_MAX),
            ("requests of flood_tenant", flood, INPUTS_MAX),
            ("adapters", load.adapters, INPUTS_MAX),
            ("sizes of adapters", sizes, INPUTS_MAX),
            ("time of all requests ÷ drift_us", times(load.drift_us), INPUTS_MAX),
            (
                "time of all requests ÷ storm_us · storm_requests",
                times(faults.storm_us).saturating_mul(faults.storm_requests.max(1)),
                INPUTS_MAX,
            ),
            ("time of all requests ÷ load_fail_us", times(faults.load_fail_us), INPUTS_MAX),
            ("time of all requests ÷ load_slow_us", times(faults.load_slow_us), INPUTS_MAX),
            ("time of all requests ÷ plan_fail_us", times(faults.plan_fail_us), INPUTS_MAX),
            ("time of all requests ÷ churn_us", times(faults.churn_us), INPUTS_MAX),
            (
                "pages · page_tokens with audit=1",
                if self.host.audit { tokens } else { 0 },
                AUDITED_TOKENS_MAX,
            ),
        ];
        match limits.into_iter().find(|&(_, value, limit)| value > limit) {
            Some((field, value, limit)) => Err(SimError::TooLarge { field, limit, value }),
            None => Ok(config.check()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_refused_before_it_is_made() {
        for (text, field, value) in [
            ("requests=99999999999", "requests", 99_999_999_999),
            ("tenants=2 requests=10 flood_times=9999999999", "requests of flood_tenant", 49_999_999_995),
            ("adapters=10000001", "adapters", 10_000_001),
            ("tenants=9999999", "tenants", 9_999_999),
            (
                "requests=100000 arrivals=bursts:1000:1000:999000 drift_us=1",
                "time of all requests ÷ drift_us",
                100_000_000_000,
            ),
            (
                "requests=100000 arrivals=poisson:1000 plan_fail_us=1",
                "time of all requests ÷ plan_fail_us",
                100_000_000,
            ),
            (
                "requests=100000 arrivals=poisson:1000 storm_us=1000 storm_requests=1000",
                "time of all requests ÷ storm_us · storm_requests",
                100_000_000,
            ),
            ("pages=16777216 page_tokens=65536", "pages · page_tokens with audit=1", 1 << 40),
        ] {
            let scenario = Scenario::parse(text).unwrap();
            match scenario.trace() {
                Err(SimError::TooLarge { field: found, limit, value: given }) => {
                    assert_eq!((found, given), (field, value), "{text}");
                    assert!(given > limit, "{text}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        let core = Scenario::parse("rows_max=0").unwrap().trace();
        assert!(matches!(core, Err(SimError::Config(_))), "{core:?}");
    }
}
