//! A scenario: all that decides a run, as plain data with a text form of `key=value` lines.
//!
//! ```text
//! name=flood seed=7
//! model=smollm2-135m-2core        # costs and page size; or step_ns=… and the other costs
//! ranks=8,16,64                   # one of them per adapter; or adapter_pages=2,7
//! adapters=200 tenants=10 requests=2000 arrivals=poisson:9000 flood_tenant=3 flood_times=10
//! prompt=lognormal:100:600 answer=uniform:16:96
//! pages=4096 rows_max=32          # limits of the core, as in its Config
//! ```
//!
//! | value | forms |
//! | --- | --- |
//! | `arrivals` | `at_once`, `poisson:gap_us`, `bursts:gap_us:on_us:off_us` |
//! | `prompt`, `answer` | `fixed:n`, `uniform:least:most`, `lognormal:median:sigma_milli` |
//! | `order` | `fair`, `arrival`, `affinity` |
//! | `eviction` | `cost`, `lru` |
//! | `split` | `unified`, `fixed:pages`, `slots:count:pages` |
//! | `during`, `audit`, `waits`, `prefix_cache` | 0, 1 |

use std::fmt;

use lorad_sched::{Config, Eviction, Order, Split};

use crate::error::SimError;
use crate::faults::Faults;
use crate::load::{Arrivals, Lengths, Load};
use crate::model::{Model, Typical, MODELS};
use crate::random::Random;
use crate::run::Host;
use crate::text::Line;
use crate::trace::{Action, Input, Trace};

/// How large adapters are: each one has one of these, drawn from the seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Ranks on all linear modules; needs a model.
    Ranks(Vec<u32>),
    /// Pages.
    Pages(Vec<u32>),
}

/// A scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Its name in reports.
    pub name: String,
    /// Decides everything that is drawn.
    pub seed: u64,
    /// Says what ranks and pages are in bytes. Its costs are in `config` already.
    pub model: Option<Model>,
    /// How large adapters are.
    pub sizes: Sizes,
    /// The core's limits, costs and policy.
    pub config: Config,
    /// Who asks for what.
    pub load: Load,
    /// What goes wrong.
    pub faults: Faults,
    /// The host.
    pub host: Host,
    /// Leave the requests of all other tenants out.
    pub only_tenant: Option<u32>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            name: "unnamed".to_string(),
            seed: 1,
            model: None,
            sizes: Sizes::Pages(vec![4]),
            config: Config::default(),
            load: Load::default(),
            faults: Faults::default(),
            host: Host::default(),
            only_tenant: None,
        }
    }
}

/// Purpose of the random stream of sizes, apart from those of load and faults.
const SIZES: u64 = 31;

impl Scenario {
    /// Bytes of a page, 0 when there is no model to say it.
    pub fn page_bytes(&self) -> u64 {
        self.model.map_or(0, |model| model.shape.page_bytes(self.config.page_tokens))
    }

    /// Pages of an adapter, one entry for each rank or size that the scenario names. Fails when one can't be laid out, or
    /// there is no model to do it.
    pub fn adapter_pages(&self) -> Result<Vec<u32>, SimError> {
        match (&self.sizes, self.model) {
            (Sizes::Pages(pages), _) => Ok(pages.clone()),
            (Sizes::Ranks(ranks), Some(model)) => {
                ranks.iter().map(|&rank| model.shape.adapter_pages(rank, self.config.page_tokens)).collect()
            }
            (Sizes::Ranks(_), None) => {
                Err(SimError::Text { line: 0, what: "ranks= needs model=".to_string() })
            }
        }
    }

    /// What happens, from the seed. Fails as [`Scenario::check`] and [`Scenario::adapter_pages`] do.
    pub fn trace(&self) -> Result<Trace, SimError> {
        self.check()?;
        let (sizes, layers) = (self.adapter_pages()?, self.model.map_or(1, |model| model.shape.layers));
        let mut random = Random::fork(self.seed, SIZES);
        let mut inputs: Vec<Input> = Vec::new();
        for adapter in 0..self.load.adapters as u32 {
            let pages = sizes.get(random.below(sizes.len() as u64) as usize).copied().unwrap_or(1);
            inputs.push(Input { at_us: 0, action: Action::Register { adapter, pages, layers } });
        }
        let requests = self.load.requests(self.seed, self.config.sequence_tokens_max);
        let faults = self.faults.inputs(self.seed, &requests, self.load.adapters, &sizes, layers);
        inputs.extend(requests);
        inputs.extend(faults);
        let trace = Trace::new(inputs);
        Ok(self.only_tenant.map(|tenant| trace.only_tenant(tenant)).unwrap_or(trace))
    }

    /// Reads the text form. What isn't named is as in [`Scenario::default`], but costs are those of the model, if one is
    /// named. Fails with the first line that it doesn't understand.
    pub fn parse(text: &str) -> Result<Self, SimError> {
        let mut scenario = Self::default();
        for mut line in Line::all(text) {
            while let Some((key, value)) = line.pair() {
                scenario.set(key, value).map_err(|mistake| mistake.at(&line, key, value))?;
            }
            line.end()?;
        }
        if let Some(model) = scenario.model {
            let typical =
                Typical { prompt: scenario.load.prompt.typical(), answer: scenario.load.answer.typical() };
            scenario.config.costs = model.costs(scenario.config.page_tokens, typical);
            // costs that are named win over the model's, wherever they stand
            for mut line in Line::all(text) {
                for (name, cost) in scenario.config.costs.fields_mut() {
                    if let Some(value) = line.value(name)? {
                        *cost = value;
                    }
                }
            }
        }
        Ok(scenario)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Mistake> {
        let policy = &mut self.config.policy;
        match key {
            "name" => self.name = value.to_string(),
            "model" if value == "none" => self.model = None,
            "model" => self.model = Some(Model::named(value).ok_or_else(model_names)?),
            "ranks" => self.sizes = Sizes::Ranks(list(value)?),
            "adapter_pages" => self.sizes = Sizes::Pages(list(value)?),
            "arrivals" => self.load.arrivals = arrivals(value).ok_or_else(|| wants(ARRIVALS))?,
            "prompt" => self.load.prompt = lengths(value).ok_or_else(|| wants(LENGTHS))?,
            "answer" => self.load.answer = lengths(value).ok_or_else(|| wants(LENGTHS))?,
            "order" => policy.order = named(&ORDERS, value)?,
            "eviction" => policy.eviction = named(&EVICTIONS, value)?,
            "split" => policy.split = split(value).ok_or_else(|| wants(SPLITS))?,
            "during" => self.host.during = flag(value)?,
            "audit" => self.host.audit = flag(value)?,
            "waits" => self.host.waits = flag(value)?,
            "only_tenant" => self.only_tenant = Some(number(value, u32::MAX.into())?),
            _ => {
                let numbers = self.numbers().into_iter();
                if let Some((_, field)) = numbers.into_iter().find(|(name, _)| *name == key) {
                    *field = number(value, u64::MAX)?;
                    return Ok(());
                }
                let nanoseconds = self.config.costs.fields_mut();
                if let Some((_, cost)) = nanoseconds.into_iter().find(|(name, _)| *name == key) {
                    *cost = number(value, u64::MAX)?;
                    return Ok(());
                }
                if let Some((_, time)) = self.config.times_mut().into_iter().find(|(name, _)| *name == key) {
                    *time = number(value, u64::MAX)?;
                    return Ok(());
                }
                if let Some((_, switch)) =
                    self.config.switches_mut().into_iter().find(|(name, _)| *name == key)
                {
                    *switch = flag(value)?;
                    return Ok(());
                }
                let limit = self.config.fields_mut().into_iter().find(|(name, _)| *name == key);
                let (_, limit) = limit.ok_or(Mistake::Unknown)?;
                *limit = number(value, u32::MAX.into())?;
            }
        }
        Ok(())
    }

    /// Everything that is a number and neither a limit nor a cost of the core.
    fn numbers(&mut self) -> [(&'static str, &mut u64); 25] {
        let Self { seed, load, faults, host, .. } = self;
        [
            ("seed", seed),
            ("tenants", &mut load.tenants),
            ("requests", &mut load.requests),
            ("flood_tenant", &mut load.flood_tenant),
            ("flood_times", &mut load.flood_times),
            ("adapters", &mut load.adapters),
            ("zipf_milli", &mut load.zipf_milli),
            ("drift_us", &mut load.drift_us),
            ("base_milli", &mut load.base_milli),
            ("stop_milli", &mut load.stop_milli),
            ("repeat_milli", &mut load.repeat_milli),
            ("abort_milli", &mut faults.abort_milli),
            ("abort_after_us", &mut faults.abort_after_us),
            ("storm_us", &mut faults.storm_us),
            ("storm_requests", &mut faults.storm_requests),
            ("load_fail_us", &mut faults.load_fail_us),
            ("load_slow_us", &mut faults.load_slow_us),
            ("load_slow_percent", &mut faults.load_slow_percent),
            ("row_fail_milli", &mut faults.row_fail_milli),
            ("plan_fail_us", &mut faults.plan_fail_us),
            ("churn_us", &mut faults.churn_us),
            ("churn_after_us", &mut faults.churn_after_us),
            ("noise_milli", &mut host.noise_milli),
            ("check_every", &mut host.check_every),
            ("steps_max", &mut host.steps_max),
        ]
    }
}

const ORDERS: [(&str, Order); 3] =
    [("fair", Order::Fair), ("arrival", Order::Arrival), ("affinity", Order::Affinity)];
const EVICTIONS: [(&str, Eviction); 2] = [("cost", Eviction::Cost), ("lru", Eviction::Lru)];

/// Why a pair can't be taken.
enum Mistake {
    /// There is no such key.
    Unknown,
    /// What its values are.
    Wants(String),
}

impl Mistake {
    fn at(self, line: &Line, key: &str, value: &str) -> SimError {
        let (line, field) = (line.place(), key.to_string());
        match self {
            Mistake::Unknown => SimError::Unknown { line, field },
            Mistake::Wants(wants) => SimError::Value { line, field, value: value.to_string(), wants },
        }
    }
}

const ARRIVALS: &str = "at_once, poisson:gap_us or bursts:gap_us:on_us:off_us";
const LENGTHS: &str = "fixed:n, uniform:least:most or lognormal:median:sigma_milli";
const SPLITS: &str = "unified, fixed:pages or slots:count:pages";

fn wants(what: &str) -> Mistake {
    Mistake::Wants(what.to_string())
}

fn model_names() -> Mistake {
    let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
    Mistake::Wants(format!("none, {}", names.join(", ")))
}

/// A whole number. Its type may be smaller than `most` only where `most` fits into it.
fn number<T: TryFrom<u64>>(text: &str, most: u64) -> Result<T, Mistake> {
    let found = text.parse::<u64>().ok().filter(|&number| number <= most);
    let fits = found.and_then(|number| T::try_from(number).ok());
    fits.ok_or_else(|| Mistake::Wants(format!("a whole number from 0 to {most}")))
}

fn list(value: &str) -> Result<Vec<u32>, Mistake> {
    value.split(',').map(|text| number(text, u32::MAX.into())).collect()
}

fn flag(value: &str) -> Result<bool, Mistake> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(wants("0 or 1")),
    }
}

fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Result<T, Mistake> {
    let found = table.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    let names = || table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
    found.ok_or_else(|| Mistake::Wants(names()))
}

fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, other)| other == value).map_or("", |(name, _)| name)
}

/// `name:number:number`.
fn parts(value: &str) -> Option<(&str, Vec<u64>)> {
    let mut parts = value.split(':');
    let name = parts.next()?;
    Some((name, parts.map(|part| part.parse().ok()).collect::<Option<_>>()?))
}

fn arrivals(value: &str) -> Option<Arrivals> {
    match parts(value).as_ref().map(|(name, numbers)| (*name, numbers.as_slice()))? {
        ("at_once", []) => Some(Arrivals::AtOnce),
        ("poisson", &[gap_us]) => Some(Arrivals::Poisson { gap_us }),
        ("bursts", &[gap_us, on_us, off_us]) => Some(Arrivals::Bursts { gap_us, on_us, off_us }),
        _ => None,
    }
}

fn lengths(value: &str) -> Option<Lengths> {
    match parts(value).as_ref().map(|(name, numbers)| (*name, numbers.as_slice()))? {
        ("fixed", &[tokens]) => Some(Lengths::Fixed(tokens)),
        ("uniform", &[least, most]) if least <= most => Some(Lengths::Uniform(least, most)),
        ("lognormal", &[median, sigma_milli]) => Some(Lengths::Lognormal(median, sigma_milli)),
        _ => None,
    }
}

fn split(value: &str) -> Option<Split> {
    let number = |number: u64| u32::try_from(number).ok();
    match parts(value).as_ref().map(|(name, numbers)| (*name, numbers.as_slice()))? {
        ("unified", []) => Some(Split::Unified),
        ("fixed", &[pages]) => Some(Split::Fixed { adapter_pages: number(pages)? }),
        ("slots", &[count, pages]) => Some(Split::Slots { count: number(count)?, pages: number(pages)? }),
        _ => None,
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "name={}\nmodel={}", self.name, self.model.map_or("none", |model| model.name))?;
        let (key, sizes) = match &self.sizes {
            Sizes::Ranks(ranks) => ("ranks", ranks),
            Sizes::Pages(pages) => ("adapter_pages", pages),
        };
        let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
        writeln!(f, "{key}={}", sizes.join(","))?;
        match self.load.arrivals {
            Arrivals::AtOnce => writeln!(f, "arrivals=at_once")?,
            Arrivals::Poisson { gap_us } => writeln!(f, "arrivals=poisson:{gap_us}")?,
            Arrivals::Bursts { gap_us, on_us, off_us } => {
                writeln!(f, "arrivals=bursts:{gap_us}:{on_us}:{off_us}")?;
            }
        }
        for (key, lengths) in [("prompt", self.load.prompt), ("answer", self.load.answer)] {
            match lengths {
                Lengths::Fixed(tokens) => writeln!(f, "{key}=fixed:{tokens}")?,
                Lengths::Uniform(least, most) => writeln!(f, "{key}=uniform:{least}:{most}")?,
                Lengths::Lognormal(median, sigma) => writeln!(f, "{key}=lognormal:{median}:{sigma}")?,
            }
        }
        let policy = self.config.policy;
        writeln!(f, "order={}", name_of(&ORDERS, &policy.order))?;
        writeln!(f, "eviction={}", name_of(&EVICTIONS, &policy.eviction))?;
        match policy.split {
            Split::Unified => writeln!(f, "split=unified")?,
            Split::Fixed { adapter_pages } => writeln!(f, "split=fixed:{adapter_pages}")?,
            Split::Slots { count, pages } => writeln!(f, "split=slots:{count}:{pages}")?,
        }
        let Host { during, audit, waits, .. } = self.host;
        writeln!(f, "during={} audit={} waits={}", u8::from(during), u8::from(audit), u8::from(waits))?;
        if let Some(tenant) = self.only_tenant {
            writeln!(f, "only_tenant={tenant}")?;
        }
        let mut copy = self.clone();
        for (name, number) in copy.numbers() {
            writeln!(f, "{name}={number}")?;
        }
        for (name, cost) in copy.config.costs.fields_mut() {
            writeln!(f, "{name}={cost}")?;
        }
        for (name, time) in copy.config.times_mut() {
            writeln!(f, "{name}={time}")?;
        }
        for (name, switch) in copy.config.switches_mut() {
            writeln!(f, "{name}={}", u8::from(*switch))?;
        }
        for (name, limit) in copy.config.fields_mut() {
            writeln!(f, "{name}={limit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lorad_sched::Costs;

    use super::*;
    use crate::model::SMOLLM2_2CORE;

    #[test]
    fn a_scenario_is_written_and_read_back() {
        let text = "name=flood seed=7 # a comment\n token_ns=5 model=smollm2-135m-2core\n\nranks=8,16\n\
                    arrivals=bursts:1:2:3 prompt=lognormal:100:600 answer=uniform:16:96 adapters=3\n\
                    order=affinity eviction=lru split=slots:2:30 during=1 only_tenant=2 pages=99 check_every=3";
        let scenario = Scenario::parse(text).unwrap();
        let model = SMOLLM2_2CORE.costs(16, Typical { prompt: 100, answer: 56 });
        assert_eq!(scenario.config.costs, Costs { token_ns: 5, ..model });
        assert_eq!((scenario.config.pages, scenario.host.check_every, scenario.seed), (99, 3, 7));
        assert_eq!(scenario.config.policy.split, Split::Slots { count: 2, pages: 30 });
        assert_eq!(Scenario::parse(&scenario.to_string()).unwrap(), scenario);
        let plain = Scenario::default();
        assert_eq!(Scenario::parse(&plain.to_string()).unwrap(), plain);
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line, what) in [
            ("name=a\npags=3", 2, "unknown key pags"),
            ("pages=-1", 1, "pages=-1: a whole number from 0 to 4294967295"),
            ("pages=4294967296", 1, "pages=4294967296: a whole number from 0 to 4294967295"),
            ("step_ns=a", 1, "step_ns=a: a whole number from 0 to 18446744073709551615"),
            ("order=random", 1, "order=random: fair or arrival or affinity"),
            ("waits=2", 1, "waits=2: 0 or 1"),
            (
                "prompt=uniform:9:3",
                1,
                "prompt=uniform:9:3: fixed:n, uniform:least:most or lognormal:median:sigma_milli",
            ),
            ("flood", 1, "unknown word flood"),
        ] {
            let error = Scenario::parse(text).map_err(|error| error.to_string());
            assert_eq!(error, Err(format!("line {line}: {what}")));
        }
        let model = Scenario::parse("model=gpt").map_err(|error| error.to_string());
        assert!(model.is_err_and(|what| what.starts_with("line 1: model=gpt: none, smollm2-135m-2core")));
        let ranks = Scenario { sizes: Sizes::Ranks(vec![8]), ..Scenario::default() };
        assert!(ranks.trace().is_err());
    }
}
