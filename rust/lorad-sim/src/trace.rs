//! A trace: what happens to the engine from outside, and when. Plain data, one line each.
//!
//! ```text
//! 0 register 3 pages=27 layers=30
//! 1500 add 17 tenant=2 adapter=3 prompt=128 max=64 stop=20
//! 9000 abort 17
//! 9000 unregister 3
//! 9100 fail_load 3
//! 9100 slow_load 3 percent=400
//! 9200 fail_row 17
//! 9300 fail_plan
//! ```
//!
//! Any part of a trace is a trace: what names an adapter or a request that isn't there is refused or does nothing.

use std::fmt;

use crate::error::SimError;
use crate::text::Line;

/// A request, as the trace gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Its number, not used twice at the same time.
    pub id: u64,
    /// Who asks.
    pub tenant: u32,
    /// The adapter's name in the trace, `None` for the base.
    pub adapter: Option<u32>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer at most.
    pub max_tokens: u32,
    /// The model ends the answer with its so manieth token; 0: it never does.
    pub stop_after: u32,
    /// Its prompt begins as that of this request, as far as both go; 0: as no other's.
    pub like: u64,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A new generation of an adapter under this name. The older one drains: requests that hold it keep it.
    Register {
        /// The name.
        adapter: u32,
        /// Pages of its image.
        pages: u32,
        /// Layers of its image.
        layers: u32,
    },
    /// The adapter takes no new requests.
    Unregister {
        /// The name.
        adapter: u32,
    },
    /// A request arrives.
    Add(Ask),
    /// A request is taken back.
    Abort {
        /// Its number.
        id: u64,
    },
    /// The next page-in of this adapter fails.
    FailLoad {
        /// The name.
        adapter: u32,
    },
    /// The next page-in of this adapter takes so many percent of its time.
    SlowLoad {
        /// The name.
        adapter: u32,
        /// 100 is its usual time.
        percent: u32,
    },
    /// The worker refuses the next row of this request that samples.
    FailRow {
        /// The request.
        id: u64,
    },
    /// The worker loses the next plan.
    FailPlan,
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Virtual time, in microseconds.
    pub at_us: u64,
    /// What.
    pub action: Action,
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.at_us)?;
        match self.action {
            Action::Register { adapter, pages, layers } => {
                write!(f, "register {adapter} pages={pages} layers={layers}")
            }
            Action::Unregister { adapter } => write!(f, "unregister {adapter}"),
            Action::Add(ask) => {
                write!(f, "add {} tenant={}", ask.id, ask.tenant)?;
                if let Some(adapter) = ask.adapter {
                    write!(f, " adapter={adapter}")?;
                }
                write!(f, " prompt={} max={}", ask.prompt, ask.max_tokens)?;
                if ask.stop_after > 0 {
                    write!(f, " stop={}", ask.stop_after)?;
                }
                if ask.like > 0 {
                    write!(f, " like={}", ask.like)?;
                }
                Ok(())
            }
            Action::Abort { id } => write!(f, "abort {id}"),
            Action::FailLoad { adapter } => write!(f, "fail_load {adapter}"),
            Action::SlowLoad { adapter, percent } => write!(f, "slow_load {adapter} percent={percent}"),
            Action::FailRow { id } => write!(f, "fail_row {id}"),
            Action::FailPlan => write!(f, "fail_plan"),
        }
    }
}

/// Inputs in the order of their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    inputs: Vec<Input>,
}

impl Trace {
    /// Sorts by time; inputs of the same time stay in their order.
    pub fn new(mut inputs: Vec<Input>) -> Self {
        inputs.sort_by_key(|input| input.at_us);
        Self { inputs }
    }

    /// Reads the text form. Fails with the first line that it doesn't understand.
    pub fn parse(text: &str) -> Result<Self, SimError> {
        let inputs = Line::all(text).map(|mut line| {
            let at_us = line.number()?;
            let action = match line.word()? {
                "register" => Action::Register {
                    adapter: line.number()?,
                    pages: line.needed("pages")?,
                    layers: line.value("layers")?.unwrap_or(1),
                },
                "unregister" => Action::Unregister { adapter: line.number()? },
                "add" => Action::Add(Ask {
                    id: line.number()?,
                    tenant: line.value("tenant")?.unwrap_or(0),
                    adapter: line.value("adapter")?,
                    prompt: line.needed("prompt")?,
                    max_tokens: line.needed("max")?,
                    stop_after: line.value("stop")?.unwrap_or(0),
                    like: line.value("like")?.unwrap_or(0),
                }),
                "abort" => Action::Abort { id: line.number()? },
                "fail_load" => Action::FailLoad { adapter: line.number()? },
                "slow_load" => Action::SlowLoad { adapter: line.number()?, percent: line.needed("percent")? },
                "fail_row" => Action::FailRow { id: line.number()? },
                "fail_plan" => Action::FailPlan,
                other => return Err(line.mistake(format!("unknown input {other}"))),
            };
            line.end()?;
            Ok(Input { at_us, action })
        });
        Ok(Self::new(inputs.collect::<Result<_, _>>()?))
    }

    /// The inputs.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Without the requests of all other tenants: what one tenant would see alone. Adapters and faults stay.
    pub fn only_tenant(&self, tenant: u32) -> Self {
        let theirs = |input: &&Input| !matches!(input.action, Action::Add(ask) if ask.tenant != tenant);
        Self { inputs: self.inputs.iter().filter(theirs).copied().collect() }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inputs.iter().try_for_each(|input| writeln!(f, "{input}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0 register 3 pages=27 layers=30\n\
                        5 add 17 tenant=2 adapter=3 prompt=128 max=64 stop=20\n\
                        5 add 18 tenant=0 prompt=1 max=2 like=17\n\
                        9 abort 17\n\
                        9 unregister 3\n\
                        9 fail_load 3\n\
                        9 slow_load 3 percent=400\n\
                        9 fail_row 17\n\
                        10 fail_plan\n";

    #[test]
    fn a_trace_is_written_and_read_back() {
        let trace = Trace::parse(TEXT).unwrap();
        assert_eq!(trace.inputs().len(), 9);
        assert_eq!(trace.to_string(), TEXT);
        assert_eq!(Trace::parse("# nothing\n\n  # at all\n").unwrap(), Trace::default());
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line, what) in [
            ("0 fly 3", 1, "unknown input fly"),
            ("\n0 abort x", 2, "x isn't a number that fits here"),
            ("0 add 1 prompt=3", 1, "max= is missing"),
            ("0 abort", 1, "a word or number is missing"),
            ("0 abort 1 2", 1, "unknown word 2"),
            ("0 fail_plan now=1", 1, "unknown key now"),
        ] {
            assert_eq!(Trace::parse(text), Err(SimError::Text { line, what: what.into() }));
        }
    }

    #[test]
    fn one_tenant_alone_keeps_adapters_and_faults() {
        let alone = Trace::parse(TEXT).unwrap().only_tenant(2);
        assert_eq!(alone.inputs().len(), 8);
        assert!(!alone.to_string().contains("add 18"));
    }
}
