//! The calls to the core as a script of `lorad_sched::script`: it makes the same core do the same without this crate.

use std::fmt::Write;

/// Writes down calls, one line each.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    text: String,
    /// The time that the script has after the last line.
    script_us: u64,
}

/// Scripts count a step 1000 µs after the time it's given at: all their times are later by this much.
const SHIFT_US: u64 = 1000;

impl Recorder {
    /// A call that isn't a step.
    pub fn call(&mut self, now_us: u64, call: &str) {
        let at_us = now_us.saturating_add(SHIFT_US);
        self.text.push_str(call);
        if at_us != self.script_us {
            self.script_us = at_us;
            // writing to a String can't fail
            let _ = write!(self.text, " at={at_us}");
        }
        self.text.push('\n');
    }

    /// A step.
    pub fn step(&mut self, now_us: u64) {
        self.script_us = now_us.saturating_add(SHIFT_US);
        let _ = writeln!(self.text, "step at={now_us}");
    }

    /// The script.
    pub fn text(&self) -> &str {
        &self.text
    }
}
