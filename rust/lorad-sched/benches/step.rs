//! Figure C6: what a step and its commit cost when nothing that waits can be admitted, when a row comes and goes in each
//! step, and what adding a request costs. `examples/step_times.rs` has the percentiles of single steps.
// a bench ends by panicking; `criterion_group` makes functions that have no documentation
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code)] // what only the example asks for
mod load;

use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion};

use load::{Load, State};

const WAITING: [u32; 4] = [0, 1_000, 10_000, 100_000];

fn step_and_commit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step and commit");
    for state in State::ALL {
        for waiting in WAITING {
            group.bench_function(BenchmarkId::new(state.name(), waiting), |bencher| {
                let mut load = Load::new(state, waiting).unwrap();
                bencher.iter_custom(|steps| (0..steps).map(|_| load.step().unwrap().both()).sum());
            });
        }
    }
    group.finish();
}

fn add(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("add");
    for waiting in WAITING {
        group.bench_function(BenchmarkId::from_parameter(waiting), |bencher| {
            let mut load = Load::new(State::Slots, waiting).unwrap();
            bencher.iter_custom(|adds| (0..adds).map(|_| load.time_add().unwrap()).sum());
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    // a step takes microseconds: this is a hundred thousand of them, and the state is made anew fifty times
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1));
    targets = step_and_commit, add
}
criterion_main!(benches);
