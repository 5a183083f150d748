//! Choosing the next token of each row.
//!
//! What the row's request edits of its logits comes first (`edits`), then temperature scales; then a token must have at least min_p times the best one's probability, be among the top_k
//! best, and among the fewest best ones that hold top_p of what these filters left. Ties in logit go to the lower id.
//! The draw walks the kept tokens by ascending id with one uniform number from Philox-4x32-10 (Salmon et al., 2011),
//! keyed by the request's seed and counted by position: it depends on the request alone. The vocabulary is never
//! sorted: top_k keeps a short list, top_p sorts only the probabilities near the cut.
#![allow(unsafe_code)] // tasks write disjoint rows

use std::cell::RefCell;
use std::cmp::Ordering;

use crate::cpu::{Cpu, Level};
use crate::edits::Edits;
use crate::error::{length, require};
use crate::shared::Parts;
use crate::OpError;

/// Best tokens that can be asked for beside the chosen one.
pub const BEST_MAX: usize = 20;
/// What is chosen where a row holds a NaN or +infinity, or nothing but -infinity, before or after its edits.
pub const FAILED: i32 = -1;
/// A top_k up to this keeps a list; a larger one selects among all.
const LIST_MAX: usize = 1024;
/// Steps of the histogram of log-probabilities, and steps per nat.
const BUCKETS: usize = 512;
const BUCKETS_PER_NAT: f32 = 16.0;
/// Weights that are summed together.
const PART: usize = 512;

/// Parameters by row, each `[rows]`.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// 0 or less: greedy.
    pub temperature: &'a [f32],
    /// 0 or less: off.
    pub top_k: &'a [i32],
    /// 1 or more: off.
    pub top_p: &'a [f32],
    /// 0 or less: off.
    pub min_p: &'a [f32],
    /// The request's seed.
    pub seed: &'a [u64],
    /// Position of the token to come.
    pub counter: &'a [u32],
}

/// Where results go.
pub struct Chosen<'a> {
    /// `[rows]`; [`FAILED`] where a row can't be sampled.
    pub tokens: &'a mut [i32],
    /// `[rows]` of the log-softmax before edits and scaling, NaN where failed; or empty.
    pub logprobs: &'a mut [f32],
    /// `[rows, best]` or empty.
    pub best_tokens: &'a mut [i32],
    /// `[rows, best]` or empty.
    pub best_logprobs: &'a mut [f32],
}

/// A token and its logit; the better one is less.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    logit: f32,
    id: u32,
}

fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    // No NaN gets here; 0 and -0 are a tie.
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

#[derive(Default)]
struct Scratch {
    weights: Vec<f32>,
    list: Vec<Candidate>,
    edited: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Samples `logits` f32 `[rows, vocab]`.
pub fn sample(
    cpu: &Cpu,
    logits: &[f32],
    vocab: usize,
    parameters: Parameters<'_>,
    edits: Edits<'_>,
    chosen: Chosen<'_>,
) -> Result<(), OpError> {
    let rows = chosen.tokens.len();
    require(vocab > 0 && vocab < i32::MAX as usize, "vocab must be positive", vocab)?;
    length("logits", rows * vocab, logits.len())?;
    for (what, got) in [
        ("temperature", parameters.temperature.len()),
        ("top_k", parameters.top_k.len()),
        ("top_p", parameters.top_p.len()),
        ("min_p", parameters.min_p.len()),
        ("seed", parameters.seed.len()),
        ("counter", parameters.counter.len()),
    ] {
        length(what, rows, got)?;
    }
    edits.check(rows, vocab)?;
    let with_logprobs = !chosen.logprobs.is_empty();
    if with_logprobs {
        length("logprobs", rows, chosen.logprobs.len())?;
    }
    let best = chosen.best_tokens.len().checked_div(rows).unwrap_or(0);
    length("best_tokens", best * rows, chosen.best_tokens.len())?;
    length("best_logprobs", best * rows, chosen.best_logprobs.len())?;
    require(best <= BEST_MAX.min(vocab), "best_tokens: at most 20 and the vocabulary", best)?;

    let (tokens, logprobs) = (Parts::new(chosen.tokens), Parts::new(chosen.logprobs));
    let (best_tokens, best_logprobs) = (Parts::new(chosen.best_tokens), Parts::new(chosen.best_logprobs));
    cpu.pool.run(rows, &|row| {
        // SAFETY: each row is one task.
        let (token, best_tokens, best_logprobs) = unsafe {
            (
                &mut tokens.part(row, 1)[0],
                best_tokens.part(row * best, best),
                best_logprobs.part(row * best, best),
            )
        };
        // SAFETY: as above.
        let logprob = unsafe { logprobs.part(row * usize::from(with_logprobs), usize::from(with_logprobs)) };
        let row_logits = &logits[row * vocab..][..vocab];
        SCRATCH.with_borrow_mut(|scratch| {
            let max = max_finite(cpu.level, row_logits);
            let id = max.and_then(|max| {
                if !edits.touch(row) {
                    return Some(choose(cpu.level, row_logits, max, &parameters, row, scratch));
                }
                let mut edited = std::mem::take(&mut scratch.edited);
                edits.apply(row, row_logits, &mut edited);
                let id = max_finite(cpu.level, &edited)
                    .map(|max| choose(cpu.level, &edited, max, &parameters, row, scratch));
                scratch.edited = edited;
                id
            });
            let (Some(max), Some(id)) = (max, id) else {
                *token = FAILED;
                logprob.fill(f32::NAN);
                best_tokens.fill(FAILED);
                best_logprobs.fill(f32::NAN);
                return;
            };
            *token = id as i32;
            if !with_logprobs && best == 0 {
                return;
            }
            let norm = sum_exp(cpu.level, row_logits, max).ln() as f32;
            logprob.fill(row_logits[id] - max - norm);
            if best > 0 {
                top(row_logits, best, &mut scratch.list);
                for (candidate, (id, logprob)) in
                    scratch.list.iter().zip(best_tokens.iter_mut().zip(best_logprobs))
                {
                    (*id, *logprob) = (candidate.id as i32, candidate.logit - max - norm);
                }
            }
        });
    });
    Ok(())
}

fn max_finite(level: Level, logits: &[f32]) -> Option<f32> {
    let (max, finite) = match level {
        Level::Portable => {
            let finite = logits.iter().all(|x| !x.is_nan() && *x < f32::INFINITY);
            (logits.iter().copied().fold(f32::NEG_INFINITY, f32::max), finite)
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.max_finite(logits),
    };
    (finite && max > f32::NEG_INFINITY).then_some(max)
}

fn sum_exp(level: Level, logits: &[f32], max: f32) -> f64 {
    match level {
        Level::Portable => logits.iter().map(|x| f64::from((x - max).exp())).sum(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.sum_exp(logits, max, 1.0),
    }
}

fn write_exp(level: Level, out: &mut [f32], logits: &[f32], max: f32, factor: f32) {
    match level {
        Level::Portable => {
            for (out, x) in out.iter_mut().zip(logits) {
                *out = ((x - max) * factor).exp();
            }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) | Level::Avx512(avx2, _) => {
            avx2.write_exp(out, logits, max, factor);
        }
    }
}

fn choose(
    level: Level,
    logits: &[f32],
    max: f32,
    parameters: &Parameters<'_>,
    row: usize,
    scratch: &mut Scratch,
) -> usize {
    let temperature = parameters.temperature[row];
    let best = || logits.iter().position(|x| *x == max).unwrap_or(0);
    // A NaN temperature is no temperature.
    if temperature.is_nan() || temperature <= 0.0 {
        return best();
    }
    let factor = (1.0 / temperature).min(f32::MAX);
    let (top_p, min_p) = (parameters.top_p[row], parameters.min_p[row]);
    let top_k = usize::try_from(parameters.top_k[row]).unwrap_or(0);
    let uniform = uniform(parameters.seed[row], parameters.counter[row]);
    let Scratch { weights, list, .. } = scratch;
    if top_k > 0 && top_k < logits.len() && top_k <= LIST_MAX {
        top(logits, top_k, list);
        weights.clear();
        weights.extend(list.iter().map(|candidate| ((candidate.logit - max) * factor).exp()));
        let mut keep = weights.iter().position(|weight| *weight < min_p).unwrap_or(list.len()).max(1);
        if top_p < 1.0 {
            keep = prefix(weights[..keep].iter().copied(), top_p);
        }
        let mut kept: Vec<(u32, f32)> = list[..keep]
            .iter()
            .zip(weights.iter())
            .map(|(candidate, weight)| (candidate.id, *weight))
            .collect();
        kept.sort_unstable_by_key(|(id, _)| *id);
        weights.clear();
        weights.extend(kept.iter().map(|(_, weight)| weight));
        return draw(weights, uniform).map_or_else(best, |index| kept[index].0 as usize);
    }
    weights.resize(logits.len(), 0.0);
    write_exp(level, weights, logits, max, factor);
    if min_p > 0.0 {
        weights.iter_mut().for_each(|weight| *weight = if *weight < min_p { 0.0 } else { *weight });
    }
    if top_k > 0 && top_k < logits.len() {
        list.clear();
        list.extend(logits.iter().enumerate().map(|(id, &logit)| Candidate { logit, id: id as u32 }));
        list.select_nth_unstable_by(top_k - 1, better_first);
        list[top_k..].iter().for_each(|candidate| weights[candidate.id as usize] = 0.0);
    }
    if top_p < 1.0 {
        nucleus(logits, max, factor, top_p, weights, list);
    }
    draw(weights, uniform).unwrap_or_else(best)
}

/// How many of the descending `weights` hold `top_p` of their sum; at least one.
fn prefix(weights: impl Iterator<Item = f32> + Clone, top_p: f32) -> usize {
    let total: f64 = weights.clone().map(f64::from).sum();
    let wanted = f64::from(top_p.max(0.0)) * total;
    let (mut sum, mut keep) = (0.0, 0);
    for weight in weights {
        sum += f64::from(weight);
        keep += 1;
        if sum >= wanted {
            break;
        }
    }
    keep.max(1)
}

/// Zeroes the weights outside the fewest best tokens that hold `top_p` of the sum.
fn nucleus(
    logits: &[f32],
    max: f32,
    factor: f32,
    top_p: f32,
    weights: &mut [f32],
    list: &mut Vec<Candidate>,
) {
    let bucket = |logit: f32| (((max - logit) * factor * BUCKETS_PER_NAT) as usize).min(BUCKETS - 1);
    let mut sums = [0f64; BUCKETS];
    for (logit, weight) in logits.iter().zip(&*weights) {
        if *weight > 0.0 {
            sums[bucket(*logit)] += f64::from(*weight);
        }
    }
    let total: f64 = sums.iter().sum();
    let wanted = f64::from(top_p.max(0.0)) * total;
    let (mut before, mut cut) = (0.0, 0);
    while cut + 1 < BUCKETS && before + sums[cut] < wanted {
        before += sums[cut];
        cut += 1;
    }
    list.clear();
    for (id, logit) in logits.iter().enumerate() {
        let here = bucket(*logit);
        if here > cut {
            weights[id] = 0.0;
        } else if here == cut && weights[id] > 0.0 {
            list.push(Candidate { logit: *logit, id: id as u32 });
        }
    }
    list.sort_unstable_by(better_first);
    let mut sum = before;
    let mut keep = list.len();
    for (index, candidate) in list.iter().enumerate() {
        sum += f64::from(weights[candidate.id as usize]);
        if sum >= wanted {
            keep = index + 1;
            break;
        }
    }
    list[keep..].iter().for_each(|candidate| weights[candidate.id as usize] = 0.0);
}

/// The `count` best tokens, best first.
fn top(logits: &[f32], count: usize, list: &mut Vec<Candidate>) {
    let room = (count * 4).max(64);
    list.clear();
    let mut least = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        // A later token with the same logit as the last one kept is worse than it.
        if logit > least || list.len() < count {
            list.push(Candidate { logit, id: id as u32 });
            if list.len() >= room {
                list.select_nth_unstable_by(count - 1, better_first);
                list.truncate(count);
                least = list[count - 1].logit;
            }
        }
    }
    list.sort_unstable_by(better_first);
    list.truncate(count);
}

/// The index at which the running sum of `weights` passes `uniform` of the total; none if all are 0.
fn draw(weights: &[f32], uniform: f64) -> Option<usize> {
    let part_sum = |part: &[f32]| {
        let mut lanes = [0f32; 8];
        for eight in part.chunks(8) {
            for (lane, weight) in lanes.iter_mut().zip(eight) {
                *lane += weight;
            }
        }
        lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>()
    };
    let total: f64 = weights.chunks(PART).map(part_sum).sum();
    let mut left = uniform * total;
    for (number, part) in weights.chunks(PART).enumerate() {
        let sum = part_sum(part);
        if left < sum {
            for (index, weight) in part.iter().enumerate() {
                left -= f64::from(*weight);
                if left < 0.0 {
                    return Some(number * PART + index);
                }
            }
            // The part's sum was rounded up: its last token.
            return part.iter().rposition(|weight| *weight > 0.0).map(|index| number * PART + index);
        }
        left -= sum;
    }
    weights.iter().rposition(|weight| *weight > 0.0)
}

/// A number in [0, 1) from a seed and a counter.
pub fn uniform(seed: u64, counter: u32) -> f64 {
    let [a, b, _, _] = philox([counter, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(a) << 32 | u64::from(b);
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Philox-4x32-10.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}
