//! What goes wrong in a scenario, and how often. All rates are 0 by default: nothing does.

use crate::random::Random;
use crate::trace::{Action, Input};

/// How often each thing goes wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests of a thousand that are taken back.
    pub abort_milli: u64,
    /// Microseconds from a request's arrival to that, on average.
    pub abort_after_us: u64,
    /// Microseconds between two storms of aborts, on average; 0: none.
    pub storm_us: u64,
    /// The last so many requests are taken back in a storm.
    pub storm_requests: u64,
    /// Microseconds between two page-ins that fail, on average; 0: none.
    pub load_fail_us: u64,
    /// Microseconds between two page-ins that are slow, on average; 0: none.
    pub load_slow_us: u64,
    /// What a slow page-in takes, in percent of its usual time.
    pub load_slow_percent: u64,
    /// Requests of a thousand of which the worker refuses a row.
    pub row_fail_milli: u64,
    /// Microseconds between two plans that the worker loses, on average; 0: none.
    pub plan_fail_us: u64,
    /// Microseconds between two adapters that are unregistered, on average; 0: none.
    pub churn_us: u64,
    /// Microseconds from that to a new generation under the same name, on average.
    pub churn_after_us: u64,
}

/// Purposes of random streams, apart from those of the load.
const REQUESTS: u64 = 11;
const STORMS: u64 = 12;
const LOADS: u64 = 13;
const SLOW: u64 = 14;
const PLANS: u64 = 15;
const CHURN: u64 = 16;

impl Faults {
    /// What goes wrong while these requests, in the order of their times, arrive. `sizes` are the pages that a new
    /// generation of an adapter may have, `layers` its layers.
    pub fn inputs(
        &self,
        seed: u64,
        requests: &[Input],
        adapters: u64,
        sizes: &[u32],
        layers: u32,
    ) -> Vec<Input> {
        let end_us = requests.last().map_or(0, |input| input.at_us);
        let mut inputs = Vec::new();
        self.requests(seed, requests, &mut inputs);
        every(seed, STORMS, self.storm_us, end_us, |at_us, _| {
            let arrived = requests.partition_point(|input| input.at_us <= at_us);
            let first = arrived.saturating_sub(self.storm_requests as usize);
            for input in &requests[first..arrived] {
                if let Action::Add(ask) = input.action {
                    inputs.push(Input { at_us, action: Action::Abort { id: ask.id } });
                }
            }
        });
        every(seed, LOADS, self.load_fail_us, end_us, |at_us, random| {
            let adapter = random.below(adapters) as u32;
            inputs.push(Input { at_us, action: Action::FailLoad { adapter } });
        });
        every(seed, SLOW, self.load_slow_us, end_us, |at_us, random| {
            let (adapter, percent) = (random.below(adapters) as u32, self.load_slow_percent as u32);
            inputs.push(Input { at_us, action: Action::SlowLoad { adapter, percent } });
        });
        every(seed, PLANS, self.plan_fail_us, end_us, |at_us, _| {
            inputs.push(Input { at_us, action: Action::FailPlan });
        });
        every(seed, CHURN, self.churn_us, end_us, |at_us, random| {
            let (adapter, after_us) =
                (random.below(adapters) as u32, random.exponential(self.churn_after_us));
            let pages = sizes.get(random.below(sizes.len() as u64) as usize).copied().unwrap_or(1);
            inputs.push(Input { at_us, action: Action::Unregister { adapter } });
            let action = Action::Register { adapter, pages, layers };
            inputs.push(Input { at_us: at_us.saturating_add(after_us), action });
        });
        inputs
    }

    fn requests(&self, seed: u64, requests: &[Input], inputs: &mut Vec<Input>) {
        let mut random = Random::fork(seed, REQUESTS);
        for &Input { at_us, action } in requests {
            let Action::Add(ask) = action else { continue };
            if random.chance(self.abort_milli) {
                let at_us = at_us.saturating_add(random.exponential(self.abort_after_us));
                inputs.push(Input { at_us, action: Action::Abort { id: ask.id } });
            }
            if random.chance(self.row_fail_milli) {
                inputs.push(Input { at_us, action: Action::FailRow { id: ask.id } });
            }
        }
    }
}

/// Calls `happens` at random times until `end_us`, `gap_us` apart on average; never when that is 0.
fn every(seed: u64, purpose: u64, gap_us: u64, end_us: u64, mut happens: impl FnMut(u64, &mut Random)) {
    if gap_us == 0 {
        return;
    }
    let mut random = Random::fork(seed, purpose << 32);
    let mut at_us = random.exponential(gap_us).max(1);
    while at_us <= end_us {
        happens(at_us, &mut random);
        at_us = at_us.saturating_add(random.exponential(gap_us).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Arrivals, Load};

    #[test]
    fn faults_come_as_often_as_asked() {
        let arrivals = Arrivals::Poisson { gap_us: 1000 };
        let requests = Load { requests: 1000, arrivals, ..Load::default() }.requests(1, 4096);
        let faults = Faults {
            abort_milli: 100,
            abort_after_us: 5000,
            storm_us: 100_000,
            storm_requests: 20,
            load_fail_us: 20_000,
            load_slow_us: 10_000,
            load_slow_percent: 300,
            row_fail_milli: 50,
            plan_fail_us: 50_000,
            churn_us: 25_000,
            churn_after_us: 1000,
        };
        let inputs = faults.inputs(2, &requests, 7, &[3, 4], 2);
        let count = |name: &str| inputs.iter().filter(|input| input.to_string().contains(name)).count();
        let counts = ["abort", "fail_load", "slow_load", "fail_row", "fail_plan", "unregister"].map(count);
        let bounds = [200..450, 25..80, 60..140, 25..80, 8..40, 20..65];
        for (count, bound) in counts.into_iter().zip(bounds) {
            assert!(bound.contains(&count), "{counts:?}");
        }
        assert_eq!(count(" register"), count("unregister"));
        assert!(Faults::default().inputs(2, &requests, 7, &[3], 2).is_empty());
        assert!(faults.inputs(2, &[], 7, &[3], 2).is_empty());
    }
}
