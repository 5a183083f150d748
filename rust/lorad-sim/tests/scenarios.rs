//! Scenarios whose times can be computed by hand, and the files under `scenarios/`.
// a test ends by panicking, helpers of tests too
#![allow(clippy::panic, clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::path::Path;

use lorad_sim::{compare, replay, simulate, Report, Scenario, Trace};

/// A step of 1 ms, a token 10 µs, a sample 5 µs, nothing for context; an adapter's page 1 µs to read, 100 µs to copy.
const MACHINE: &str = "step_ns=1000000 token_ns=10000 sample_ns=5000 context_ns=0 adapter_page_ns=1000 \
                       adapter_token_page_ns=0 page_in_ns=0 page_in_page_ns=100000 few_tokens=0 many_ns=0 head_ns=0 \
                       beside_page_ns=0 ";

fn scenario(text: &str) -> Scenario {
    Scenario::parse(&format!("{MACHINE}{text}")).unwrap()
}

#[test]
fn one_request_takes_what_its_steps_take() {
    let report = simulate(&scenario("requests=1 adapters=0 prompt=fixed:20 answer=fixed:3")).unwrap();
    // a step with 20 tokens and a sample, then two with one
    let (first, next) = (1000 + 200 + 5, 1000 + 10 + 5);
    assert_eq!(report.all.ttft_us.max, first);
    assert_eq!(report.all.total_us.max, first + 2 * next);
    assert_eq!((report.numbers.steps, report.numbers.steps_us), (3, first + 2 * next));
    assert_eq!((report.numbers.tokens_out, report.numbers.tokens_computed), (3, 22));
    assert_eq!(report.numbers.tokens_out_ks, 3 * 1_000_000_000 / (first + 2 * next));
}

#[test]
fn a_cold_adapter_costs_its_page_in_and_its_pages() {
    let report =
        simulate(&scenario("requests=1 adapters=1 adapter_pages=4 prompt=fixed:20 answer=fixed:1")).unwrap();
    // the plan that only has the page-in costs nothing, its microsecond passes while the copy runs
    assert_eq!(report.all.ttft_us.max, 400 + 1000 + 200 + 5 + 4);
    let numbers = report.numbers;
    assert_eq!((numbers.page_ins, numbers.page_in_pages, numbers.page_ins_us), (1, 4, 400));
}

#[test]
fn page_ins_wait_for_each_other_and_faults_for_their_moment() {
    let trace = "0 register 1 pages=5\n0 register 2 pages=5\n0 register 3 pages=2\n\
                 0 slow_load 1 percent=300\n0 fail_load 2\n0 fail_row 13\n\
                 0 add 11 adapter=1 prompt=1 max=1\n0 add 12 adapter=2 prompt=1 max=1\n\
                 0 add 13 adapter=3 prompt=1 max=1\n0 add 14 tenant=5 adapter=9 prompt=1 max=1";
    let report = replay(&scenario(""), &Trace::parse(trace).unwrap()).unwrap();
    let tenant = &report.tenants[0];
    assert_eq!((tenant.requests, tenant.finished, tenant.failed), (3, 1, 2));
    assert_eq!(report.numbers.page_ins_us, 1500 + 500 + 200);
    // alone from its arrival on
    assert_eq!(report.adapters[0].total_us.max, 1500 + 1000 + 10 + 5 + 5);
    assert_eq!(report.refusals.get("unknown_name"), Some(&1));
    assert_eq!(report.tenants[1].refused, 1);
}

#[test]
fn what_happens_during_a_step_is_heard_at_its_end_or_at_once() {
    let trace = Trace::parse("0 add 1 prompt=1 max=9\n500 abort 1\n600 add 2 prompt=1 max=1").unwrap();
    let run = |during: u8| replay(&scenario(&format!("during={during}")), &trace).unwrap();
    for report in [run(0), run(1)] {
        assert_eq!((report.all.aborted, report.all.finished), (1, 1));
        assert_eq!(report.all.ttft_us.max, 1015 + 1015 - 600);
    }
    // told at once, its token is dropped; told later, it was sampled before
    assert_eq!((run(0).numbers.tokens_out, run(1).numbers.tokens_out), (2, 1));
}

fn file(name: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name);
    Scenario::parse(&fs::read_to_string(&path).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn the_files_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let scenarios: Vec<Scenario> = names
        .iter()
        .map(|name| {
            let mut scenario = file(name);
            scenario.load.requests = scenario.load.requests.min(60);
            scenario
        })
        .collect();
    let reports = compare(&scenarios).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", lorad_sim::report::table(&reports));
    for (report, scenario) in reports.iter().zip(&scenarios) {
        let Report { all, numbers, .. } = report;
        assert_eq!(all.requests, all.finished + all.aborted + all.failed + all.refused, "{}", report.name);
        assert_eq!(numbers.page_in_bytes, numbers.page_in_pages * scenario.page_bytes(), "{}", report.name);
        assert!(numbers.virtual_us > 0 && report.to_string().contains("TTFT"));
    }
}

#[test]
fn a_trace_of_one_tenant_is_what_it_sends_in_company() {
    let all = file("flood.txt");
    let alone = Scenario { only_tenant: Some(3), ..all.clone() };
    let (all, alone) = (all.trace().unwrap(), alone.trace().unwrap());
    let of = |trace: &Trace| -> Vec<String> {
        trace.inputs().iter().map(ToString::to_string).filter(|line| line.contains("tenant=3 ")).collect()
    };
    assert_eq!(of(&all), of(&alone));
    assert_eq!(of(&alone).len(), 50);
    assert!(!alone.to_string().contains("tenant=0 "));
}
