//! Shrinking: a planted fault in a long trace comes out as a few lines that the core's own scripts understand.

use lorad_sched::Stats;
use lorad_sim::run::Watch;
use lorad_sim::shrink::shrink;
use lorad_sim::{chaos, Kind, SimError, Trace};

#[test]
fn a_preemption_needs_few_inputs_and_its_script_has_it_too() {
    let scenario = chaos::scenario(3, 2000);
    let trace = scenario.trace().unwrap();
    let watch = |stats: &Stats| (stats.counters.preemptions >= 1).then(|| "a preemption".to_string());
    let watch: &Watch = &watch;
    let shrunk = shrink(&trace, &scenario.config, 3, &scenario.host, Some(watch), 3000).unwrap();
    println!("{} runs\n{}{}", shrunk.runs, shrunk.trace, shrunk.script);
    assert_eq!((shrunk.failure.kind, shrunk.failure.what.as_str()), (Kind::Watch, "a preemption"));
    assert!(shrunk.trace.inputs().len() <= 6, "{}", shrunk.trace);
    // not one input can go
    for index in 0..shrunk.trace.inputs().len() {
        let mut inputs = shrunk.trace.inputs().to_vec();
        inputs.remove(index);
        let again = shrink(&Trace::new(inputs), &scenario.config, 3, &scenario.host, Some(watch), 1);
        assert!(matches!(again, Err(SimError::NoFailure)), "input {index} isn't needed: {}", shrunk.trace);
    }
    let printed = lorad_sched::script::run(&shrunk.script);
    assert!(printed.contains("preempted"), "{printed}");
    assert!(!printed.contains("error: ") && !printed.contains("check: "), "{printed}");
}

#[test]
fn a_failed_page_in_needs_its_fault() {
    let scenario = chaos::scenario(4, 1000);
    let trace = scenario.trace().unwrap();
    let watch = |stats: &Stats| (stats.counters.page_ins_failed >= 2).then(|| "two".to_string());
    let shrunk = shrink(&trace, &scenario.config, 4, &scenario.host, Some(&watch), 3000).unwrap();
    let faults = shrunk.trace.to_string().matches("fail_load").count();
    assert_eq!(faults, 2, "{}", shrunk.trace);
    let printed = lorad_sched::script::run(&shrunk.script);
    assert!(printed.matches("failed_page_in").count() >= 1, "{printed}");
    assert!(!printed.contains("error: "), "{printed}");
}

#[test]
fn a_whole_run_is_the_same_as_a_script() {
    // without this the scripts of shrunk failures would show something else
    for seed in [5, 6] {
        let mut scenario = chaos::scenario(seed, 300);
        scenario.host.noise_milli = 0;
        let trace = scenario.trace().unwrap();
        let outcome = lorad_sim::run(&trace, &scenario.config, seed, &scenario.host, true, None).unwrap();
        assert_eq!(outcome.failure, None);
        let mut script = outcome.script.unwrap();
        script.push_str("stats\n");
        let printed = lorad_sched::script::run(&script);
        assert!(!printed.contains("error: ") && !printed.contains("check: "), "{printed}");
        for (name, number) in outcome.numbers.named() {
            if ["page_ins", "page_ins_failed", "evictions", "preemptions", "tokens_computed"].contains(&name)
            {
                assert!(printed.contains(&format!("\n{name} {number}\n")), "seed {seed}: {name} {number}");
            }
        }
        let tokens = format!("\ntokens_sampled {}\n", outcome.numbers.tokens_out);
        assert!(printed.contains(&tokens), "seed {seed}: {tokens}");
    }
}

#[test]
fn what_runs_through_cannot_be_shrunk() {
    let scenario = chaos::scenario(1, 50);
    let trace = scenario.trace().unwrap();
    let shrunk = shrink(&trace, &scenario.config, 1, &scenario.host, None, 10);
    assert!(matches!(shrunk, Err(SimError::NoFailure)));
}
