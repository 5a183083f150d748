//! Many runs together: sums of their numbers, and the longest wait of them all.

use std::collections::BTreeMap;
use std::fmt;

use crate::report::Report;

/// Numbers that mean nothing as a sum.
const NOT_SUMMED: [&str; 4] = ["fingerprint", "longest_wait_milli", "page_in_bytes", "tokens_out_ks"];

/// Sums over runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    runs: u64,
    sums: BTreeMap<&'static str, u64>,
    longest_wait_milli: u64,
}

impl Sums {
    /// Takes a run in.
    pub fn add(&mut self, report: &Report) {
        self.runs += 1;
        let longest = report.numbers.longest_wait_milli;
        self.longest_wait_milli = self.longest_wait_milli.max(longest);
        let all = &report.all;
        let ends = [
            ("requests", all.requests),
            ("answered", all.finished),
            ("refused", all.refused),
            ("aborted", all.aborted),
            ("failed", all.failed),
        ];
        let numbers = report.numbers.named().into_iter().filter(|(name, _)| !NOT_SUMMED.contains(name));
        for (name, number) in numbers.chain(ends) {
            let sum = self.sums.entry(name).or_default();
            *sum = sum.saturating_add(number);
        }
    }

    /// A sum.
    pub fn sum(&self, name: &str) -> u64 {
        self.sums.get(name).copied().unwrap_or(0)
    }

    /// Steps of all runs.
    pub fn steps(&self) -> u64 {
        self.sum("steps")
    }

    /// The longest wait of all, in thousandths of its bound.
    pub fn longest_wait_milli(&self) -> u64 {
        self.longest_wait_milli
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, sum) in &self.sums {
            writeln!(f, "{name:<18} {sum:>16}")?;
        }
        writeln!(f, "{:<18} {:>16}", "longest_wait", Share(self.longest_wait_milli).to_string())?;
        // a run that leaves any behind is a failure, so there is a sum only when none did
        writeln!(f, "pages, slots and counters were back where they began after each of {} runs", self.runs)
    }
}

/// Thousandths, printed as percent.
pub struct Share(pub u64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}%", self.0 / 10, self.0 % 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Class, Numbers};

    #[test]
    fn waits_are_not_added_up() {
        let mut sums = Sums::default();
        for wait in [120, 431, 7] {
            let numbers =
                Numbers { steps: 10, longest_wait_milli: wait, fingerprint: u64::MAX, ..Numbers::default() };
            let all = Class { requests: 3, finished: 2, refused: 1, ..Class::default() };
            sums.add(&Report { numbers, all, ..Report::default() });
        }
        assert_eq!((sums.steps(), sums.sum("answered"), sums.longest_wait_milli()), (30, 6, 431));
        let text = sums.to_string();
        assert!(text.contains("43.1%") && !text.contains("fingerprint"), "{text}");
    }
}
