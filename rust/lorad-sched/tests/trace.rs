//! Recorded runs play again, exactly, and nothing that isn't a trace is taken for one.
// a test ends by panicking, helpers of tests too
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

#[allow(dead_code)] // only its numbers are used here
mod common;
mod recorded;

use std::collections::BTreeSet;
use std::fmt::Write;

use common::Random;
use lorad_sched::trace::{redact, Input, Key, Log, Mistake, Outcome, Recorder, Replay, Sink};
use lorad_sched::{
    AdapterId, AdapterSpec, Config, Core, Event, Eviction, Order, Policy, Priority, RequestSpec, Split,
    TenantSpec,
};
use recorded::{config, record, seeds};

fn said(outcome: Outcome, input: &Input) -> String {
    match (outcome, input) {
        (Outcome::Done, Input::Unregister { .. } | Input::Abort { .. }) => "done".to_string(),
        (Outcome::Done, _) => "Ok(())".to_string(),
        (Outcome::Registered { adapter }, _) => format!("Ok(\"adapter {adapter}\")"),
        (Outcome::Planned { plan }, _) => format!("Ok(Some({plan}))"),
        (Outcome::Idle, _) => "Ok(None)".to_string(),
        (Outcome::Rejected { why }, _) => {
            let text = format!("{why:?}"); // Call(…): the same error, wrapped
            format!("Err({}", text.split_once('(').unwrap().1)
        }
    }
}

fn empty_plan(config: &Config) -> String {
    let core = Core::new(config.clone()).unwrap();
    let plan = vec![0; core.plan_layout().length()];
    core.plan_layout().view(&plan).to_string()
}

#[test]
fn a_recorded_run_plays_again() {
    let (mut answers, mut names) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..seeds(50) {
        let (recorder, transcript) = record(seed, 600);
        let (core, text) = recorder.into_parts();
        let nothing = empty_plan(core.config());
        let (mut replay, mut played, mut steps) = (Replay::new(&text).unwrap(), 0, 0);
        let mut told = Vec::new();
        replay
            .run(|replay, line| {
                let plan = replay.plan().map_or(nothing.clone(), |plan| plan.to_string());
                let (answer, events) = (said(line.outcome, &line.input), replay.events());
                let found = format!("{answer}\n{plan}\n{events:?}\n{}", replay.core().dump());
                assert_eq!(found, transcript[played], "seed {seed}, line {}", line.line);
                assert_eq!(line.made, line.recorded, "seed {seed}: {line:?}");
                told.extend_from_slice(events);
                steps += usize::from(line.made.is_some());
                played += 1;
                names.insert(line.input.name());
                answers.insert(answer.split([' ', '"']).next().unwrap().to_string());
            })
            .unwrap();
        assert_eq!(played, transcript.len());
        assert!(steps > 50 && !replay.is_cut());
        assert_eq!(replay.core().dump(), core.dump());
        assert_eq!(replay.core().stats(), core.stats());
        // the events that are kept after they were drained: all but tokens
        told.retain(|event| !matches!(event, Event::Token { .. }));
        let recent = replay.core().recent();
        assert!(recent.iter().eq(core.recent().iter()));
        assert_eq!(recent.dropped() as usize + recent.len(), told.len());
        assert!(recent.iter().map(|kept| &kept.event).eq(&told[told.len() - recent.len()..]));
        assert!(recent.iter().is_sorted_by_key(|kept| (kept.now, kept.plan)));
        assert_eq!(replay.line() as usize, text.lines().count());
    }
    assert_eq!(names.len(), 16, "every call was recorded: {names:?}");
    answers.retain(|answer| answer.starts_with("Err("));
    assert!(answers.len() >= 12, "refused calls too: {answers:?}");
}

#[test]
fn a_trace_reads_as_it_is_written() {
    let policies = [
        Policy::default(),
        Policy { order: Order::Arrival, eviction: Eviction::Lru, split: Split::Fixed { adapter_pages: 3 } },
        Policy { order: Order::Affinity, split: Split::Slots { count: 2, pages: 9 }, ..Policy::default() },
    ];
    for (index, policy) in policies.into_iter().enumerate() {
        let config =
            Config { policy, pages: 32, rows_max: 2, tokens_max: 8, vocab: 100, ..Config::default() };
        let mut core = Recorder::new(config.clone(), String::new(), None).unwrap();
        let mut plan = vec![0; core.plan_layout().length()];
        core.remark("devil is adapter 1");
        core.register(AdapterSpec { tag: 7, pages: 2, ..AdapterSpec::default() }).unwrap();
        let spec =
            AdapterSpec { tag: 8, pages: 2, tenant: 3, weight: 5, remote: true, ..AdapterSpec::default() };
        core.register(spec).unwrap();
        core.set_tenant(3, TenantSpec { weight: 7, waiting_max: 9, ..TenantSpec::default() }).unwrap();
        core.prewarm(5, AdapterId::from_number(2)).unwrap();
        core.pin(5, AdapterId::from_number(2), false).unwrap();
        let spec = RequestSpec { id: 5, prompt: vec![3, 1, 4], max_tokens: 2, ..RequestSpec::default() };
        core.add(10, spec.clone()).unwrap();
        core.add(
            10,
            RequestSpec {
                adapter: Some(AdapterId::from_number(9)),
                stop_tokens: vec![8, 9],
                priority: Priority::High,
                deadline: Some(11),
                after: Some(5),
                fresh: true,
                ..spec
            },
        )
        .unwrap_err();
        core.step(20, &mut plan).unwrap();
        core.commit(30, 1, &[42]).unwrap();
        core.step(40, &mut [1, 2]).unwrap_err();
        let text = core.sink();
        let name = ["fair eviction=cost split=unified", "arrival eviction=lru split=fixed:3"]
            .get(index)
            .unwrap_or(&"affinity eviction=cost split=slots:2:9");
        assert!(text.lines().nth(1).unwrap().ends_with(&format!(" order={name}")), "{text}");
        let mut rest = String::new();
        for line in text.lines().skip(2).filter(|line| !line.starts_with("saw plan=")) {
            writeln!(rest, "{line}").unwrap();
        }
        assert_eq!(
            rest,
            "# devil is adapter 1\n\
             register tag=7 pages=2 layers=1\n\
             register tag=8 pages=2 layers=1 tenant=3 weight=5 remote=yes\n\
             set_tenant tenant=3 weight=7 waiting_max=9\n\
             prewarm now=5 adapter=2\n\
             pin now=5 adapter=2 pinned=no\n\
             add now=10 id=5 tenant=0 adapter=base prompt=3,1,4 max_tokens=2 stop_tokens=\n\
             add now=10 id=5 tenant=0 adapter=9 prompt=3,1,4 max_tokens=2 stop_tokens=8,9 priority=high deadline=11 after=5 fresh=yes\n\
             step now=20\n\
             commit now=30 plan=1 sampled=42\n\
             step now=40 buffer=2\n\
             saw digest=0000000000000001\n"
        );
        let mut replay = Replay::new(text).unwrap();
        assert_eq!(replay.core().config(), &config);
        replay.run(|_, _| {}).unwrap();
        assert_eq!(replay.core().dump(), core.dump());
    }
}

#[test]
fn a_full_log_ends_and_says_so() {
    let (recorder, _) = record(3, 300);
    let whole = recorder.into_parts().1;
    let inputs: Vec<Input> = {
        let (mut replay, mut inputs) = (Replay::new(&whole).unwrap(), Vec::new());
        replay.run(|_, played| inputs.push(played.input.clone())).unwrap();
        inputs
    };
    for most in [0u64, 500, 900, 2000, 5000] {
        let mut core = Recorder::new(config(3), String::new(), Some(most)).unwrap();
        let mut plan = vec![0; core.plan_layout().length()];
        for input in inputs.clone() {
            give(&mut core, &mut plan, input);
        }
        assert_eq!(core.log(), Log::Full);
        let text = core.sink().clone();
        let first: usize = whole.lines().take(2).map(|line| line.len() + 1).sum();
        assert!(text.len() as u64 <= most.max(first as u64 + 4), "{} bytes of {most}", text.len());
        assert!(text.ends_with("\nend\n"));
        let mut replay = Replay::new(text.as_str()).unwrap();
        replay.run(|_, _| {}).unwrap();
        assert!(replay.is_cut());
        assert!(redact(&text, &Key([1, 2])).unwrap().ends_with("\nend\n"));
        let after = format!("{text}step now=1\n");
        let mut replay = Replay::new(after.as_str()).unwrap();
        assert_eq!(replay.run(|_, _| {}).unwrap_err().mistake, Mistake::AfterEnd);
    }
}

fn give<W: Write>(core: &mut Recorder<W>, plan: &mut [i32], input: Input) {
    let _ = match input {
        Input::Register { spec } => core.register(spec).is_ok(),
        Input::SetTenant { tenant, spec } => core.set_tenant(tenant, spec).is_ok(),
        Input::Pin { now, adapter, pinned } => core.pin(now, adapter, pinned).is_ok(),
        Input::Prewarm { now, adapter } => core.prewarm(now, adapter).is_ok(),
        Input::Unregister { now, adapter } => {
            core.unregister(now, adapter);
            true
        }
        Input::Add { now, spec } => core.add(now, spec).is_ok(),
        Input::Abort { now, request } => {
            core.abort(now, request);
            true
        }
        Input::Step { now, buffer: None } => core.step(now, plan).is_ok(),
        Input::Step { now, buffer: Some(length) } => core.step(now, &mut vec![0; length as usize]).is_ok(),
        Input::Commit { now, plan, sampled } => core.commit(now, plan, &sampled).is_ok(),
        Input::CommitFailed { now, plan } => core.commit_failed(now, plan).is_ok(),
        Input::PageInDone { now, adapter } => core.page_in_done(now, adapter).is_ok(),
        Input::PageInFailed { now, adapter } => core.page_in_failed(now, adapter).is_ok(),
        Input::PageInDropped { now, adapter } => core.page_in_dropped(now, adapter).is_ok(),
        Input::PageInReached { now, adapter, layers } => core.page_in_reached(now, adapter, layers).is_ok(),
        Input::Arrived { now, adapter } => core.arrived(now, adapter).is_ok(),
        Input::FetchFailed { now, adapter } => core.fetch_failed(now, adapter).is_ok(),
    };
}

#[test]
fn a_broken_sink_ends_the_log_and_not_the_core() {
    struct Narrow(String);
    impl Write for Narrow {
        fn write_str(&mut self, line: &str) -> std::fmt::Result {
            if self.0.len() > 600 {
                return Err(std::fmt::Error);
            }
            self.0.push_str(line);
            Ok(())
        }
    }
    let mut core = Recorder::new(config(1), Narrow(String::new()), None).unwrap();
    for id in 0..20 {
        let spec = RequestSpec { id, prompt: vec![1; 4], max_tokens: 1, ..RequestSpec::default() };
        let _ = core.add(id, spec);
    }
    assert_eq!(core.log(), Log::Broken);
    assert!(core.stats().waiting == 8);
    Replay::new(core.sink().0.as_str()).unwrap().run(|_, _| {}).unwrap();

    let mut lines = Vec::new();
    let mut core = Recorder::new(config(1), Sink(|line: &str| lines.push(line.to_string())), None).unwrap();
    core.abort(3, 4);
    drop(core);
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[2], "abort now=3 request=4\n");

    let mut core = Recorder::off(config(1), String::new()).unwrap();
    core.abort(3, 4);
    assert_eq!((core.log(), core.sink().as_str()), (Log::Off, ""));
}

#[test]
fn another_plan_than_the_recorded_one_is_told() {
    let (recorder, _) = record(7, 300);
    let text = recorder.sink();
    // the recorded core had other limits
    let other = text.replacen("prefill_chunk_max=", "prefill_chunk_max=1", 1);
    let mut replay = Replay::new(other.as_str()).unwrap();
    let error = replay.run(|_, _| {}).unwrap_err();
    let Mistake::Diverged { recorded, made } = &error.mistake else { panic!("{error}") };
    assert_ne!(recorded, made);
    assert!(other.lines().nth(error.line as usize - 1).unwrap().starts_with("step "), "{error}");
    assert_eq!(redact(&other, &Key([0, 0])), Err(error));
    // by hand, one may go on
    assert!(replay.step().is_ok());
}

#[test]
fn what_is_no_trace_is_refused_by_line() {
    let (recorder, _) = record(1, 5);
    let good = recorder.into_parts().1;
    let core = good.lines().nth(1).unwrap();
    let head = format!("lorad-trace 1\n{core}\n");
    let cases: Vec<(String, u64, &str)> = vec![
        (String::new(), 1, "not_a_trace"),
        ("{}".to_string(), 1, "not_a_trace"),
        ("lorad-trace 2\n".to_string(), 1, "version"),
        ("lorad-trace 1\n".to_string(), 2, "no_core"),
        ("lorad-trace 1\nstep now=1\n".to_string(), 2, "no_core"),
        ("lorad-trace 1\ncore pages=1\n".to_string(), 2, "missing_field"),
        (format!("lorad-trace 1\n{core} what=1\n"), 2, "unknown_field"),
        (format!("lorad-trace 1\n{}\n", core.replace("rows_max=", "rows_max=00000")), 0, ""),
        (format!("lorad-trace 1\n{}\n", core.replace("page_ins_max=", "page_ins_max=-")), 2, "bad_value"),
        (format!("lorad-trace 1\n{}\n", core.replace("vocab=12", "vocab=0")), 2, "config"),
        (format!("lorad-trace 1\n{}\n", core.replace("order=fair", "order=best")), 2, "bad_value"),
        (format!("lorad-trace 1\n{}\n", core.replace("unified", "fixed:")), 2, "bad_value"),
        (format!("lorad-trace 1\n{}\n", core.replace("unified", "slots:1:2:3")), 2, "bad_value"),
        (format!("{head}\n# a remark\n\n"), 0, ""),
        (format!("{head}hello\n"), 3, "unknown_line"),
        (format!("{head}# x\nstep\n"), 4, "missing_field"),
        (format!("{head}step now\n"), 3, "not_a_field"),
        (format!("{head}step now=1 now=2\n"), 3, "unknown_field"),
        (format!("{head}step now=18446744073709551616\n"), 3, "bad_value"),
        (format!("{head}step now=18446744073709551615 buffer=4294967295\n"), 0, ""),
        (format!("{head}commit now=1 plan=1 sampled=1,,2\n"), 3, "bad_value"),
        (format!("{head}abort now=1 request=1\r\nend\r\n"), 0, ""),
        (format!("{head}pin now=1 adapter=1 pinned=1\n"), 3, "bad_value"),
        (format!("{head}saw plan=1 digest=00\n"), 3, "unknown_line"),
        (format!("{head}step now=1\nsaw plan=x digest=00\n"), 4, "unknown_line"),
        (format!("{head}step now=1"), 3, "cut"),
        (format!("{head}end\nstep now=1\n"), 4, "after_end"),
        (format!("{head}# x\n\n# y\nwhat\n"), 6, "unknown_line"),
    ];
    for (text, line, code) in cases {
        let result = Replay::new(text.as_str()).and_then(|mut replay| replay.run(|_, _| {}));
        let found = result.as_ref().map_or_else(|error| (error.line, error.mistake.code()), |()| (0, ""));
        assert_eq!(found, (line, code), "{text}: {result:?}");
        if let Err(error) = result {
            assert!(error.to_string().starts_with(&format!("line {line}: ")));
        }
    }
}

#[test]
fn a_cut_trace_plays_to_the_cut() {
    let (recorder, _) = record(2, 120);
    let text = recorder.into_parts().1;
    let head: usize = text.lines().take(2).map(|line| line.len() + 1).sum();
    for end in (head..text.len()).step_by(7) {
        let mut replay = Replay::new(&text[..end]).unwrap();
        let result = replay.run(|_, _| {});
        if text[..end].ends_with('\n') {
            result.unwrap();
        } else {
            let error = result.unwrap_err();
            assert_eq!((error.line, &error.mistake), (replay.line() + 1, &Mistake::Cut));
            assert_eq!(replay.step(), Err(error), "it stands before the line");
        }
        replay.core().check().unwrap();
        assert!(redact(&text[..end], &Key([5, 6])).unwrap().ends_with('\n'));
    }
}

#[test]
fn no_line_panics() {
    let (recorder, _) = record(4, 150);
    let text = recorder.into_parts().1;
    let head: usize = text.lines().take(2).map(|line| line.len() + 1).sum();
    let mut random = Random::new(9);
    let letters = b"0123456789=,- \nabdst";
    for _ in 0..400 {
        // the limits stay, so that no mutation asks for gigabytes
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..1 + random.below(12) {
            let place = head + random.below((bytes.len() - head) as u32) as usize;
            let letter = letters[random.below(letters.len() as u32) as usize];
            match random.below(3) {
                0 => bytes[place] = letter,
                1 => bytes.insert(place, letter),
                _ => {
                    bytes.remove(place);
                }
            }
        }
        let mut text = String::from_utf8(bytes).unwrap();
        let _ = redact(&text, &Key([1, 1]));
        // past every mistake: with its line taken out, the rest is tried
        loop {
            let mut replay = Replay::new(text.as_str()).unwrap();
            let mistake = loop {
                match replay.step() {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            replay.core().check().unwrap();
            let Some(error) = mistake else { break };
            let wrong = error.line as usize - 1;
            let kept = text.lines().enumerate().filter(|(line, _)| *line != wrong);
            text = kept.map(|(_, line)| format!("{line}\n")).collect();
        }
    }
}
