//! A tile of queries against its keys: lanes are keys for the scores, head elements for the values.

use std::arch::x86_64::*;

use super::wide::{exp, max, sum, Wide};
use super::Avx2;
use crate::attention::{State, Tile, BLOCK_KEYS};
use crate::kv::KvGeometry;

/// Pages of a block at most: a page has a multiple of 8 tokens.
const BLOCK_PAGES: usize = BLOCK_KEYS / 8;
/// Bytes asked for ahead at most: more would push out what is in use.
const FETCH_MAX: usize = 4096;

impl Avx2 {
    /// See [`crate::attention::attend_scalar`]; `page_tokens` and `head_dim` are multiples of 8.
    pub fn attend<N: Wide>(self, tile: &Tile<'_>, state: &mut State) {
        let KvGeometry { page_tokens, head_dim, .. } = tile.geometry;
        let queries = tile.seen.len();
        assert!(page_tokens % 8 == 0 && head_dim % 8 == 0 && queries > 0 && queries <= state.sum.len());
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
            // SAFETY: `self` proves the features; the asserts above and the sizes of `key_value` bound all accesses.
            unsafe { block_of::<N>(tile, state, begin, keys, &pages[..count], next) }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_of<N: Wide>(
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
    // SAFETY: `attend`'s asserts.
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
                let pair = page_tokens - slot >= 16 && here - slot > 8;
                let mut query = 0;
                while query < queries {
                    let q = tile.q.as_ptr().add(query * head_dim);
                    let to = to.add(query * block);
                    query += match (queries - query, pair) {
                        (6.., true) => dot::<N, 6, 2>(q, k, page_tokens, head_dim, to, block),
                        (3.., true) => dot::<N, 3, 2>(q, k, page_tokens, head_dim, to, block),
                        (_, true) => dot::<N, 1, 2>(q, k, page_tokens, head_dim, to, block),
                        (6.., false) => dot::<N, 6, 1>(q, k, page_tokens, head_dim, to, block),
                        (3.., false) => dot::<N, 3, 1>(q, k, page_tokens, head_dim, to, block),
                        (_, false) => dot::<N, 1, 1>(q, k, page_tokens, head_dim, to, block),
                    };
                }
                slot += if pair { 16 } else { 8 };
            }
        }
        for query in 0..queries {
            softmax(tile, state, query, begin, keys);
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
                d += match (head_dim - d, many) {
                    (16.., 6) => mix::<N, 6, 2>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (_, 6) => mix::<N, 6, 1>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (32.., 3) => mix::<N, 3, 4>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (_, 3) => mix::<N, 3, 1>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (64.., _) => mix::<N, 1, 8>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
                    (_, _) => mix::<N, 1, 1>(weights, block, pages, page_tokens, head_dim, d, keys, acc),
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

/// Scores of Q queries and V·8 neighbouring keys of a page; returns Q.
#[inline(always)]
unsafe fn dot<N: Wide, const Q: usize, const V: usize>(
    q: *const f32,
    k: *const u8,
    page_tokens: usize,
    head_dim: usize,
    to: *mut f32,
    block: usize,
) -> usize {
    // SAFETY: `attend`'s asserts.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); V]; Q];
        for d in 0..head_dim {
            let mut w = [_mm256_setzero_ps(); V];
            for (v, w) in w.iter_mut().enumerate() {
                *w = N::load8(k.add((d * page_tokens + v * 8) * N::SIZE));
            }
            for (i, acc) in acc.iter_mut().enumerate() {
                let q = _mm256_set1_ps(*q.add(i * head_dim + d));
                for v in 0..V {
                    acc[v] = _mm256_fmadd_ps(q, w[v], acc[v]);
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                _mm256_storeu_ps(to.add(i * block + v * 8), *acc);
            }
        }
    }
    Q
}

/// Turns one query's scores of the block into weights, exactly 0 for keys that it doesn't see.
#[inline(always)]
unsafe fn softmax(tile: &Tile<'_>, state: &mut State, query: usize, begin: usize, keys: usize) {
    let head_dim = tile.geometry.head_dim;
    // SAFETY: `attend`'s asserts; scores are written up to a multiple of 8 keys.
    unsafe {
        let scores = state.scores.as_mut_ptr().add(query * tile.block_keys());
        let seen = tile.seen[query].saturating_sub(begin).min(keys);
        let first = tile.first[query].saturating_sub(begin);
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let mask = |at: usize| {
            let below = |end: usize| {
                let left = end.saturating_sub(at).min(8) as i32;
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(left), lanes))
            };
            _mm256_andnot_ps(below(first), below(seen))
        };
        let mut most = _mm256_set1_ps(state.max[query]);
        for at in (first / 8 * 8..seen).step_by(8) {
            let score = _mm256_blendv_ps(
                _mm256_set1_ps(f32::NEG_INFINITY),
                _mm256_loadu_ps(scores.add(at)),
                mask(at),
            );
            most = _mm256_max_ps(score, most); // a NaN is dropped here and kept by exp below
        }
        let most = max(most);
        if most > state.max[query] {
            let factor = (state.max[query] - most).exp();
            state.sum[query] *= factor;
            state.max[query] = most;
            if factor != 1.0 && begin > 0 {
                let acc = state.acc.as_mut_ptr().add(query * head_dim);
                for d in (0..head_dim).step_by(8) {
                    let at = acc.add(d);
                    _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), _mm256_set1_ps(factor)));
                }
            }
        }
        let most = _mm256_set1_ps(most);
        let mut total = _mm256_setzero_ps();
        for at in (0..keys).step_by(8) {
            let weight = exp(_mm256_sub_ps(_mm256_loadu_ps(scores.add(at)), most));
            let weight = _mm256_and_ps(weight, mask(at));
            total = _mm256_add_ps(total, weight);
            _mm256_storeu_ps(scores.add(at), weight);
        }
        state.sum[query] += sum(total);
    }
}

/// Adds the block's weighted values to V vectors of Q accumulators; returns the elements of a head that it did.
#[inline(always)]
unsafe fn mix<N: Wide, const Q: usize, const V: usize>(
    weights: *const f32,
    block: usize,
    pages: &[(&[u8], &[u8])],
    page_tokens: usize,
    head_dim: usize,
    d: usize,
    keys: usize,
    to: *mut f32,
) -> usize {
    // SAFETY: `attend`'s asserts.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); V]; Q];
        for (i, acc) in acc.iter_mut().enumerate() {
            for (v, acc) in acc.iter_mut().enumerate() {
                *acc = _mm256_loadu_ps(to.add(i * head_dim + v * 8));
            }
        }
        for (index, (_, values)) in pages.iter().enumerate() {
            let weights = weights.add(index * page_tokens);
            for slot in 0..page_tokens.min(keys - index * page_tokens) {
                let value = values.as_ptr().add((slot * head_dim + d) * N::SIZE);
                // The smaller side is held, so that accumulators, that side and one more fit 16 registers.
                if V > Q {
                    let mut held = [_mm256_setzero_ps(); Q];
                    for (i, held) in held.iter_mut().enumerate() {
                        *held = _mm256_set1_ps(*weights.add(i * block + slot));
                    }
                    for v in 0..V {
                        let w = N::load8(value.add(v * 8 * N::SIZE));
                        for (acc, held) in acc.iter_mut().zip(held) {
                            acc[v] = _mm256_fmadd_ps(held, w, acc[v]);
                        }
                    }
                } else {
                    let mut held = [_mm256_setzero_ps(); V];
                    for (v, held) in held.iter_mut().enumerate() {
                        *held = N::load8(value.add(v * 8 * N::SIZE));
                    }
                    for (i, acc) in acc.iter_mut().enumerate() {
                        let weight = _mm256_set1_ps(*weights.add(i * block + slot));
                        for v in 0..V {
                            acc[v] = _mm256_fmadd_ps(weight, held[v], acc[v]);
                        }
                    }
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                _mm256_storeu_ps(to.add(i * head_dim + v * 8), *acc);
            }
        }
    }
    V * 8
}
