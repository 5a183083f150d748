//! Memory that will be read soon, brought near while something else is computed.
//!
//! A product with a few rows is bound by arithmetic, adding adapters to it by memory: their weights are fetched during the
//! product, a few cache lines at each step of its loop. Fetching them at once would only wait for them at once.
#![allow(unsafe_code)] // the intrinsic

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a page of the smallest kind.
const PAGE: usize = 4096;

/// Runs of memory, and how far they have been fetched.
#[derive(Default)]
pub struct Fetch {
    /// Where a run begins, and its lines.
    runs: Vec<(usize, usize)>,
    lines: usize,
    at: usize,
    next: usize,
    left: usize,
    per_step: usize,
}

impl Fetch {
    /// Forgets all runs.
    pub fn clear(&mut self) {
        self.runs.clear();
        (self.lines, self.at, self.left, self.per_step) = (0, 0, 0, 0);
    }

    /// Another run.
    pub fn add(&mut self, bytes: &[u8]) {
        let begin = bytes.as_ptr() as usize / LINE * LINE;
        let lines = (bytes.as_ptr() as usize + bytes.len() - begin).div_ceil(LINE);
        self.runs.push((begin, lines));
        self.lines += lines;
    }

    /// From here on, each of `steps` steps fetches its share.
    pub fn spread(&mut self, steps: usize) {
        self.per_step = self.lines.div_ceil(steps.max(1));
        if let Some(&(begin, _)) = self.runs.first() {
            touch(begin);
        }
    }

    /// Fetches a step's share into the second-level cache.
    #[inline(always)]
    pub fn step(&mut self) {
        for _ in 0..self.per_step {
            if self.left == 0 {
                let Some(&(begin, lines)) = self.runs.get(self.at) else {
                    self.per_step = 0;
                    return;
                };
                (self.next, self.left) = (begin, lines);
                self.at += 1;
                self.announce();
            } else if self.next.is_multiple_of(PAGE) {
                self.announce();
            }
            touch(self.next);
            self.next += LINE;
            self.left -= 1;
        }
    }

    /// Touches the page after the one that begins, or the next run's first.
    #[cold]
    fn announce(&self) {
        let page = self.next / PAGE * PAGE + PAGE;
        if page < self.next + self.left * LINE {
            touch(page);
        } else if let Some(&(begin, _)) = self.runs.get(self.at) {
            touch(begin);
        }
    }
}

/// Asks for a line.
#[inline(always)]
fn touch(line: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has this instruction, and it can't fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_once_and_no_more() {
        let bytes = vec![0u8; 1000];
        for steps in [0, 1, 3, 100] {
            let mut fetch = Fetch::default();
            fetch.add(&bytes[1..2]);
            fetch.add(&bytes[100..900]);
            fetch.spread(steps);
            assert!(fetch.per_step * steps.max(1) >= fetch.lines);
            for _ in 0..steps.max(1) {
                fetch.step();
            }
            assert_eq!((fetch.at, fetch.left), (2, 0));
            fetch.step();
            assert_eq!(fetch.per_step, 0);
            fetch.clear();
            fetch.spread(5);
            fetch.step();
            assert_eq!(fetch.lines, 0);
        }
    }
}
