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
