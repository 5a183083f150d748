//! A tile of queries against its keys: lanes are keys for the scores, head elements for the values.

use std::arch::x86_64::*;

use super::lanes::{exp, sum, Eight, Lanes, Sixteen};
use super::wide::{max, Wide};
use super::{Avx2, Avx512};
use crate::attention::{State, Tile, BLOCK_KEYS};
use crate::kv::KvGeometry;

/// Pages of a block at most: a page has as many tokens as there are lanes, or a multiple.
const BLOCK_PAGES: usize = BLOCK_KEYS / 8;
/// Bytes asked for ahead at most: more would push out what is in use.
const FETCH_MAX: usize = 4096;

/// Both widths' entries.
macro_rules! entries {
    ($proof:ident, $lanes:ident, $features:literal) => {
        impl $proof {
            /// See [`crate::attention::attend_scalar`]; `page_tokens` and `head_dim` are multiples of the lanes.
            pub fn attend<N: Wide>(self, tile: &Tile<'_>, state: &mut State) {
                #[target_feature(enable = $features)]
                unsafe fn run<N: Wide>(
                    tile: &Tile<'_>,
                    state: &mut State,
                    begin: usize,
                    keys: usize,
                    pages: &[(&[u8], &[u8])],
                    next: &[u8],
                ) {
                    // SAFETY: the caller's.
                    unsafe { block_of::<$lanes, N>(tile, state, begin, keys, pages, next) }
                }
                // SAFETY: `self` proves the features.
                unsafe { blocks(tile, state, $lanes::COUNT, run::<N>) }
            }
        }
    };
}

entries!(Avx2, Eight, "avx2,fma,f16c");
entries!(Avx512, Sixteen, "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma");

/// A block of keys: see [`block_of`].
type Block = unsafe fn(&Tile<'_>, &mut State, usize, usize, &[(&[u8], &[u8])], &[u8]);

/// Walks over the blocks of keys that a tile sees.
///
/// # Safety
/// The features that `run` needs are there.
unsafe fn blocks(tile: &Tile<'_>, state: &mut State, lanes: usize, run: Block) {
    let KvGeometry { page_tokens, head_dim, .. } = tile.geometry;
    let queries = tile.seen.len();
    assert!(page_tokens % lanes == 0 && head_dim % lanes == 0 && queries > 0 && queries <= state.sum.len());
    assert!(tile.q.len() >= queries * head_dim && state.acc.len() >= queries * head_dim);
    assert!(state.scores.len() >= queries * tile.block_keys() && tile.first.len() == queries);
    let seen_max = tile.seen.iter().copied().max().unwrap_or(0);
    let first_min = tile.first.iter().copied().min().unwrap_or(0);
    let block = tile.block_keys();
    // Blocks below every query's window are never read.
    for begin in (tile.block_begin(first_min)..seen_max).step_by(block) {
        let keys = block.min(seen_max - begin);
        let mut pages: [(&[u8], &[u8]); BLOCK_PAGES] = [(&[], &[]); BLOCK_PAGES];
        let count = keys.div_ceil(page_tokens);
        for (index, page) in pages[..count].iter_mut().enumerate() {
            *page = tile.key_value(begin / page_tokens + index);
        }
        let more = begin + block < seen_max;
        let next = if more { tile.key_value((begin + block) / page_tokens).0 } else { tile.next };
        // SAFETY: the caller's features; the asserts above and the sizes of `key_value` bound all accesses.
        unsafe { run(tile, state, begin, keys, &pages[..count], next) }
    }
}

#[inline(always)]
unsafe fn block_of<L: Lanes, N: Wide>(
    tile: &Tile<'_>,
    state: &mut State,
    begin: usize,
    keys: usize,
    pages: &[(&[u8], &[u8])],
    next: &[u8],
) {
    let KvGeometry { page_tokens, head_dim, .. } = tile.geometry;
    let (queries, block) = (tile.seen.len(), tile.block_keys());
    let scores = state.scores.as_mut_ptr();
    // SAFETY: the asserts of `blocks`.
    unsafe {
        for (index, (k, v)) in pages.iter().enumerate() {
            // Pages are scattered: fetch this one's values and the next one's keys while its scores are made.
            fetch(v);
            fetch(pages.get(index + 1).map_or(next, |(k, _)| k));
            let here = page_tokens.min(keys - index * page_tokens);
            let mut slot = 0;
            while slot < here {
                let k = k.as_ptr().add(slot * N::SIZE);
                let to = scores.add(index * page_tokens + slot);
                let pair = page_tokens - slot >= 2 * L::COUNT && here - slot > L::COUNT;
                let mut query = 0;
                while query < queries {
                    let q = tile.q.as_ptr().add(query * head_dim);
                    let to = to.add(query * block);
                    query += match (queries - query, pair) {
                        (12.., _) if L::COUNT == 16 => {
                            dot::<L, N, 12, 1>(q, k, page_tokens, head_dim, to, block)
                        }
                        (6.., true) => dot::<L, N, 6, 2>(q, k, page_tokens, head_dim, to, block),
                        (3.., true) => dot::<L, N, 3, 2>(q, k, page_tokens, head_dim, to, block),
                        (_, true) => dot::<L, N, 1, 2>(q, k, page_tokens, head_dim, to, block),
                        (6.., false) => dot::<L, N, 6, 1>(q, k, page_tokens, head_dim, to, block),
                        (3.., false) => dot::<L, N, 3, 1>(q, k, page_tokens, head_dim, to, block),
                        (_, false) => dot::<L, N, 1, 1>(q, k, page_tokens, head_dim, to, block),
                    };
                }
                slot += if pair && !(L::COUNT == 16 && queries >= 12) { 2 * L::COUNT } else { L::COUNT };
            }
        }
        for query in 0..queries {
            softmax::<L>(tile, state, query, begin, keys);
        }
        let mut query = 0;
        while query < queries {
            let weights = scores.add(query * block);
            let acc = state.acc.as_mut_ptr().add(query * head_dim);
            let many = match queries - query {
                6.. => 6,
                3.. => 3,
                _ => 1,
            };
            let mut d = 0;
            while d < head_dim {
                let acc = acc.add(d);
                d += match ((head_dim - d) / L::COUNT, many) {
                    (4.., 6) if L::COUNT == 16 => {
                        mix::<L, N, 6, 4>(weights, block, pages, page_tokens, head_dim, d, keys, acc)
                    }
                    (2.., 6) => mix::<L, N, 6, 2>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (_, 6) => mix::<L, N, 6, 1>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (4.., 3) => mix::<L, N, 3, 4>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (_, 3) => mix::<L, N, 3, 1>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (8.., _) => mix::<L, N, 1, 8>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (4.., _) => mix::<L, N, 1, 4>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (_, _) => mix::<L, N, 1, 1>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                };
            }
            query += many;
        }
    }
}

/// Asks for all lines of `bytes`.
#[inline(always)]
unsafe fn fetch(bytes: &[u8]) {
    for at in (0..bytes.len().min(FETCH_MAX)).step_by(64) {
        // SAFETY: within `bytes`, and a prefetch can't fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(at).cast()) };
    }
}

/// Scores of Q queries and V vectors of neighbouring keys of a page; returns Q.
#[inline(always)]
unsafe fn dot<L: Lanes, N: Wide, const Q: usize, const V: usize>(
    q: *const f32,
    k: *const u8,
    page_tokens: usize,
    head_dim: usize,
    to: *mut f32,
    block: usize,
) -> usize {
    // SAFETY: the asserts of `blocks`.
    unsafe {
        // AVX-512's registers hold two sums of each score, of even and of odd elements: with few queries one sum alone
        // waits for itself.
        let sums = if L::COUNT == 16 { 2 } else { 1 };
        let mut acc = [[[L::splat(0.0); V]; Q]; 2];
        for d in (0..head_dim).step_by(sums) {
            for (half, acc) in acc.iter_mut().enumerate().take(sums) {
                let d = d + half;
                let mut w = [L::splat(0.0); V];
                for (v, w) in w.iter_mut().enumerate() {
                    *w = L::widen::<N>(k.add((d * page_tokens + v * L::COUNT) * N::SIZE));
                }
                for (i, acc) in acc.iter_mut().enumerate() {
                    let q = L::splat(*q.add(i * head_dim + d));
                    for v in 0..V {
                        acc[v] = L::fma(q, w[v], acc[v]);
                    }
                }
            }
        }
        for (i, (even, odd)) in acc[0].iter().zip(&acc[1]).enumerate() {
            for (v, (even, odd)) in even.iter().zip(odd).enumerate() {
                let score = if sums == 2 { L::add(*even, *odd) } else { *even };
                L::store(to.add(i * block + v * L::COUNT), score);
            }
        }
    }
    Q
}

/// Turns one query's scores of the block into weights, exactly 0 for keys that it doesn't see.
#[inline(always)]
unsafe fn softmax<L: Lanes>(tile: &Tile<'_>, state: &mut State, query: usize, begin: usize, keys: usize) {
    let head_dim = tile.geometry.head_dim;
    // SAFETY: the asserts of `blocks`; scores are written up to a multiple of the lanes.
    unsafe {
        let scores = state.scores.as_mut_ptr().add(query * tile.block_keys());
        let seen = tile.seen[query].saturating_sub(begin).min(keys);
        let first = tile.first[query].saturating_sub(begin);
        let seen_only = |at: usize, value: L::Vector, other: f32| {
            L::select(first.saturating_sub(at), seen.saturating_sub(at), value, L::splat(other))
        };
        let mut most = L::splat(state.max[query]);
        for at in (first / L::COUNT * L::COUNT..seen).step_by(L::COUNT) {
            let score = seen_only(at, L::load(scores.add(at)), f32::NEG_INFINITY);
            most = L::max(score, most); // a NaN is dropped here and kept by exp below
        }
        let most = max(L::fold_max(most));
        if most > state.max[query] {
            let factor = (state.max[query] - most).exp();
            state.sum[query] *= factor;
            state.max[query] = most;
            if factor != 1.0 && begin > 0 {
                let acc = state.acc.as_mut_ptr().add(query * head_dim);
                for d in (0..head_dim).step_by(L::COUNT) {
                    let at = acc.add(d);
                    L::store(at, L::mul(L::load(at), L::splat(factor)));
                }
            }
        }
        let most = L::splat(most);
        let mut total = L::splat(0.0);
        for at in (0..keys).step_by(L::COUNT) {
            let weight = exp::<L>(L::sub(L::load(scores.add(at)), most));
            let weight = seen_only(at, weight, 0.0);
            total = L::add(total, weight);
            L::store(scores.add(at), weight);
        }
        state.sum[query] += sum::<L>(total);
    }
}

/// Adds the block's weighted values to V vectors of Q accumulators; returns the elements of a head that it did.
#[inline(always)]
unsafe fn mix<L: Lanes, N: Wide, const Q: usize, const V: usize>(
    weights: *const f32,
    block: usize,
    pages: &[(&[u8], &[u8])],
    page_tokens: usize,
    head_dim: usize,
    d: usize,
    keys: usize,
    to: *mut f32,
) -> usize {
    // SAFETY: the asserts of `blocks`.
    unsafe {
        let mut acc = [[L::splat(0.0); V]; Q];
        for (i, acc) in acc.iter_mut().enumerate() {
            for (v, acc) in acc.iter_mut().enumerate() {
                *acc = L::load(to.add(i * head_dim + v * L::COUNT));
            }
        }
        for (index, (_, values)) in pages.iter().enumerate() {
            let weights = weights.add(index * page_tokens);
            for slot in 0..page_tokens.min(keys - index * page_tokens) {
                let value = values.as_ptr().add((slot * head_dim + d) * N::SIZE);
                // The smaller side is held, so that accumulators, that side and one more fit 16 registers.
                if V > Q {
                    let mut held = [L::splat(0.0); Q];
                    for (i, held) in held.iter_mut().enumerate() {
                        *held = L::splat(*weights.add(i * block + slot));
                    }
                    for v in 0..V {
                        let w = L::widen::<N>(value.add(v * L::COUNT * N::SIZE));
                        for (acc, held) in acc.iter_mut().zip(held) {
                            acc[v] = L::fma(held, w, acc[v]);
                        }
                    }
                } else {
                    let mut held = [L::splat(0.0); V];
                    for (v, held) in held.iter_mut().enumerate() {
                        *held = L::widen::<N>(value.add(v * L::COUNT * N::SIZE));
                    }
                    for (i, acc) in acc.iter_mut().enumerate() {
                        let weight = L::splat(*weights.add(i * block + slot));
                        for v in 0..V {
                            acc[v] = L::fma(weight, held[v], acc[v]);
                        }
                    }
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                L::store(to.add(i * head_dim + v * L::COUNT), *acc);
            }
        }
    }
    V * L::COUNT
}
