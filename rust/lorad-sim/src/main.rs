//! The command: the long check of the scheduler, or reports of scenario files.
//!
//! ```text
//! lorad-sim seeds=100 steps=100000        # all faults on, checked after each step; every=n: after each n-th
//! lorad-sim seeds=100 again=10            # every tenth seed runs twice and has to come to the same
//! lorad-sim flood calm alone.txt          # runs presets and files and prints them beside each other
//! lorad-sim flood trace=recorded.txt      # with a recorded trace instead of the scenario's own
//! lorad-sim flood print=trace             # prints the scenario's trace and runs nothing
//! ```
//!
//! Ends with 1 and a short script for `lorad_sched::script` when a promise is broken, with 2 when it can't begin.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)] // printing is what a command does

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lorad_sim::presets::preset;
use lorad_sim::shrink::shrink;
use lorad_sim::sums::{Share, Sums};
use lorad_sim::{chaos, replay, report, simulate, Scenario, SimError, Trace};

/// Runs that a shrink may take.
const RUNS_MAX: u64 = 3000;
/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// Arguments: `key=value` and file names.
struct Arguments {
    pairs: BTreeMap<String, String>,
    files: Vec<String>,
}

impl Arguments {
    fn new(known: &[&str]) -> Result<Self, String> {
        let (mut pairs, mut files) = (BTreeMap::new(), Vec::new());
        for argument in std::env::args().skip(1) {
            match argument.split_once('=') {
                None => files.push(argument),
                Some((key, value)) if known.contains(&key) => {
                    pairs.insert(key.to_string(), value.to_string());
                }
                Some((key, _)) => {
                    return Err(format!("unknown argument {key}; known are {}", known.join(", ")))
                }
            }
        }
        Ok(Self { pairs, files })
    }

    fn number(&self, key: &str, default: u64) -> Result<u64, String> {
        let parse = |text: &String| text.parse().map_err(|_| format!("{key}={text} isn't a number"));
        self.pairs.get(key).map_or(Ok(default), parse)
    }
}

fn main() -> ExitCode {
    // a panic of the core is caught, named and shrunk; a few thousand copies of its message help nobody
    std::panic::set_hook(Box::new(|_| {}));
    let ended = Arguments::new(&["seeds", "steps", "first", "every", "again", "trace", "print"]).and_then(
        |arguments| match arguments.files.is_empty() {
            true => check(&arguments),
            false => scenarios(&arguments),
        },
    );
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(mistake) => {
            eprintln!("lorad-sim: {mistake}");
            ExitCode::from(2)
        }
    }
}

/// The long check; true when everything held.
fn check(arguments: &Arguments) -> Result<bool, String> {
    let (seeds, first) = (arguments.number("seeds", 10)?, arguments.number("first", 0)?);
    let (steps, every) = (arguments.number("steps", 10_000)?, arguments.number("every", 1)?);
    let again = arguments.number("again", 0)?;
    let (began, mut told) = (Instant::now(), Instant::now());
    let (mut sums, mut twice) = (Sums::default(), 0u64);
    let rate = |sums: &Sums| sums.steps() as f64 / began.elapsed().as_secs_f64().max(1e-9);
    for seed in first..first.saturating_add(seeds) {
        let mut scenario = chaos::scenario(seed, steps);
        scenario.host.check_every = every;
        let report = match simulate(&scenario) {
            Ok(report) => report,
            Err(SimError::Failed(failure)) => {
                println!("seed {seed}: {failure}");
                let trace = scenario.trace().map_err(|error| error.to_string())?;
                explain(&scenario, &trace)?;
                return Ok(false);
            }
            Err(error) => return Err(error.to_string()),
        };
        if again > 0 && seed % again == 0 {
            twice += 1;
            if simulate(&scenario).ok().as_ref() != Some(&report) {
                println!("seed {seed}: the same run came to another end; the core isn't deterministic");
                return Ok(false);
            }
        }
        sums.add(&report);
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            let (steps, wait) = (sums.steps(), Share(sums.longest_wait_milli()));
            println!(
                "seed {seed}: {} of {seeds} hold, {steps} steps, {:.0} per second, longest wait {wait} of its bound",
                seed - first + 1,
                rate(&sums)
            );
        }
    }
    print!("{sums}");
    if twice > 0 {
        println!("{twice} seeds were run twice: same plans, events, report and dump");
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("held: {seeds} seeds, {} steps in {seconds:.1} s, {:.0} per second", sums.steps(), rate(&sums));
    Ok(true)
}

/// Prints the shortest way to a failure.
fn explain(scenario: &Scenario, trace: &Trace) -> Result<(), String> {
    println!("shrinking {} inputs", trace.inputs().len());
    let shrunk = shrink(trace, &scenario.config, scenario.seed, &scenario.host, None, RUNS_MAX);
    let shrunk = shrunk.map_err(|error| error.to_string())?;
    println!("{} inputs after {} runs: {}", shrunk.trace.inputs().len(), shrunk.runs, shrunk.failure);
    println!("--- trace\n{}--- script\n{}", shrunk.trace, shrunk.script);
    Ok(())
}

/// Scenario files; true when everything held.
fn scenarios(arguments: &Arguments) -> Result<bool, String> {
    let read = |path: &String| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let text = |name: &String| preset(name).map_or_else(|| read(name), |text| Ok(text.to_string()));
    let recorded = match arguments.pairs.get("trace") {
        None => None,
        Some(path) => Some(Trace::parse(&read(path)?).map_err(|error| format!("{path}: {error}"))?),
    };
    let mut reports = Vec::new();
    for path in &arguments.files {
        let named = |error: SimError| format!("{path}: {error}");
        let scenario = Scenario::parse(&text(path)?).map_err(named)?;
        let trace = match &recorded {
            Some(trace) => trace.clone(),
            None => scenario.trace().map_err(named)?,
        };
        match arguments.pairs.get("print").map(String::as_str) {
            None => {}
            Some("trace") => {
                print!("{trace}");
                continue;
            }
            Some(other) => return Err(format!("print={other} isn't known, print=trace is")),
        }
        match replay(&scenario, &trace) {
            Ok(report) => reports.push(report),
            Err(SimError::Failed(failure)) => {
                println!("{path}: {failure}");
                explain(&scenario, &trace)?;
                return Ok(false);
            }
            Err(error) => return Err(named(error)),
        }
    }
    match reports.as_slice() {
        [report] => print!("{report}"),
        reports => print!("{}", report::table(reports)),
    }
    Ok(true)
}
