//! Redacted runs play the same and say nothing.
// a test ends by panicking, helpers of tests too
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

#[allow(dead_code)] // only its numbers are used here
mod common;
mod recorded;

use std::collections::BTreeMap;

use lorad_sched::trace::{redact, Input, Key, Recorder, Replay};
use lorad_sched::{Config, RequestSpec};
use recorded::{record, seeds};

/// The prompts of all requests that were taken, in order, and how long each answer became.
fn requests(text: &str) -> (Vec<Vec<u32>>, BTreeMap<u64, Vec<String>>) {
    let (mut prompts, mut events) = (Vec::new(), BTreeMap::<u64, Vec<String>>::new());
    let mut replay = Replay::new(text).unwrap();
    replay
        .run(|replay, played| {
            if let Input::Add { spec, .. } = &played.input {
                prompts.push(spec.prompt.clone());
            }
            for event in replay.events() {
                let text = event.to_string();
                let (id, what) = text.split_once(' ').unwrap();
                if let Ok(id) = id.parse() {
                    let what = if what.starts_with("token") { "token" } else { what };
                    events.entry(id).or_default().push(what.to_string());
                }
            }
        })
        .unwrap();
    (prompts, events)
}

fn real(prompt: &[u32]) -> bool {
    prompt.iter().all(|&token| token < 12)
}

fn shared(one: &[u32], two: &[u32]) -> usize {
    one.iter().zip(two).take_while(|(one, two)| one == two).count()
}

#[test]
fn a_redacted_run_plays_the_same_and_says_nothing() {
    let (mut same, mut tokens, mut stops) = (0, 0, 0);
    for seed in 0..seeds(50) {
        let (recorder, _) = record(seed, 600);
        let text = recorder.sink();
        let redacted = redact(text, &Key([seed, 77])).unwrap();
        assert_eq!(redacted, redact(text, &Key([seed, 77])).unwrap());
        assert_ne!(redacted, redact(text, &Key([seed, 78])).unwrap());
        assert!(!redacted.contains("remark"));
        let kept = text.lines().filter(|line| !line.starts_with('#'));
        let digests = |line: &&str| line.starts_with("saw ") || line.starts_with("step ");
        assert!(kept.clone().filter(digests).eq(redacted.lines().filter(digests)), "seed {seed}");
        assert_eq!(kept.count(), redacted.lines().count());

        let ((one, told), (two, redacted_told)) = (requests(text), requests(&redacted));
        assert_eq!(told, redacted_told, "seed {seed}: every answer has its length and its end");
        stops += told.values().flatten().filter(|what| *what == "finished stop").count();
        for (index, (prompt, other)) in one.iter().zip(&two).enumerate() {
            assert_eq!(prompt.len(), other.len());
            tokens += prompt.len();
            same += prompt.iter().zip(other).filter(|(one, two)| one == two).count();
            // ids that no token has become one and the same
            for before in (0..index).filter(|&before| real(prompt) && real(&one[before])) {
                let expected = shared(prompt, &one[before]);
                assert_eq!(
                    shared(other, &two[before]),
                    expected,
                    "seed {seed}: {prompt:?} {:?}",
                    one[before]
                );
            }
        }
    }
    // a twelfth is chance
    assert!(same * 6 < tokens, "{same} of {tokens} tokens stayed");
    assert!(stops > 100, "{stops} answers ended at a stop token");
}

/// What a model with a plain vocabulary would see: prompts, stop tokens and sampled tokens.
fn tokens(text: &str) -> Vec<Vec<u32>> {
    let (mut tokens, mut replay) = (Vec::new(), Replay::new(text).unwrap());
    replay
        .run(|_, played| match &played.input {
            Input::Add { spec, .. } => tokens.extend([spec.prompt.clone(), spec.stop_tokens.clone()]),
            Input::Commit { sampled, .. } => tokens.push(sampled.iter().map(|&token| token as u32).collect()),
            _ => {}
        })
        .unwrap();
    tokens
}

#[test]
fn an_answer_goes_on_where_the_prompt_ended() {
    // the second request is the next turn of the first one's talk: prompt, answer, stop token, and more
    let config = Config { vocab: 50_000, ..Config::default() };
    let mut core = Recorder::new(config, String::new(), None).unwrap();
    let mut plan = vec![0; core.plan_layout().length()];
    let spec = |id, prompt: &[u32]| RequestSpec {
        id,
        prompt: prompt.to_vec(),
        max_tokens: 9,
        stop_tokens: vec![49_999],
        ..RequestSpec::default()
    };
    core.add(0, spec(1, &[5, 6, 7])).unwrap();
    for (number, token) in [(1, 8), (2, 8), (3, 49_999)] {
        core.step(number, &mut plan).unwrap();
        core.commit(number, number, &[token]).unwrap();
    }
    core.add(9, spec(2, &[5, 6, 7, 8, 8, 49_999, 8])).unwrap();
    let redacted = tokens(&redact(core.sink(), &Key([3, 4])).unwrap());
    let [first, stops, one, two, three, second, _] = redacted.try_into().unwrap();
    assert_eq!(stops, [0], "the trace has one stop token");
    assert_eq!(three, stops, "it still stops");
    assert_eq!(second[..6], [first, one, two, three].concat()[..]);
    assert_ne!(second[3], second[4], "the same token elsewhere is another number");
    assert_ne!(second[3], second[6]);
    assert!(second.iter().all(|&token| token < 50_000));
}
