//! What a step made, as a number: by it a replay knows that it makes the same.

use std::fmt::{self, Write};

use super::error::Mistake;
use super::fields::{Fields, Reader, Writer};
use super::value::Value;
use crate::{Core, StepError};

/// The plan of a step. Token ids don't count: what was redacted compares equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saw {
    /// The plan's number, `None` when there is none.
    pub plan: Option<u64>,
    /// Digest of the plan's text; 0 when nothing could run, 1 when the step was refused.
    pub digest: u64,
}

/// The line's name.
pub(crate) const SAW: &str = "saw";

impl Saw {
    /// What `core` made of a step.
    pub(crate) fn new(core: &Core, plan: &[i32], made: Result<Option<u64>, StepError>) -> Self {
        match made {
            Ok(Some(number)) => {
                let mut digest = Fnv(0xcbf2_9ce4_8422_2325);
                // the digest takes every text
                let _ = write!(digest, "{}", core.plan_layout().view(plan));
                Self { plan: Some(number), digest: digest.0 }
            }
            Ok(None) => Self { plan: None, digest: 0 },
            Err(_) => Self { plan: None, digest: 1 },
        }
    }

    fn fields(&mut self, fields: &mut impl Fields) {
        let mut hex = Hex(self.digest);
        fields.unless("plan", &mut self.plan, None);
        fields.field("digest", &mut hex);
        self.digest = hex.0;
    }

    /// From what follows the line's name.
    pub(crate) fn read(rest: &str) -> Result<Self, Mistake> {
        let (mut saw, mut reader) = (Self { plan: None, digest: 0 }, Reader::new(rest));
        saw.fields(&mut reader);
        reader.end()?;
        Ok(saw)
    }

    /// As a line.
    pub(crate) fn write(mut self, text: &mut String) {
        text.push_str(SAW);
        self.fields(&mut Writer(text));
        text.push('\n');
    }
}

impl fmt::Display for Saw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.plan {
            Some(plan) => write!(f, "plan {plan} ({:016x})", self.digest),
            None if self.digest == 0 => write!(f, "no plan"),
            None => write!(f, "a refusal"),
        }
    }
}

struct Hex(u64);

impl Value for Hex {
    fn write(&self, text: &mut String) {
        let _ = write!(text, "{:016x}", self.0);
    }
    fn read(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Hex)
    }
}

/// FNV-1a over the bytes of a text, without keeping the text.
struct Fnv(u64);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(())
    }
}
