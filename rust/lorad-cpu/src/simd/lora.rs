//! Shrink (x·Aᵀ) and expand (s·B) of one chunk.
//!
//! Fixed orders, whatever the tile: a shrink sums lane i mod 8 along in, then the lanes, then the tail; an expand adds
//! its rank rows in ascending order to y.

use std::arch::x86_64::*;

use super::wide::{sum, sum4, Wide};
use super::Avx2;
use crate::lora::{ExpandChunk, ShrinkChunk};
use crate::shared::Parts;

impl Avx2 {
    /// See [`crate::lora::shrink_scalar`].
    pub fn shrink<N: Wide>(self, chunk: &ShrinkChunk<'_>, x: &[f32], s: &mut [f32]) {
        let ShrinkChunk { rows, len, tokens, x_stride, s_stride, .. } = *chunk;
        assert!(chunk.weights.len() >= rows * len * N::SIZE && tokens > 0 && rows > 0);
        assert!(x.len() >= (tokens - 1) * x_stride + len && s.len() >= (tokens - 1) * s_stride + rows);
        // SAFETY: `self` proves the features; the asserts keep every access in bounds.
        unsafe { shrink::<N>(chunk, x.as_ptr(), s.as_mut_ptr()) }
    }

    /// See [`crate::lora::expand_scalar`].
    ///
    /// # Safety
    /// As for [`crate::lora::expand_scalar`].
    pub unsafe fn expand<N: Wide>(self, chunk: &ExpandChunk<'_>, y: &Parts<'_, f32>, y_begin: usize) {
        let ExpandChunk { rows, stride, columns, tokens, y_stride, .. } = *chunk;
        assert!(rows > 0 && tokens > 0 && columns <= stride);
        assert!(chunk.weights.len() >= ((rows - 1) * stride + columns) * N::SIZE);
        assert!(chunk.coefficients.len() >= (tokens - 1) * chunk.coefficient_stride + rows);
        let y = y.pointer(y_begin, (tokens - 1) * y_stride + columns);
        // SAFETY: `self` proves the features, the asserts keep every access in bounds, the caller owns the columns.
        unsafe { expand::<N>(chunk, y) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn shrink<N: Wide>(chunk: &ShrinkChunk<'_>, x: *const f32, s: *mut f32) {
    let ShrinkChunk { rows, len, tokens, x_stride, s_stride, .. } = *chunk;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut t = 0;
        while t < tokens {
            let (x, s) = (x.add(t * x_stride), s.add(t * s_stride));
            let many = match tokens - t {
                1 => 1,
                2 => 2,
                4 => 2,
                _ => 3,
            };
            let mut j = 0;
            while j < rows {
                let a = chunk.weights.as_ptr().add(j * len * N::SIZE);
                let s = s.add(j);
                j += match (rows - j, many) {
                    (8.., 1) => shrink_tile::<N, 8, 1>(a, chunk, x, s),
                    (4.., 1) => shrink_tile::<N, 4, 1>(a, chunk, x, s),
                    (_, 1) => shrink_tile::<N, 1, 1>(a, chunk, x, s),
                    (4.., 2) => shrink_tile::<N, 4, 2>(a, chunk, x, s),
                    (_, 2) => shrink_tile::<N, 1, 2>(a, chunk, x, s),
                    (4.., _) => shrink_tile::<N, 4, 3>(a, chunk, x, s),
                    _ => shrink_tile::<N, 1, 3>(a, chunk, x, s),
                };
            }
            t += many;
        }
    }
}

/// R rank rows by T tokens; returns R.
#[inline(always)]
unsafe fn shrink_tile<N: Wide, const R: usize, const T: usize>(
    a: *const u8,
    chunk: &ShrinkChunk<'_>,
    x: *const f32,
    s: *mut f32,
) -> usize {
    let ShrinkChunk { len, x_stride, s_stride, add, .. } = *chunk;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); R]; T];
        let mut i = 0;
        while i + 8 <= len {
            let mut w = [_mm256_setzero_ps(); R];
            for (j, w) in w.iter_mut().enumerate() {
                *w = N::load8(a.add((j * len + i) * N::SIZE));
            }
            for (t, acc) in acc.iter_mut().enumerate() {
                let v = _mm256_loadu_ps(x.add(t * x_stride + i));
                for j in 0..R {
                    acc[j] = _mm256_fmadd_ps(v, w[j], acc[j]);
                }
            }
            i += 8;
        }
        for (t, acc) in acc.iter().enumerate() {
            let mut sums = [0f32; R];
            if R % 4 == 0 {
                for j in (0..R).step_by(4) {
                    let four = sum4([acc[j], acc[j + 1], acc[j + 2], acc[j + 3]]);
                    _mm_storeu_ps(sums.as_mut_ptr().add(j), four);
                }
            } else {
                for (j, total) in sums.iter_mut().enumerate() {
                    *total = sum(acc[j]);
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

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand<N: Wide>(chunk: &ExpandChunk<'_>, y: *mut f32) {
    let ExpandChunk { columns, tokens, y_stride, coefficient_stride, .. } = *chunk;
    let (b, c) = (chunk.weights.as_ptr(), chunk.coefficients.as_ptr());
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut at = 0;
        while at < columns {
            let b = b.add(at * N::SIZE);
            let (mut t, mut width) = (0, 1);
            while t < tokens {
                let (c, y) = (c.add(t * coefficient_stride), y.add(t * y_stride + at));
                // The column step depends on `columns` only, so all tokens of a block take the same one.
                (width, t) = match (columns - at, tokens - t) {
                    (32.., _) if tokens == 1 => (32, t + expand_tile::<N, 1, 4>(b, chunk, c, y)),
                    (16.., 6..) => (16, t + expand_tile::<N, 6, 2>(b, chunk, c, y)),
                    (16.., 4..) => (16, t + expand_tile::<N, 4, 2>(b, chunk, c, y)),
                    (16.., 2..) => (16, t + expand_tile::<N, 2, 2>(b, chunk, c, y)),
                    (16.., _) => (16, t + expand_tile::<N, 1, 2>(b, chunk, c, y)),
                    (8.., 4..) => (8, t + expand_tile::<N, 4, 1>(b, chunk, c, y)),
                    (8.., _) => (8, t + expand_tile::<N, 1, 1>(b, chunk, c, y)),
                    _ => {
                        for j in 0..chunk.rows {
                            let at = b.add(j * chunk.stride * N::SIZE);
                            let weight = N::get(std::slice::from_raw_parts(at, N::SIZE), 0);
                            *y = (*c.add(j)).mul_add(weight, *y);
                        }
                        (1, t + 1)
                    }
                };
            }
            at += width;
        }
    }
}

/// T tokens by V vectors of columns; returns T.
#[inline(always)]
unsafe fn expand_tile<N: Wide, const T: usize, const V: usize>(
    b: *const u8,
    chunk: &ExpandChunk<'_>,
    c: *const f32,
    y: *mut f32,
) -> usize {
    let ExpandChunk { rows, stride, y_stride, coefficient_stride, .. } = *chunk;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); V]; T];
        for (t, acc) in acc.iter_mut().enumerate() {
            for (v, acc) in acc.iter_mut().enumerate() {
                *acc = _mm256_loadu_ps(y.add(t * y_stride + v * 8));
            }
        }
        for j in 0..rows {
            let mut w = [_mm256_setzero_ps(); V];
            for (v, w) in w.iter_mut().enumerate() {
                *w = N::load8(b.add((j * stride + v * 8) * N::SIZE));
            }
            for (t, acc) in acc.iter_mut().enumerate() {
                let coefficient = _mm256_set1_ps(*c.add(t * coefficient_stride + j));
                for v in 0..V {
                    acc[v] = _mm256_fmadd_ps(coefficient, w[v], acc[v]);
                }
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                _mm256_storeu_ps(y.add(t * y_stride + v * 8), *acc);
            }
        }
    }
    T
}
