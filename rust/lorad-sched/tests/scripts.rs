//! Runs the scripts of `tests/data`. `LORAD_REWRITE=1` writes what they print now into them.

use std::fs;
use std::path::Path;

#[test]
fn scripts_print_what_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "txt"));
    paths.sort();
    assert!(paths.len() >= 8, "scripts are missing in {}", folder.display());
    let mut changed = Vec::new();
    for path in paths {
        let before = fs::read_to_string(&path).unwrap();
        let after = lorad_sched::script::run(&before);
        assert!(!after.contains("\ncheck: "), "{}: the core doesn't hold:\n{after}", path.display());
        assert!(!after.contains("\nerror: "), "{}: a mistake in the script:\n{after}", path.display());
        if before == after {
            continue;
        }
        if std::env::var_os("LORAD_REWRITE").is_some() {
            fs::write(&path, &after).unwrap();
        } else {
            let differs = before.lines().zip(after.lines()).position(|(before, after)| before != after);
            let line = differs.unwrap_or(before.lines().count().min(after.lines().count()));
            changed.push(format!(
                "{}:{}: expected {:?}, found {:?}",
                path.display(),
                line + 1,
                before.lines().nth(line),
                after.lines().nth(line)
            ));
        }
    }
    assert!(changed.is_empty(), "{}\n(LORAD_REWRITE=1 writes the new state)", changed.join("\n"));
}

/// The catalogue of scheduling faults (7.x) and of faults of the cache's key (3.x), as numbered in the heads of the scripts.
const FAULTS: [&str; 17] = [
    "3.1 shared_between_adapters",
    "3.2 reloaded_in_place",
    "3.3 name_used_again",
    "3.4 parts_of_the_key",
    "3.5 no_second_tier",
    "7.1 missing_slot",
    "7.2 passed_over",
    "7.3 base_beside_the_cap",
    "7.4 no_free_slot",
    "7.5 never_fits",
    "7.6 preempted_output",
    "7.7 page_lost",
    "7.8 abort_frees",
    "7.9 one_budget",
    "7.10 work_space",
    "7.11 old_and_long",
    "7.12 unbounded_queue",
];

/// Each fault has one script, which says what is wrong, what is done and what that proves, and expects figures: those stay
/// when the printed state is written anew. What the core can't show is shown by tests that the head names.
#[test]
fn every_fault_has_its_script() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wanted: Vec<String> = Vec::new();
    for fault in FAULTS {
        let (number, name) = fault.split_once(' ').unwrap();
        let (group, entry) = number.split_once('.').unwrap();
        let file = format!("fault_{group}_{entry:0>2}_{name}.txt");
        let script = fs::read_to_string(root.join("tests/data").join(&file)).expect(&file);
        wanted.push(file);
        let head: Vec<&str> = script.lines().take_while(|line| line.starts_with('#')).collect();
        assert!(head[0].starts_with(&format!("# Fault {number}, ")), "{number}: {}", head[0]);
        for part in ["# Check: ", "# Proves: "] {
            assert!(head.iter().any(|line| line.starts_with(part)), "{number}: the head has no {part:?}");
        }
        assert!(script.lines().any(|line| line.starts_with("expect ")), "{number} expects nothing");
        for place in head.iter().filter_map(|line| line.strip_prefix("# Elsewhere: ")) {
            let place = place.split(' ').next().unwrap();
            let (path, test) = place.split_once("::").unwrap_or((place, ""));
            let text = fs::read_to_string(root.join(path)).expect(path);
            assert!(test.is_empty() || text.contains(&format!("def {test}(")), "{number}: no {place}");
        }
    }
    let folder = fs::read_dir(root.join("tests/data")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|name| name.starts_with("fault_")).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted, "scripts of faults that aren't in the catalogue");
}

#[test]
fn no_script_panics() {
    let lines = [
        "",
        "----",
        "#",
        "core pages=0",
        "core rows_max=x",
        "add",
        "add 1 max=0",
        "add 99999999999999999999",
        "step",
        "step",
        "commit 1=-7",
        "commit plan=9",
        "done a",
        "register a pages=99",
        "register a",
        "add 1 adapter=a",
        "add 18446744073709551615 prompt=3",
        "add 1 prompt=4000000000",
        "run steps=3",
        "abort 1",
        "abort x",
        "dump",
        "what",
        "=",
        "commit_failed",
        "failed a",
        "unregister a",
        "stats at=18446744073709551615",
        "run steps=2",
        "repeat times=3",
        "repeat times=99999",
        "add $ prompt=2",
        "end",
        "expect 1 wait<=7 answered>=1",
        "expect 1 answer=4..2",
        "expect pages_free=16 plans>9",
        "expect 3",
        "expect",
    ];
    let mut state = 5u64;
    for _ in 0..300 {
        let mut script = String::new();
        for _ in 0..20 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            script.push_str(lines[(state >> 33) as usize % lines.len()]);
            script.push('\n');
        }
        let printed = lorad_sched::script::run(&script);
        assert!(!printed.contains("\ncheck: "), "{printed}");
    }
}
