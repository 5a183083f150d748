//! Integer dot products of kinds that are put together from parts: planes of bits, scales of scales. Lanes as in
//! [`super::quant`]; how weights and scales are got is in [`super::forms`].

use std::arch::x86_64::*;
use std::ops::Range;

use super::forms::{
    is_halves, min, scale, unpack, weights, Source, FIVE, HALVES, PANEL_BLOCK, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K,
};
use super::quant::{check, keep};
use super::wide::store_tile;
use super::Avx2;
use crate::fetch::Fetch;
use crate::quant::kernel::{Panel, Rounded, Weights, BLOCK, GROUPS, LANES};
use crate::quant::pack::Kind;
use crate::shared::Parts;

impl Avx2 {
    /// See [`crate::quant::block::unpack_scalar`].
    pub fn unpack_composed(
        self,
        kind: Kind,
        packed: &[u8],
        panel: &mut [u8],
        scale: &mut [f32],
        min: &mut [f32],
    ) {
        let blocks = panel.len() / PANEL_BLOCK;
        let (scales, minima) = if kind.has_half_scales() { (2, 0) } else { (1, 1) };
        assert!(blocks == 0 || packed.len() >= kind.packed_at(blocks - 1) + kind.packed_bytes());
        assert!(scale.len() == blocks * scales * LANES && min.len() == blocks * minima * LANES);
        let to = (panel.as_mut_ptr(), scale.as_mut_ptr(), min.as_mut_ptr());
        // SAFETY: `self` proves the features, the asserts bound all accesses.
        unsafe {
            match kind {
                Kind::Q5_0 => unpack::<Q5_0>(packed.as_ptr(), blocks, to),
                Kind::Q5_1 => unpack::<Q5_1>(packed.as_ptr(), blocks, to),
                Kind::Q4K => unpack::<Q4_K>(packed.as_ptr(), blocks, to),
                Kind::Q5K => unpack::<Q5_K>(packed.as_ptr(), blocks, to),
                Kind::Q6K => unpack::<Q6_K>(packed.as_ptr(), blocks, to),
                Kind::Q4_0 | Kind::Q4_1 | Kind::Q8_0 => unreachable!("not composed"),
            }
        }
    }

    /// [`Avx2::multiply`] of 5-bit weights and of those with a scale for each 16 columns.
    ///
    /// # Safety
    /// As for [`crate::quant::kernel::multiply_scalar`].
    pub unsafe fn multiply_composed(
        self,
        panel: &Panel<'_>,
        x: &Rounded<'_>,
        tokens: Range<usize>,
        y: &Parts<'_, f32>,
        y_begin: usize,
        y_stride: usize,
        fetch: &mut Fetch,
    ) {
        let (blocks, rows, groups) = (x.blocks, panel.rows, panel.rows.div_ceil(LANES));
        assert!(blocks > 0 && rows > 0 && groups <= GROUPS && panel.stride == PANEL_BLOCK);
        assert!(panel.q.len() >= groups * blocks * PANEL_BLOCK);
        let Some(y) = check(x, &tokens, rows, y, y_begin, y_stride) else { return };
        let (q, scale) = (panel.q.as_ptr(), panel.scale.as_ptr());
        // SAFETY: `self` proves the features, the asserts bound all accesses, the caller owns the columns of y.
        unsafe {
            match panel.weights {
                Weights::Five { min } => {
                    assert!(panel.scale.len().min(min.len()) >= groups * blocks * LANES);
                    let source = Source { q, scale, min: min.as_ptr(), blocks, first: 0, rows };
                    multiply::<FIVE>(&source, x, tokens, y, y_stride, fetch);
                }
                Weights::Halves => {
                    assert!(panel.scale.len() >= groups * blocks * 2 * LANES);
                    let source = Source { q, scale, min: std::ptr::null(), blocks, first: 0, rows };
                    multiply::<HALVES>(&source, x, tokens, y, y_stride, fetch);
                }
                Weights::Small { .. } | Weights::Signed => unreachable!("not composed"),
            }
        }
    }

    /// [`Avx2::multiply_packed`] of composed kinds.
    ///
    /// # Safety
    /// As for [`crate::quant::kernel::multiply_scalar`].
    pub unsafe fn multiply_composed_packed(
        self,
        kind: Kind,
        packed: &[u8],
        rows: usize,
        x: &Rounded<'_>,
        tokens: Range<usize>,
        y: &Parts<'_, f32>,
        y_begin: usize,
        y_stride: usize,
    ) {
        let (blocks, groups) = (x.blocks, rows.div_ceil(LANES));
        assert!(blocks > 0 && rows > 0 && groups <= GROUPS);
        assert!(packed.len() >= kind.packed_at(groups * blocks - 1) + kind.packed_bytes());
        let Some(y) = check(x, &tokens, rows, y, y_begin, y_stride) else { return };
        let fetch = &mut Fetch::default();
        let none = std::ptr::null();
        let source = Source { q: packed.as_ptr(), scale: none, min: none, blocks, first: 0, rows };
        // SAFETY: `self` proves the features, the asserts bound all accesses, the caller owns the columns of y.
        unsafe {
            match kind {
                Kind::Q5_0 => multiply::<Q5_0>(&source, x, tokens, y, y_stride, fetch),
                Kind::Q5_1 => multiply::<Q5_1>(&source, x, tokens, y, y_stride, fetch),
                Kind::Q4K => multiply::<Q4_K>(&source, x, tokens, y, y_stride, fetch),
                Kind::Q5K => multiply::<Q5_K>(&source, x, tokens, y, y_stride, fetch),
                Kind::Q6K => multiply::<Q6_K>(&source, x, tokens, y, y_stride, fetch),
                Kind::Q4_0 | Kind::Q4_1 | Kind::Q8_0 => unreachable!("not composed"),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<const FORM: u8>(
    source: &Source,
    x: &Rounded<'_>,
    tokens: Range<usize>,
    y: *mut f32,
    y_stride: usize,
    fetch: &mut Fetch,
) {
    if is_halves(FORM) && source.rows > LANES {
        // The products of signed bytes need the registers that a second group would take.
        // SAFETY: the second group's weights and columns of y follow the first's.
        unsafe {
            let first = Source { rows: LANES, ..*source };
            multiply::<FORM>(&first, x, tokens.clone(), y, y_stride, fetch);
            let second = Source { first: 1, rows: source.rows - LANES, ..*source };
            return multiply::<FORM>(&second, x, tokens, y.add(LANES), y_stride, fetch);
        }
    }
    let (mut t, mut y) = (tokens.start, y);
    let two = source.rows > LANES;
    // SAFETY: the wrapper's asserts.
    unsafe {
        while t < tokens.end {
            let many = match (tokens.end - t, two) {
                (3 | 5.., true) => tile::<3, 2, FORM>(source, x, t, y, y_stride, fetch),
                (2.., true) => tile::<2, 2, FORM>(source, x, t, y, y_stride, fetch),
                (_, true) => tile::<1, 2, FORM>(source, x, t, y, y_stride, fetch),
                (4.., false) => tile::<4, 1, FORM>(source, x, t, y, y_stride, fetch),
                (2.., false) => tile::<2, 1, FORM>(source, x, t, y, y_stride, fetch),
                (_, false) => tile::<1, 1, FORM>(source, x, t, y, y_stride, fetch),
            };
            t += many;
            y = y.add(many * y_stride);
        }
    }
}

/// Adds to 16-bit sums the products of a half of the columns of blocks `at` with the tokens' at `xq`. The half is known
/// when this is compiled, so are the shifts.
#[inline(always)]
unsafe fn add_products<const T: usize, const G: usize, const FORM: u8, const HALF: usize>(
    source: &Source,
    at: &[usize; G],
    xq: *const i8,
    sum: &mut [[__m256i; G]; T],
) {
    // SAFETY: the wrapper's asserts.
    unsafe {
        for i in 0..4 {
            // A loop: `array::map` isn't always inlined.
            let mut w = [_mm256_setzero_si256(); G];
            for (w, at) in w.iter_mut().zip(at) {
                *w = weights::<FORM>(source.q, *at, HALF, i);
            }
            for (t, sum) in sum.iter_mut().enumerate() {
                let four = xq.add(t * source.blocks * BLOCK + (HALF * 4 + i) * 4).cast::<i32>();
                let four = _mm256_set1_epi32(four.read_unaligned());
                for g in 0..G {
                    let pairs = if is_halves(FORM) {
                        // |w| · sign(x, w), |w| ≤ 32.
                        _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(four, w[g]))
                    } else {
                        _mm256_maddubs_epi16(w[g], four)
                    };
                    sum[g] = _mm256_add_epi16(sum[g], pairs);
                    keep(&mut sum[g]);
                }
            }
        }
    }
}

/// T tokens by G groups of eight rows; returns T.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn tile<const T: usize, const G: usize, const FORM: u8>(
    source: &Source,
    x: &Rounded<'_>,
    token: usize,
    y: *mut f32,
    y_stride: usize,
    fetch: &mut Fetch,
) -> usize {
    let blocks = source.blocks;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let xq = x.q.as_ptr().add(token * blocks * BLOCK);
        let (xs, xm) = (x.scale.as_ptr().add(token * blocks), x.sum.as_ptr().add(token * blocks));
        let mut acc = [[_mm256_setzero_ps(); G]; T];
        for block in 0..blocks {
            fetch.step();
            let xq = xq.add(block * BLOCK);
            let mut at = [0; G];
            for (g, at) in at.iter_mut().enumerate() {
                *at = (source.first + g) * blocks + block;
            }
            let mut dot = [[_mm256_setzero_si256(); G]; T];
            let mut sum = [[_mm256_setzero_si256(); G]; T];
            for half in 0..2 {
                match half {
                    0 => add_products::<T, G, FORM, 0>(source, &at, xq, &mut sum),
                    _ => add_products::<T, G, FORM, 1>(source, &at, xq, &mut sum),
                }
                // 4 · 32 · 127 · 2 fits 16 bits, so does 8 · 15 · 127 · 2 of Q4_K.
                if FORM == Q4_K && half == 0 {
                    continue;
                }
                for g in 0..G {
                    for t in 0..T {
                        let wide = _mm256_madd_epi16(sum[t][g], ones);
                        sum[t][g] = _mm256_setzero_si256();
                        if is_halves(FORM) {
                            let scale = scale::<FORM>(source, at[g], half);
                            let both = _mm256_mul_ps(scale, _mm256_set1_ps(*xs.add(t * blocks + block)));
                            acc[t][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), both, acc[t][g]);
                        } else {
                            dot[t][g] = _mm256_add_epi32(dot[t][g], wide);
                        }
                    }
                }
            }
            for g in 0..if is_halves(FORM) { 0 } else { G } {
                let scale = scale::<FORM>(source, at[g], 0);
                let min = min::<FORM>(source, at[g], scale);
                for t in 0..T {
                    let both = _mm256_mul_ps(scale, _mm256_set1_ps(*xs.add(t * blocks + block)));
                    acc[t][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[t][g]), both, acc[t][g]);
                    let sum = _mm256_set1_ps(*xm.add(t * blocks + block));
                    acc[t][g] = _mm256_fmadd_ps(min, sum, acc[t][g]);
                }
            }
        }
        store_tile(acc, y, y_stride, source.rows);
    }
    T
}
