//! Integer dot products: eight weight rows are the lanes, four columns one 32-bit lane; `maddubs` multiplies.

use std::arch::x86_64::*;

use super::wide::{max, sum};
use super::Avx2;
use crate::quant::kernel::{Panel, Rounded, Weights, BLOCK, LANES};
use crate::shared::Parts;

/// Bytes of a block of the panel: [`LANES`] rows of [`BLOCK`] columns.
const PANEL_BLOCK: usize = LANES * BLOCK;

impl Avx2 {
    /// See [`crate::quant::kernel::round_scalar`].
    pub fn round_row(self, x: &[f32], q: &mut [i8], scale: &mut [f32], sum: &mut [f32]) {
        let blocks = scale.len();
        assert!(x.len() == blocks * BLOCK && q.len() == x.len() && sum.len() == blocks);
        // SAFETY: `self` proves the features; the lengths fit.
        unsafe { round_row(x, q, scale, sum) }
    }

    /// Widens packed nibbles `[blocks][4][8 rows][4 bytes]` of one group to the panel's bytes.
    pub fn unpack_nibbles(self, packed: &[u8], stride: usize, panel: &mut [u8]) {
        let blocks = panel.len() / PANEL_BLOCK;
        assert!(
            stride >= PANEL_BLOCK / 2
                && (blocks == 0 || packed.len() >= (blocks - 1) * stride + PANEL_BLOCK / 2)
        );
        // SAFETY: `self` proves the features; the lengths fit.
        unsafe { unpack_nibbles(packed, stride, panel) }
    }

    /// Widens eight halves of each block.
    pub fn unpack_scales(self, packed: &[u8], stride: usize, scales: &mut [f32]) {
        let blocks = scales.len() / LANES;
        assert!(blocks == 0 || packed.len() >= (blocks - 1) * stride + LANES * 2);
        // SAFETY: `self` proves the features; the lengths fit.
        unsafe { unpack_scales(packed, stride, scales) }
    }

    /// See [`crate::quant::kernel::multiply_scalar`].
    ///
    /// # Safety
    /// As for [`crate::quant::kernel::multiply_scalar`].
    pub unsafe fn multiply(
        self,
        panel: &Panel<'_>,
        x: &Rounded<'_>,
        tokens: std::ops::Range<usize>,
        y: &Parts<'_, f32>,
        y_begin: usize,
        y_stride: usize,
    ) {
        let blocks = panel.scale.len() / LANES;
        assert!(panel.q.len() == blocks * PANEL_BLOCK && panel.rows > 0 && panel.rows <= LANES);
        assert!(x.blocks == blocks && x.q.len() >= tokens.end * blocks * BLOCK);
        assert!(x.scale.len() >= tokens.end * blocks && x.sum.len() >= tokens.end * blocks);
        if let Weights::Small { min: Some(min) } = panel.weights {
            assert_eq!(min.len(), panel.scale.len());
        }
        if tokens.is_empty() {
            return;
        }
        let y = y.pointer(y_begin + tokens.start * y_stride, (tokens.len() - 1) * y_stride + panel.rows);
        // SAFETY: `self` proves the features, the asserts bound all accesses, the caller owns the columns of y.
        unsafe { multiply(panel, x, tokens, y, y_stride) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_row(x: &[f32], q: &mut [i8], scale: &mut [f32], sums: &mut [f32]) {
    for block in 0..scale.len() {
        // SAFETY: the wrapper's asserts.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            let from = x.as_ptr().add(block * BLOCK);
            let v = [0, 8, 16, 24].map(|i| _mm256_loadu_ps(from.add(i)));
            let abs = v.map(|v| _mm256_andnot_ps(sign, v));
            let most = max(_mm256_max_ps(_mm256_max_ps(abs[0], abs[1]), _mm256_max_ps(abs[2], abs[3])));
            // NaN or infinity anywhere makes the block's scale NaN, which nothing downstream can lose.
            let mut zero = _mm256_setzero_ps();
            for v in v {
                zero = _mm256_fmadd_ps(v, _mm256_setzero_ps(), zero);
            }
            let d = most / 127.0 + sum(zero);
            let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
            let i = v.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, _mm256_set1_ps(inverse))));
            let total = _mm256_add_epi32(_mm256_add_epi32(i[0], i[1]), _mm256_add_epi32(i[2], i[3]));
            let low = _mm256_packs_epi32(i[0], i[1]);
            let high = _mm256_packs_epi32(i[2], i[3]);
            let bytes = _mm256_packs_epi16(low, high);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(q.as_mut_ptr().add(block * BLOCK).cast(), bytes);
            let half = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256::<1>(total));
            let half = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
            let half = _mm_add_epi32(half, _mm_shuffle_epi32::<0b10_11_00_01>(half));
            scale[block] = d;
            sums[block] = d * _mm_cvtsi128_si32(half) as f32;
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_nibbles(packed: &[u8], stride: usize, panel: &mut [u8]) {
    for (block, to) in panel.chunks_exact_mut(PANEL_BLOCK).enumerate() {
        // SAFETY: the wrapper's asserts.
        unsafe {
            let from = packed.as_ptr().add(block * stride);
            let to = to.as_mut_ptr();
            let mask = _mm256_set1_epi8(15);
            for p in 0..4 {
                let both = _mm256_loadu_si256(from.add(p * 32).cast());
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask);
                _mm256_storeu_si256(to.add(p * 32).cast(), _mm256_and_si256(both, mask));
                _mm256_storeu_si256(to.add((p + 4) * 32).cast(), high);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_scales(packed: &[u8], stride: usize, scales: &mut [f32]) {
    for (block, to) in scales.chunks_exact_mut(LANES).enumerate() {
        // SAFETY: the wrapper's asserts.
        unsafe {
            let halves = _mm_loadu_si128(packed.as_ptr().add(block * stride).cast());
            _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(halves));
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply(
    panel: &Panel<'_>,
    x: &Rounded<'_>,
    tokens: std::ops::Range<usize>,
    y: *mut f32,
    y_stride: usize,
) {
    let (mut t, mut y) = (tokens.start, y);
    // SAFETY: the wrapper's asserts.
    unsafe {
        while t < tokens.end {
            let many = match (tokens.end - t, panel.weights) {
                (4.., Weights::Small { min: Some(_) }) => tile::<4, 1>(panel, x, t, y, y_stride),
                (_, Weights::Small { min: Some(_) }) => tile::<1, 1>(panel, x, t, y, y_stride),
                (4.., Weights::Small { min: None }) => tile::<4, 0>(panel, x, t, y, y_stride),
                (_, Weights::Small { min: None }) => tile::<1, 0>(panel, x, t, y, y_stride),
                (4.., Weights::Signed) => tile::<4, 2>(panel, x, t, y, y_stride),
                (_, Weights::Signed) => tile::<1, 2>(panel, x, t, y, y_stride),
            };
            t += many;
            y = y.add(many * y_stride);
        }
    }
}

/// T tokens by eight rows. KIND 0: weights 0..=15; 1: with a minimum per block; 2: weights -128..=127. Returns T.
#[inline(always)]
unsafe fn tile<const T: usize, const KIND: u8>(
    panel: &Panel<'_>,
    x: &Rounded<'_>,
    token: usize,
    y: *mut f32,
    y_stride: usize,
) -> usize {
    let blocks = x.blocks;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let xq = x.q.as_ptr().add(token * blocks * BLOCK);
        let (xs, xm) = (x.scale.as_ptr().add(token * blocks), x.sum.as_ptr().add(token * blocks));
        let min = match panel.weights {
            Weights::Small { min: Some(min) } => min.as_ptr(),
            _ => panel.scale.as_ptr(),
        };
        let mut acc = [_mm256_setzero_ps(); T];
        for block in 0..blocks {
            let w = panel.q.as_ptr().add(block * PANEL_BLOCK);
            let xq = xq.add(block * BLOCK);
            let mut dot = [_mm256_setzero_si256(); T];
            for k in 0..BLOCK / 4 {
                let w = _mm256_loadu_si256(w.add(k * 32).cast());
                let size = _mm256_abs_epi8(w);
                for (t, dot) in dot.iter_mut().enumerate() {
                    let four = xq.add(t * blocks * BLOCK + k * 4).cast::<i32>().read_unaligned();
                    let four = _mm256_set1_epi32(four);
                    if KIND == 2 {
                        // |w| · sign(x, w): 127 · 127 · 2 fits 16 bits, two of them don't.
                        let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(four, w));
                        *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(pairs, ones));
                    } else {
                        // 8 · 15 · 127 · 2 fits 16 bits: one widening for the block.
                        *dot = _mm256_add_epi16(*dot, _mm256_maddubs_epi16(w, four));
                    }
                }
            }
            let scale = _mm256_loadu_ps(panel.scale.as_ptr().add(block * LANES));
            for t in 0..T {
                let dot = if KIND == 2 { dot[t] } else { _mm256_madd_epi16(dot[t], ones) };
                let both = _mm256_mul_ps(scale, _mm256_set1_ps(*xs.add(t * blocks + block)));
                acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, acc[t]);
                if KIND == 1 {
                    let min = _mm256_loadu_ps(min.add(block * LANES));
                    acc[t] = _mm256_fmadd_ps(min, _mm256_set1_ps(*xm.add(t * blocks + block)), acc[t]);
                }
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            let y = y.add(t * y_stride);
            if panel.rows == LANES {
                _mm256_storeu_ps(y, *acc);
            } else {
                let mut rows = [0f32; LANES];
                _mm256_storeu_ps(rows.as_mut_ptr(), *acc);
                std::ptr::copy_nonoverlapping(rows.as_ptr(), y, panel.rows);
            }
        }
    }
    T
}
