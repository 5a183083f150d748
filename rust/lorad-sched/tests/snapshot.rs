//! Every dump comes back from its data as the same text.
// a test ends by panicking
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

#[allow(dead_code)] // only its numbers are used here
mod common;
mod recorded;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lorad_sched::snapshot::{AdapterState, Group, RequestState, Snapshot, TenantStanding};
use lorad_sched::trace::Replay;
use lorad_sched::Priority;
use recorded::seeds;

/// The dumps in a script: from the line that begins one to the first that can't be part of it.
fn dumps(script: &str) -> Vec<String> {
    let (mut dumps, mut inside) = (Vec::<String>::new(), false);
    for line in script.lines() {
        let words: Vec<&str> = line.split([' ', ':']).collect();
        inside = match words[0] {
            "now" => {
                dumps.push(String::new());
                true
            }
            // after a dump: another command's state, or what a command said
            "" | "adapter" if words.get(2) != Some(&"tag") => false,
            "----" | "plan" | "plans" | "event" | "nothing" | "refused" => false,
            "request" if words.get(2) == Some(&"of") => false, // what `explain` says
            _ => inside,
        };
        if let (true, Some(dump)) = (inside, dumps.last_mut()) {
            dump.push_str(line);
            dump.push('\n');
        }
    }
    dumps
}

#[test]
fn the_dumps_of_the_scripts_round_trip() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ext| ext != "txt") {
            continue;
        }
        let script = fs::read_to_string(&path).unwrap();
        for dump in dumps(&script) {
            let snapshot = Snapshot::parse(&dump).unwrap_or_else(|error| panic!("{error}\n{dump}"));
            assert_eq!(snapshot.to_string(), dump, "{}", path.display());
            assert_eq!(snapshot.others, [], "{}: a line that isn't known", path.display());
            count += 1;
        }
    }
    assert!(count >= 20, "{count} dumps");
}

#[test]
fn the_dumps_of_random_runs_round_trip() {
    let mut seen = BTreeSet::new();
    for seed in 200..200 + seeds(30) {
        let (recorder, _) = recorded::record(seed, 400);
        let mut replay = Replay::new(recorder.sink()).unwrap();
        replay
            .run(|replay, _| {
                let (dump, stats) = (replay.core().dump(), replay.core().stats());
                let snapshot: Snapshot = dump.parse().unwrap();
                assert_eq!(snapshot.to_string(), dump);
                assert_eq!(snapshot.others, []);
                assert_eq!((snapshot.rows.running, snapshot.rows.waiting), (stats.running, stats.waiting));
                assert_eq!(snapshot.pages.of("free"), stats.pages_free);
                assert_eq!(snapshot.pages.of("sequence"), stats.pages_sequence);
                assert_eq!(snapshot.time.plans, stats.counters.plans);
                assert_eq!(snapshot.time.in_flight, replay.core().in_flight());
                for (adapter, stats) in snapshot.adapters.iter().zip(replay.core().adapter_stats()) {
                    assert_eq!((adapter.adapter, adapter.tag), (stats.adapter, stats.tag));
                    assert_eq!((adapter.running, adapter.waiting), (stats.running, stats.waiting));
                    assert_eq!(adapter.state.slot(), stats.slot);
                    assert_eq!(adapter.state.pages().len() as u32, stats.pages);
                    assert_eq!(adapter.draining, stats.state == "draining");
                    seen.insert(adapter.state.name());
                    if adapter.draining {
                        seen.insert("draining");
                    }
                    if adapter.pinned {
                        seen.insert("pinned");
                    }
                }
                let tenants = replay.core().tenant_stats();
                assert_eq!(snapshot.tenants.len(), tenants.len());
                for (tenant, stats) in snapshot.tenants.iter().zip(tenants) {
                    assert_eq!((tenant.tenant, tenant.service), (stats.tenant, stats.service));
                    assert_eq!((tenant.running, tenant.waiting), (stats.running, stats.waiting));
                    assert_eq!(tenant.pages, stats.pages);
                }
                let waiting: usize = snapshot.queues.iter().map(|queue| queue.waiting.len()).sum();
                assert_eq!(waiting as u32, stats.waiting);
                for request in &snapshot.requests {
                    seen.insert(match &request.state {
                        RequestState::Running { planned: 0, .. } => "running",
                        RequestState::Running { .. } => "planned",
                        RequestState::Ending { .. } => "ending",
                    });
                }
                if snapshot.queues.iter().flat_map(|queue| &queue.waiting).any(|one| one.preempted.is_some())
                {
                    seen.insert("preempted");
                }
                for queue in &snapshot.queues {
                    seen.insert(queue.group.priority.name());
                    if queue.waits.is_some() {
                        seen.insert("waits");
                    }
                }
                if !snapshot.urgent.is_empty() {
                    seen.insert("urgent");
                }
                if !snapshot.wanted.is_empty() {
                    seen.insert("wanted");
                }
                seen.extend(snapshot.tenants.iter().map(|tenant| tenant.standing.name()));
                if let Some(prefix) = &snapshot.prefix {
                    assert_eq!(prefix.pages, stats.pages_cached);
                    assert_eq!(prefix.cached.len() as u32, stats.pages_cached);
                    seen.extend(
                        prefix.cached.iter().map(|page| if page.doomed { "doomed" } else { "cached" }),
                    );
                }
                if !snapshot.clears.is_empty() {
                    seen.insert("clears");
                }
                for listed in &snapshot.listed {
                    assert!(!listed.groups.is_empty());
                    seen.extend(
                        ["ready", "resume", "cold"]
                            .iter()
                            .filter(|&&name| name == listed.place)
                            .map(|_| "listed"),
                    );
                }
            })
            .unwrap();
    }
    for what in [
        "",
        "at its limit",
        "cached",
        "clears",
        "cold",
        "draining",
        "ending",
        "failed_page_in",
        "high",
        "hot",
        "listed",
        "loading",
        "low",
        "pinned",
        "planned",
        "preempted",
        "remote",
        "running",
        "runs",
        "urgent",
        "waits",
        "wanted",
    ] {
        assert!(seen.contains(what), "never seen: {what:?} in {seen:?}");
    }
}

const DUMP: &str = "\
now 2000 plans 2 in-flight 2
pages 12: free 6 sequence 2 cached 2 adapter 2 reserved 0
rows 1 of 4, waiting 2 of 8
tenant 0: weight 100 service 700 running 1 waiting 2 pages 4 clock 90 runs
tenant 9: weight 1 service 0 running 0 waiting 0 pages 0 clock 0
adapter 1 tag 101: hot slot 0 last-use 1000 pages [0 1] draining, running 1 waiting 0
adapter 2 tag 102: failed_page_in, running 0 waiting 0
adapter 3 tag 103: loading slot 1 since 700 layers 1 of 2 dropped pages [6] pinned, running 0 waiting 0
adapter 4 tag 104: remote asked, running 0 waiting 1
request 4 base: running line 1 computed 6 of 7 planned 1 answer 3 of 4 pages [2] cached 1
request 3 adapter 1: ending line 0 pages [3]
queue base: 7(preempted, answer 1 of 4) 8, waits 500 of 60000
queue tenant 9 adapter 4 high: 9
resume: base
urgent: base tenant 9 adapter 4 high
wanted adapters: [2 3]
prefix pages 2 of 12, evictable 1, least worth first: page 2
generation 0 tenant 0
page 2 first: column 0 tokens 4 holders 1 heat 2.5 used 1000
doomed page 5 of generation 7 tenant 9 after page 2: column 1 tokens 2 holders 0 heat 1 used 900
slots to clear: [1 2]
";

#[test]
fn a_dump_is_data() {
    let snapshot = Snapshot::parse(DUMP).unwrap();
    assert_eq!(snapshot.to_string(), DUMP);
    assert_eq!(snapshot.others, []);
    assert_eq!(snapshot.time.in_flight, Some(2));
    assert_eq!((snapshot.pages.total, snapshot.pages.of("adapter"), snapshot.pages.of("moon")), (12, 2, 0));
    assert_eq!(snapshot.tenants[0].standing, TenantStanding::Runs);
    assert_eq!(snapshot.adapters[0].state, AdapterState::Hot { slot: 0, last_use: 1000, pages: vec![0, 1] });
    assert_eq!(snapshot.adapters[3].state, AdapterState::Remote { asked: true });
    assert_eq!(snapshot.requests[1].group.adapter.map(|adapter| adapter.number()), Some(1));
    assert_eq!(snapshot.queues[0].waiting[0].preempted, Some((1, 4)));
    assert_eq!(snapshot.queues[0].waits, Some((500, 60_000)));
    let group = snapshot.queues[1].group;
    assert_eq!((group.tenant, group.priority), (9, Priority::High));
    assert_eq!(snapshot.listed[0].groups, [Group { tenant: 0, adapter: None, priority: Priority::Normal }]);
    assert_eq!(snapshot.urgent, [snapshot.queues[0].group, group]);
    let prefix = snapshot.prefix.unwrap();
    assert_eq!(
        (prefix.next, prefix.cached[1].above, prefix.cached[1].domain.generation),
        (Some(2), Some(2), 7)
    );
    assert_eq!(snapshot.clears, [1, 2]);
}

#[test]
fn lines_of_other_kinds_stay_where_they_are() {
    let lines: Vec<&str> = DUMP.lines().collect();
    for place in 3..=lines.len() {
        let mut lines = lines.clone();
        lines.insert(place, "moon 1: full");
        lines.insert(place, "");
        lines.insert(3, "sun");
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let snapshot = Snapshot::parse(&text).unwrap();
        assert_eq!(snapshot.others.len(), 3);
        assert_eq!(snapshot.to_string(), text);
    }
}

#[test]
fn what_is_no_dump_is_refused_by_line() {
    for (text, line, expected) in [
        ("", 1, "now"),
        ("now 1 plans 2\n", 2, "pages"),
        ("now 1 plans 2\npages 3:\n", 3, "rows"),
        ("pages 3:\n", 1, "now "),
        ("now 18446744073709551616 plans 0\n", 1, "a number that fits"),
        ("now 1 plans 2 and more\n", 1, "the end of the line"),
    ] {
        let error = Snapshot::parse(text).unwrap_err();
        assert_eq!((error.line, error.expected), (line, expected), "{error}");
    }
    // every byte of a dump, another one or none
    for place in 0..DUMP.len() {
        for other in ["", "x", " ", "9", "[", "\n"] {
            let text = format!("{}{other}{}", &DUMP[..place], &DUMP[place + 1..]);
            if let Ok(snapshot) = Snapshot::parse(&text) {
                assert_eq!(Snapshot::parse(&snapshot.to_string()).as_ref(), Ok(&snapshot));
            }
        }
    }
}
