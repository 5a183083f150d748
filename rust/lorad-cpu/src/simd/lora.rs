//! Shrink (x·Aᵀ) and expand (s·B) of one chunk.
//!
//! Fixed orders, whatever the tile: a shrink sums lane i mod 8 (of AVX-512: 16) along in, then the lanes, then the tail; an
//! expand adds up its rank rows in ascending order, then that to y. Tiles are what the registers hold: 16 of AVX2, 32 of AVX-512.

use std::arch::x86_64::*;

use lorad_blocks::layout::TILE_ROWS;

use super::lanes::{sum, Eight, Lanes, Sixteen};
use super::wide::{sum4, Wide};
use super::{Avx2, Avx512};
use crate::fetch::Fetch;
use crate::lora::chunk::{ExpandChunk, ExpandTile, ShrinkChunk};
use crate::shared::Parts;

/// Both widths' entries.
macro_rules! entries {
    ($proof:ident, $lanes:ident, $features:literal) => {
        impl $proof {
            /// See [`crate::lora::chunk::shrink_scalar`].
            pub fn shrink<N: Wide>(self, chunk: &ShrinkChunk<'_>, x: &[f32], s: &mut [f32]) {
                #[target_feature(enable = $features)]
                unsafe fn run<N: Wide>(chunk: &ShrinkChunk<'_>, x: *const f32, s: *mut f32) {
                    // SAFETY: the caller's.
                    unsafe { shrink::<$lanes, N>(chunk, x, s) }
                }
                let ShrinkChunk { rows, len, tokens, x_stride, s_stride, .. } = *chunk;
                assert!(chunk.weights.len() >= rows * len * N::SIZE && tokens > 0 && rows > 0);
                assert!(
                    x.len() >= (tokens - 1) * x_stride + len && s.len() >= (tokens - 1) * s_stride + rows
                );
                // SAFETY: `self` proves the features; the asserts keep every access in bounds.
                unsafe { run::<N>(chunk, x.as_ptr(), s.as_mut_ptr()) }
            }

            /// See [`crate::lora::chunk::expand_scalar`].
            ///
            /// # Safety
            /// As for [`crate::lora::chunk::expand_scalar`].
            pub unsafe fn expand<N: Wide>(
                self,
                chunk: &ExpandChunk<'_>,
                y: &Parts<'_, f32>,
                y_begin: usize,
                fetch: &mut Fetch,
            ) {
                #[target_feature(enable = $features)]
                unsafe fn run<N: Wide>(chunk: &ExpandChunk<'_>, y: *mut f32, fetch: &mut Fetch) {
                    // SAFETY: the caller's.
                    unsafe { expand::<$lanes, N>(chunk, y, fetch) }
                }
                let ExpandChunk { columns, tokens, y_stride, .. } = *chunk;
                assert!(tokens > 0);
                for ExpandTile { weights, rows, stride, coefficients } in chunk.tiles {
                    assert!(*rows > 0 && columns <= *stride);
                    assert!(weights.len() >= ((rows - 1) * stride + columns) * N::SIZE);
                    assert!(coefficients.len() >= tokens * rows);
                }
                let y = y.pointer(y_begin, (tokens - 1) * y_stride + columns);
                // SAFETY: `self` proves the features, the asserts keep every access in bounds, the caller owns the columns.
                unsafe { run::<N>(chunk, y, fetch) }
            }
        }
    };
}

entries!(Avx2, Eight, "avx2,fma,f16c");
entries!(Avx512, Sixteen, "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma");

#[inline(always)]
unsafe fn shrink<L: Lanes, N: Wide>(chunk: &ShrinkChunk<'_>, x: *const f32, s: *mut f32) {
    let ShrinkChunk { rows, len, tokens, x_stride, s_stride, .. } = *chunk;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut t = 0;
        while t < tokens {
            let (x, s) = (x.add(t * x_stride), s.add(t * s_stride));
            let many = match tokens - t {
                6.. => 6,
                3..=5 => 3,
                left => left,
            };
            let mut j = 0;
            while j < rows {
                let a = chunk.weights.as_ptr().add(j * len * N::SIZE);
                let s = s.add(j);
                j += match (rows - j, many) {
                    (4.., 6) if L::COUNT == 16 => shrink_tile::<L, N, 4, 6>(a, chunk, x, s),
                    (8.., 3) if L::COUNT == 16 => shrink_tile::<L, N, 8, 3>(a, chunk, x, s),
                    (8.., 1) => shrink_tile::<L, N, 8, 1>(a, chunk, x, s),
                    (4.., 1) => shrink_tile::<L, N, 4, 1>(a, chunk, x, s),
                    (_, 1) => shrink_tile::<L, N, 1, 1>(a, chunk, x, s),
                    (4.., 2) => shrink_tile::<L, N, 4, 2>(a, chunk, x, s),
                    (_, 2) => shrink_tile::<L, N, 1, 2>(a, chunk, x, s),
                    (4.., 3) => shrink_tile::<L, N, 4, 3>(a, chunk, x, s),
                    (_, 3) => shrink_tile::<L, N, 1, 3>(a, chunk, x, s),
                    (2.., _) => shrink_tile::<L, N, 2, 6>(a, chunk, x, s),
                    _ => shrink_tile::<L, N, 1, 6>(a, chunk, x, s),
                };
            }
            t += many;
        }
    }
}

/// R rank rows by T tokens; returns R.
#[inline(always)]
unsafe fn shrink_tile<L: Lanes, N: Wide, const R: usize, const T: usize>(
    a: *const u8,
    chunk: &ShrinkChunk<'_>,
    x: *const f32,
    s: *mut f32,
) -> usize {
    let ShrinkChunk { len, x_stride, s_stride, add, .. } = *chunk;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut acc = [[L::splat(0.0); R]; T];
        let mut i = 0;
        while i + L::COUNT <= len {
            if T == 1 && R == TILE_ROWS {
                ahead::<L, N>(chunk.next, i);
            }
            let mut w = [L::splat(0.0); R];
            for (j, w) in w.iter_mut().enumerate() {
                *w = L::widen::<N>(a.add((j * len + i) * N::SIZE));
            }
            for (t, acc) in acc.iter_mut().enumerate() {
                let v = L::load(x.add(t * x_stride + i));
                for j in 0..R {
                    acc[j] = L::fma(v, w[j], acc[j]);
                }
            }
            i += L::COUNT;
        }
        for (t, acc) in acc.iter().enumerate() {
            let mut sums = [0f32; R];
            if R.is_multiple_of(4) {
                for j in (0..R).step_by(4) {
                    let [a, b, c, d] = [acc[j], acc[j + 1], acc[j + 2], acc[j + 3]];
                    let four = sum4([L::fold(a), L::fold(b), L::fold(c), L::fold(d)]);
                    _mm_storeu_ps(sums.as_mut_ptr().add(j), four);
                }
            } else {
                for (j, total) in sums.iter_mut().enumerate() {
                    *total = sum::<L>(acc[j]);
                }
            }
            for (j, total) in sums.iter_mut().enumerate() {
                for k in i..len {
                    let weight =
                        N::get(std::slice::from_raw_parts(a.add((j * len + k) * N::SIZE), N::SIZE), 0);
                    *total = weight.mul_add(*x.add(t * x_stride + k), *total);
                }
                let to = s.add(t * s_stride + j);
                *to = if add { *to + *total } else { *total };
            }
        }
    }
    R
}

/// Fetches what a step of columns of a full tile takes from the chunk that comes next: one token's work is bound
/// by memory, and chunks are too short for the hardware to see a stream.
#[inline(always)]
unsafe fn ahead<L: Lanes, N: Wide>(next: &[u8], column: usize) {
    let step = TILE_ROWS * N::SIZE * L::COUNT;
    let begin = column / L::COUNT * step;
    for line in (begin..begin + step).step_by(64) {
        if line < next.len() {
            // SAFETY: within `next`, and a prefetch can't fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(next.as_ptr().add(line).cast()) };
        }
    }
}

#[inline(always)]
unsafe fn expand<L: Lanes, N: Wide>(chunk: &ExpandChunk<'_>, y: *mut f32, fetch: &mut Fetch) {
    let ExpandChunk { tokens, y_stride, .. } = *chunk;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut t = 0;
        // Token by token, so that the rows of y stay in the first cache while their columns are passed.
        while t < tokens {
            let y = y.add(t * y_stride);
            t += match tokens - t {
                8.. if L::COUNT == 16 => expand_rows::<L, N, 8, 2>(chunk, t, y, fetch),
                6.. => expand_rows::<L, N, 6, 2>(chunk, t, y, fetch),
                4.. => expand_rows::<L, N, 4, 2>(chunk, t, y, fetch),
                2.. => expand_rows::<L, N, 2, 2>(chunk, t, y, fetch),
                _ if L::COUNT == 16 => expand_rows::<L, N, 1, 8>(chunk, t, y, fetch),
                _ => expand_rows::<L, N, 1, 4>(chunk, t, y, fetch),
            };
        }
    }
}

/// All columns of T tokens from `token` on, V vectors at a time; returns T.
#[inline(always)]
unsafe fn expand_rows<L: Lanes, N: Wide, const T: usize, const V: usize>(
    chunk: &ExpandChunk<'_>,
    token: usize,
    y: *mut f32,
    fetch: &mut Fetch,
) -> usize {
    let ExpandChunk { columns, y_stride, .. } = *chunk;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut at = 0;
        while at + V * L::COUNT <= columns {
            fetch.step();
            expand_tile::<L, N, T, V>(chunk, token, at, y.add(at));
            at += V * L::COUNT;
        }
        while at + L::COUNT <= columns {
            expand_tile::<L, N, T, 1>(chunk, token, at, y.add(at));
            at += L::COUNT;
        }
        for at in at..columns {
            for t in 0..T {
                let y = y.add(t * y_stride + at);
                let mut sum = 0f32;
                for tile in chunk.tiles {
                    for j in 0..tile.rows {
                        let coefficient = tile.coefficients[(token + t) * tile.rows + j];
                        sum = coefficient.mul_add(N::get(tile.weights, j * tile.stride + at), sum);
                    }
                }
                *y += sum;
            }
        }
    }
    T
}

/// T tokens by V vectors of columns from `at` on.
#[inline(always)]
unsafe fn expand_tile<L: Lanes, N: Wide, const T: usize, const V: usize>(
    chunk: &ExpandChunk<'_>,
    token: usize,
    at: usize,
    y: *mut f32,
) {
    let y_stride = chunk.y_stride;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut acc = [[L::splat(0.0); V]; T];
        for ExpandTile { weights, rows, stride, coefficients } in chunk.tiles {
            let (b, c) = (weights.as_ptr().add(at * N::SIZE), coefficients.as_ptr().add(token * rows));
            for j in 0..*rows {
                let mut w = [L::splat(0.0); V];
                for (v, w) in w.iter_mut().enumerate() {
                    *w = L::widen::<N>(b.add((j * stride + v * L::COUNT) * N::SIZE));
                }
                for (t, acc) in acc.iter_mut().enumerate() {
                    let coefficient = L::splat(*c.add(t * rows + j));
                    for v in 0..V {
                        acc[v] = L::fma(coefficient, w[v], acc[v]);
                    }
                }
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                let y = y.add(t * y_stride + v * L::COUNT);
                L::store(y, L::add(L::load(y), *acc));
            }
        }
    }
}
