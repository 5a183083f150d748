//! `repeat`: lines many times over, and how often each line was printed.

use std::fmt::Write;

use super::{Arguments, Mistake, Session};

/// Rounds of one `repeat`; more is a mistake, not a script.
const TIMES_MAX: u32 = 10_000;

impl Session {
    /// Runs the commands of a block and says what they printed.
    pub(super) fn block(&mut self, commands: &[&str]) -> String {
        let (mut out, mut next) = (String::new(), 0);
        while let Some(&line) = commands.get(next) {
            next += 1;
            if line.split_whitespace().next() != Some("repeat") {
                out.push_str(&self.command(line));
                continue;
            }
            let body = &commands[next..];
            let length = body.iter().position(|line| line.trim() == "end");
            match (times(line), length) {
                (Ok(times), Some(length)) => {
                    self.repeat(times, &body[..length], &mut out);
                    next += length + 1;
                }
                (Err(mistake), _) => {
                    let _ = writeln!(out, "error: {mistake}");
                }
                (_, None) => out.push_str("error: a repeat without an end\n"),
            }
        }
        out
    }

    fn repeat(&mut self, times: u32, body: &[&str], out: &mut String) {
        let mut tally: Vec<(String, u64)> = Vec::new();
        for round in 1..=times {
            let round = round.to_string();
            for line in body {
                for line in self.command(&line.replace('$', &round)).lines() {
                    if line.starts_with("check: ") || line.starts_with("error: ") {
                        let _ = writeln!(out, "{line} (round {round})");
                        continue;
                    }
                    let kind = kind(line);
                    match tally.iter_mut().find(|(other, _)| *other == kind) {
                        Some((_, count)) => *count += 1,
                        None => tally.push((kind, 1)),
                    }
                }
            }
        }
        for (kind, count) in tally {
            let _ = writeln!(out, "{count} × {kind}");
        }
    }
}

fn times(line: &str) -> Result<u32, Mistake> {
    let mut arguments = Arguments::new(line);
    let _ = arguments.word()?;
    let times = arguments.number("times", 1)?;
    arguments.end()?;
    if times > TIMES_MAX {
        return Err(format!("times = {times}: at most {TIMES_MAX}"));
    }
    Ok(times)
}

/// A line without its numbers.
fn kind(line: &str) -> String {
    let words = line.split_whitespace().filter(|word| !word.contains(|letter: char| letter.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}
