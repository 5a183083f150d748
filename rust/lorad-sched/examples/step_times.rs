//! Times single steps in the states of figure C6 and prints their percentiles as one line of JSON.
//!
//!     step_times [slots|pages|rows|churn] [waiting] [steps]
// its output is what it's for
#![allow(clippy::print_stdout)]

#[allow(dead_code)] // what only the bench measures
#[path = "../benches/load/mod.rs"]
mod load;

use std::error::Error;
use std::time::Duration;

use load::{Load, Spent, State, ADAPTERS, RESIDENT};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let state = match arguments.next() {
        None => State::Slots,
        Some(name) => State::ALL
            .into_iter()
            .find(|state| state.name() == name)
            .ok_or_else(|| format!("{name}: one of slots, pages, rows, churn"))?,
    };
    let waiting = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let steps = arguments.next().map_or(Ok(20_000), |text| text.parse::<u32>())?.max(1);

    let mut load = Load::new(state, waiting)?;
    let mut spent = Vec::with_capacity(steps as usize);
    let (mut moved, mut before) = (0, 0);
    for _ in 0..steps {
        spent.push(load.step()?);
        // starts at 0 again when the state was made anew
        let now = load.moved();
        moved += now.checked_sub(before).unwrap_or(now);
        before = now;
    }
    let stats = load.core.stats();
    print!("{{\"state\": \"{}\", \"waiting\": {waiting}, \"steps\": {steps}", state.name());
    print!(", \"adapters\": {ADAPTERS}, \"adapters_resident\": {RESIDENT}");
    print!(", \"running_at_end\": {}, \"waiting_at_end\": {}", stats.running, stats.waiting);
    print!(", \"admissions_and_preemptions\": {moved}");
    print!(", \"step\": {}", percentiles(&spent, |spent| spent.step));
    print!(", \"commit\": {}", percentiles(&spent, |spent| spent.commit));
    println!(
        ", \"both\": {}, \"version\": \"{}\"}}",
        percentiles(&spent, Spent::both),
        env!("CARGO_PKG_VERSION")
    );
    Ok(())
}

/// Nearest ranks, in µs.
fn percentiles(spent: &[Spent], part: impl Fn(Spent) -> Duration) -> String {
    let mut sorted: Vec<u128> = spent.iter().map(|&spent| part(spent).as_nanos()).collect();
    sorted.sort_unstable();
    let rank = |share: f64| {
        sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1] as f64 / 1e3
    };
    let mean = sorted.iter().sum::<u128>() as f64 / sorted.len() as f64 / 1e3;
    format!(
        "{{\"p50_us\": {:.3}, \"p99_us\": {:.3}, \"max_us\": {:.3}, \"mean_us\": {mean:.3}}}",
        rank(0.5),
        rank(0.99),
        rank(1.0)
    )
}
