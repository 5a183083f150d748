//! A fleet whose replicas are real cores: what is simulated, as text.

use std::fmt;

use super::scenario::Routing;
use crate::error::SimError;
use crate::scenario::Scenario;
use crate::text::Line;

/// A replica that isn't there for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down {
    /// Which.
    pub replica: usize,
    /// It dies at this time, µs, with all it has in flight; 0: it isn't there yet.
    pub from_us: u64,
    /// It joins then, empty.
    pub until_us: u64,
}

impl Down {
    /// Reads `replica:from_us:until_us`.
    fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let &[replica, from_us, until_us] = numbers.as_slice() else { return None };
        (from_us < until_us).then_some(Self { replica: usize::try_from(replica).ok()?, from_us, until_us })
    }
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.replica, self.from_us, self.until_us)
    }
}

/// What is simulated. Times are in µs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoresScenario {
    /// Replicas, all alike.
    pub replicas: usize,
    /// How requests are sent.
    pub routing: Routing,
    /// A first token that comes later than this is late.
    pub late_us: u64,
    /// Each replica publishes its inventory so often.
    pub publish_us: u64,
    /// The router hears it so much later.
    pub delay_us: u64,
    /// Replicas that aren't there for a while.
    pub downs: Vec<Down>,
    /// A replica's core, model and costs, and what is asked of the fleet.
    pub replica: Scenario,
}

/// What isn't named: an 8B on one H200 each, 400 adapters of rank 16 by Zipf's law, pages for some 64 of them and the KV of some
/// 20 requests; 133 requests a second are nearly all that the replicas can do. One line, so that mistakes have the caller's.
const USUAL: &str = "name=cores model=llama-8b-h200 adapters=400 ranks=16 zipf_milli=1000 requests=4000 \
    arrivals=poisson:7500 prompt=lognormal:400:500 answer=uniform:64:512 pages=3700 rows_max=256 tokens_max=2048 \
    prefill_chunk_max=1024 slots_max=256 adapters_step_max=256 page_ins_max=4 sequence_tokens_max=4096 audit=0";

/// More would only take long.
const REPLICAS_MAX: u64 = 1000;
const TIME_MAX: u64 = 1 << 40;

impl CoresScenario {
    /// Reads `key=value` pairs: the fields' names here (`down=replica:from_us:until_us`, several by commas), else those of
    /// [`Scenario::parse`]. A later pair wins. What isn't named is an 8B on 8 GPUs with more adapters than fit.
    pub fn parse(text: &str) -> Result<Self, SimError> {
        let mut scenario = Self {
            replicas: 8,
            routing: Routing::RoundRobin,
            late_us: 600_000,
            publish_us: 50_000,
            delay_us: 1000,
            downs: Vec::new(),
            replica: Scenario::default(),
        };
        let (mut rest, mut written) = (format!("{USUAL} "), 1);
        for mut line in Line::all(text) {
            while written < line.place() {
                rest.push('\n'); // so that mistakes have the line that they are in
                written += 1;
            }
            while let Some((key, value)) = line.pair() {
                if !scenario.set(&line, key, value)? {
                    rest.push_str(&format!("{key}={value} "));
                }
            }
            line.end()?;
        }
        scenario.replica = Scenario::parse(&rest)?;
        match scenario.downs.iter().find(|down| down.replica >= scenario.replicas) {
            Some(down) => Err(SimError::Value {
                line: 1,
                field: "down".to_string(),
                value: down.to_string(),
                wants: format!("a replica from 0 to {}", scenario.replicas - 1),
            }),
            None => Ok(scenario),
        }
    }

    /// Whether the key is one of the fleet's.
    fn set(&mut self, line: &Line<'_>, key: &str, value: &str) -> Result<bool, SimError> {
        let wrong = |wants: String| SimError::Value {
            line: line.place(),
            field: key.to_string(),
            value: value.to_string(),
            wants,
        };
        let number = |least: u64, most: u64| {
            let found = value.parse().ok().filter(|number| (least..=most).contains(number));
            found.ok_or_else(|| wrong(format!("{least} to {most}")))
        };
        match key {
            "replicas" => self.replicas = number(1, REPLICAS_MAX)? as usize,
            "late_us" => self.late_us = number(0, u64::MAX)?,
            "publish_us" => self.publish_us = number(1000, TIME_MAX)?,
            "delay_us" => self.delay_us = number(0, TIME_MAX)?,
            "routing" => {
                self.routing =
                    Routing::parse(value).ok_or_else(|| wrong(super::scenario::ROUTINGS.to_string()))?;
            }
            "down" => {
                let downs = value.split(',').map(Down::parse).collect::<Option<_>>();
                self.downs = downs.ok_or_else(|| wrong("replica:from_us:until_us".to_string()))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// KiB of a page; 1 where no model says it.
    pub fn page_kib(&self) -> u64 {
        (self.replica.page_bytes() / 1024).max(1)
    }
}
