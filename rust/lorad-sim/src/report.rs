//! What a run came to: numbers, and how long each class of requests waited.

use std::collections::BTreeMap;
use std::fmt;

/// Figures of a set of times, in microseconds, by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Times in the set; all else is 0 when there are none.
    pub count: u64,
    /// The smallest time that half of them don't exceed.
    pub p50: u64,
    /// As `p50`, for 90 of a hundred.
    pub p90: u64,
    /// As `p50`, for 99 of a hundred.
    pub p99: u64,
    /// The largest.
    pub max: u64,
    /// The mean, rounded down.
    pub mean: u64,
}

impl Percentiles {
    /// Of these times; sorts them.
    pub fn of(times: &mut [u64]) -> Self {
        times.sort_unstable();
        let count = times.len() as u64;
        let rank = |percent: u64| {
            let rank = (count * percent).div_ceil(100).max(1);
            times.get(rank as usize - 1).copied().unwrap_or(0)
        };
        let sum: u128 = times.iter().copied().map(u128::from).sum();
        let mean = sum.checked_div(u128::from(count)).unwrap_or(0) as u64;
        Self { count, p50: rank(50), p90: rank(90), p99: rank(99), max: rank(100), mean }
    }
}

/// Requests that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// `all`, `tenant 3`, `adapter 17`, `base`.
    pub name: String,
    /// Requests that were asked for.
    pub requests: u64,
    /// Refused at the door.
    pub refused: u64,
    /// Answered in full.
    pub finished: u64,
    /// Taken back.
    pub aborted: u64,
    /// Failed.
    pub failed: u64,
    /// Tokens of answers, of requests that didn't finish too.
    pub tokens: u64,
    /// From arrival to the first admission, of those that were admitted.
    pub wait_us: Percentiles,
    /// From arrival to the first token, of those that got one.
    pub ttft_us: Percentiles,
    /// From arrival to the last token, of those that were answered in full.
    pub total_us: Percentiles,
}

/// Numbers of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it; units are in them
pub struct Numbers {
    /// Virtual time from the start to the last answer.
    pub virtual_us: u64,
    /// Of this, time in steps.
    pub steps_us: u64,
    /// Time of all page-ins together.
    pub page_ins_us: u64,
    /// Plans.
    pub steps: u64,
    /// Rows of all plans.
    pub rows: u64,
    /// Distinct adapters of all plans.
    pub groups: u64,
    /// Tokens computed, prompts and what was computed again included.
    pub tokens_computed: u64,
    /// Tokens of answers.
    pub tokens_out: u64,
    /// Tokens of answers per 1000 seconds of virtual time.
    pub tokens_out_ks: u64,
    pub page_ins: u64,
    pub page_ins_failed: u64,
    pub page_in_pages: u64,
    /// 0 when the scenario has no model to say how large a page is.
    pub page_in_bytes: u64,
    pub evictions: u64,
    pub preemptions: u64,
    /// Groups that the others made way for.
    pub urgent: u64,
    /// Tokens that weren't computed because their KV was there.
    pub prefix_tokens: u64,
    /// The longest wait, in thousandths of its bound; 0 when waits aren't compared.
    pub longest_wait_milli: u64,
    /// A hash of all plans and events.
    pub fingerprint: u64,
}

impl Numbers {
    /// Names and numbers, for hosts that export them.
    pub fn named(&self) -> [(&'static str, u64); 19] {
        [
            ("virtual_us", self.virtual_us),
            ("steps_us", self.steps_us),
            ("page_ins_us", self.page_ins_us),
            ("steps", self.steps),
            ("rows", self.rows),
            ("groups", self.groups),
            ("tokens_computed", self.tokens_computed),
            ("tokens_out", self.tokens_out),
            ("tokens_out_ks", self.tokens_out_ks),
            ("page_ins", self.page_ins),
            ("page_ins_failed", self.page_ins_failed),
            ("page_in_pages", self.page_in_pages),
            ("page_in_bytes", self.page_in_bytes),
            ("evictions", self.evictions),
            ("preemptions", self.preemptions),
            ("urgent", self.urgent),
            ("prefix_tokens", self.prefix_tokens),
            ("longest_wait_milli", self.longest_wait_milli),
            ("fingerprint", self.fingerprint),
        ]
    }
}

/// What a scenario came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The scenario's name.
    pub name: String,
    /// The numbers.
    pub numbers: Numbers,
    /// All requests.
    pub all: Class,
    /// By tenant, in the order of their numbers.
    pub tenants: Vec<Class>,
    /// By adapter, in the order of their names; the base first.
    pub adapters: Vec<Class>,
    /// Refusals by their code.
    pub refusals: BTreeMap<&'static str, u64>,
    /// The core's state at the very end, everything unregistered.
    pub dump: String,
}

/// Tenants and adapters that a printed report has at most, those with the most requests.
const CLASSES_PRINTED: usize = 10;

/// Head of the table of classes.
const HEAD: &str = "class         asked refused finished aborted failed   tokens |  wait p50      p99      max |  TTFT p50      p99 | total p50      p99";

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12} {:>6} {:>7} {:>8}", self.name, self.requests, self.refused, self.finished)?;
        write!(f, " {:>7} {:>6} {:>8} |", self.aborted, self.failed, self.tokens)?;
        let Class { wait_us, ttft_us, total_us, .. } = self;
        write!(f, " {:>9} {:>8} {:>8} |", Ms(wait_us.p50), Ms(wait_us.p99), Ms(wait_us.max))?;
        write!(
            f,
            " {:>9} {:>8} | {:>9} {:>8}",
            Ms(ttft_us.p50),
            Ms(ttft_us.p99),
            Ms(total_us.p50),
            Ms(total_us.p99)
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "scenario {}", self.name)?;
        for (name, number) in self.numbers.named() {
            match name {
                "fingerprint" => writeln!(f, "{name} {number:016x}")?,
                _ => writeln!(f, "{name} {number}")?,
            }
        }
        for (code, count) in &self.refusals {
            writeln!(f, "refused_{code} {count}")?;
        }
        writeln!(f, "{HEAD} (ms)\n{}", self.all)?;
        for classes in [&self.tenants, &self.adapters] {
            let mut busiest: Vec<&Class> = classes.iter().collect();
            busiest.sort_by_key(|class| std::cmp::Reverse(class.requests)); // stable: by number where they are alike
            busiest.iter().take(CLASSES_PRINTED).try_for_each(|class| writeln!(f, "{class}"))?;
            if busiest.len() > CLASSES_PRINTED {
                writeln!(f, "… {} more", busiest.len() - CLASSES_PRINTED)?;
            }
        }
        Ok(())
    }
}

/// Microseconds, printed as milliseconds.
struct Ms(u64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}", self.0 / 1000, self.0 % 1000 / 100))
    }
}

/// Reports beside each other, one line each.
pub fn table(reports: &[Report]) -> String {
    let mut text = format!(
        "{:<24} {:>9} {:>9} {:>9} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}\n",
        "scenario",
        "tok/s",
        "TTFT p50",
        "p99 (ms)",
        "page-ins",
        "evicted",
        "preempted",
        "finished",
        "refused",
        "steps"
    );
    for report in reports {
        let Report { name, numbers, all, .. } = report;
        let rate = format!("{}.{}", numbers.tokens_out_ks / 1000, numbers.tokens_out_ks % 1000 / 100);
        let (p50, p99) = (Ms(all.ttft_us.p50), Ms(all.ttft_us.p99));
        text.push_str(&format!("{name:<24} {rate:>9} {p50:>9} {p99:>9} {:>8} ", numbers.page_ins));
        text.push_str(&format!("{:>8} {:>9} ", numbers.evictions, numbers.preemptions));
        text.push_str(&format!("{:>9} {:>9} {:>9}\n", all.finished, all.refused, numbers.steps));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn percentiles_are_those_of_counting() {
        let mut random = Random::new(11);
        for count in (0..130).chain([1000, 1001]) {
            let mut times: Vec<u64> = (0..count).map(|_| random.below(500)).collect();
            let naive = |percent: usize| {
                // the smallest time that at least so many of a hundred don't exceed
                let covered = |time: u64| times.iter().filter(|&&other| other <= time).count() * 100;
                times
                    .iter()
                    .copied()
                    .filter(|&time| covered(time) >= percent * times.len())
                    .min()
                    .unwrap_or(0)
            };
            let expected = [naive(50), naive(90), naive(99), naive(100)];
            let found = Percentiles::of(&mut times);
            assert_eq!([found.p50, found.p90, found.p99, found.max], expected, "{count}");
            assert_eq!(found.count, count);
        }
        assert_eq!(Percentiles::of(&mut [3, 1, 2]).mean, 2);
    }
}
