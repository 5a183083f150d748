//! Integer dot products: eight weight rows are the lanes, four columns one 32-bit lane; `maddubs` multiplies.

use std::arch::x86_64::*;
use std::ops::Range;

use super::wide::{max, store_tile, sum};
use super::Avx2;
use crate::fetch::Fetch;
use crate::quant::kernel::{Panel, Rounded, RoundedRow, Weights, BLOCK, GROUPS, LANES};
use crate::quant::pack::Kind;
use crate::shared::Parts;

/// Bytes of a block of the panel: [`LANES`] rows of [`BLOCK`] columns.
const PANEL_BLOCK: usize = LANES * BLOCK;

impl Avx2 {
    /// See [`crate::quant::kernel::round_scalar`].
    pub fn round_row(self, x: &[f32], to: RoundedRow<'_>) {
        let blocks = to.scale.len();
        assert!(x.len() == blocks * BLOCK && to.q.len() == x.len());
        assert!(to.sum.len() == blocks && to.totals.len() == blocks * 2);
        // SAFETY: `self` proves the features; the lengths fit.
        unsafe { round_row(x, to) }
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
        tokens: Range<usize>,
        y: &Parts<'_, f32>,
        y_begin: usize,
        y_stride: usize,
        fetch: &mut Fetch,
    ) {
        if matches!(panel.weights, Weights::Five { .. } | Weights::Halves) {
            // SAFETY: the caller's promise.
            return unsafe { self.multiply_composed(panel, x, tokens, y, y_begin, y_stride, fetch) };
        }
        let (blocks, groups) = (x.blocks, panel.rows.div_ceil(LANES));
        assert!(blocks > 0 && panel.rows > 0 && groups <= GROUPS && panel.stride >= PANEL_BLOCK);
        assert!(panel.q.len() >= (groups * blocks - 1) * panel.stride + PANEL_BLOCK);
        assert!(panel.scale.len() >= groups * blocks * LANES);
        if let Weights::Small { min } = panel.weights {
            assert!(min.len() >= groups * blocks * LANES);
        }
        let Some(y) = check(x, &tokens, panel.rows, y, y_begin, y_stride) else { return };
        let min = match panel.weights {
            Weights::Small { min } => min.as_ptr(),
            _ => std::ptr::null(),
        };
        let q = panel.q.as_ptr();
        let source =
            Source { q, stride: panel.stride, scale: panel.scale.as_ptr(), min, blocks, rows: panel.rows };
        // SAFETY: `self` proves the features, the asserts bound all accesses, the caller owns the columns of y.
        unsafe {
            match panel.weights {
                Weights::Small { .. } => multiply::<SMALL>(&source, x, tokens, y, y_stride, fetch),
                _ => multiply::<SIGNED>(&source, x, tokens, y, y_stride, fetch),
            }
        }
    }

    /// [`Avx2::multiply`] of few tokens straight from packed blocks: the same sums, nothing written between.
    ///
    /// # Safety
    /// As for [`crate::quant::kernel::multiply_scalar`].
    pub unsafe fn multiply_packed(
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
        if kind.is_composed() {
            // SAFETY: the caller's promise.
            return unsafe {
                self.multiply_composed_packed(kind, packed, rows, x, tokens, y, y_begin, y_stride)
            };
        }
        let (blocks, groups) = (x.blocks, rows.div_ceil(LANES));
        assert!(blocks > 0 && rows > 0 && groups <= GROUPS);
        assert!(packed.len() >= groups * blocks * kind.packed_bytes());
        let Some(y) = check(x, &tokens, rows, y, y_begin, y_stride) else { return };
        let fetch = &mut Fetch::default();
        let none = std::ptr::null();
        let source =
            Source { q: packed.as_ptr(), stride: kind.packed_bytes(), scale: none, min: none, blocks, rows };
        // SAFETY: `self` proves the features, the asserts bound all accesses, the caller owns the columns of y.
        unsafe {
            match kind {
                Kind::Q4_0 => multiply::<PACKED_Q4_0>(&source, x, tokens, y, y_stride, fetch),
                Kind::Q4_1 => multiply::<PACKED_Q4_1>(&source, x, tokens, y, y_stride, fetch),
                Kind::Q8_0 => multiply::<PACKED_Q8_0>(&source, x, tokens, y, y_stride, fetch),
                _ => unreachable!("composed"),
            }
        }
    }
}

/// Where y begins for these tokens, all bounds checked; none without tokens.
pub(super) fn check(
    x: &Rounded<'_>,
    tokens: &Range<usize>,
    rows: usize,
    y: &Parts<'_, f32>,
    y_begin: usize,
    y_stride: usize,
) -> Option<*mut f32> {
    assert!(x.q.len() >= tokens.end * x.blocks * BLOCK);
    let blocks = tokens.end * x.blocks;
    assert!(x.scale.len() >= blocks && x.sum.len() >= blocks && x.totals.len() >= blocks * 2);
    let last = tokens.len().checked_sub(1)?;
    Some(y.pointer(y_begin, last * y_stride + rows))
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_row(x: &[f32], to: RoundedRow<'_>) {
    for block in 0..to.scale.len() {
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
            let low = _mm256_packs_epi32(i[0], i[1]);
            let high = _mm256_packs_epi32(i[2], i[3]);
            let bytes = _mm256_packs_epi16(low, high);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(to.q.as_mut_ptr().add(block * BLOCK).cast(), bytes);
            let (low, high) = (_mm256_add_epi32(i[0], i[1]), _mm256_add_epi32(i[2], i[3]));
            // Lanes of low and high alternate by pairs.
            let both = _mm256_hadd_epi32(low, high);
            let both = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
            let both = _mm_hadd_epi32(both, both);
            let totals = [_mm_cvtsi128_si32(both), _mm_extract_epi32::<1>(both)];
            to.totals[block * 2..][..2].copy_from_slice(&totals);
            to.scale[block] = d;
            // Infinity is no integer; its block's scale is NaN whatever the sum is.
            to.sum[block] = d * totals[0].wrapping_add(totals[1]) as f32;
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

/// Where a tile's weights come from; the meaning of `q` is the KIND below.
struct Source {
    q: *const u8,
    /// Bytes between blocks of `q`.
    stride: usize,
    scale: *const f32,
    min: *const f32,
    blocks: usize,
    rows: usize,
}

/// Bytes 0..=15, scales and minima widened.
const SMALL: u8 = 0;
/// Bytes -128..=127, scales widened.
const SIGNED: u8 = 1;
/// Blocks as they are packed, by kind.
const PACKED_Q4_0: u8 = 2;
const PACKED_Q4_1: u8 = 3;
const PACKED_Q8_0: u8 = 4;

const fn is_signed(kind: u8) -> bool {
    kind == SIGNED || kind == PACKED_Q8_0
}

const fn is_nibbles(kind: u8) -> bool {
    kind == PACKED_Q4_0 || kind == PACKED_Q4_1
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<const KIND: u8>(
    source: &Source,
    x: &Rounded<'_>,
    tokens: Range<usize>,
    y: *mut f32,
    y_stride: usize,
    fetch: &mut Fetch,
) {
    if KIND == SIGNED && source.rows > LANES {
        // The products of signed bytes need the registers that a second group would take.
        // SAFETY: the second group's weights and columns of y follow the first's.
        unsafe {
            let first = Source { rows: LANES, ..*source };
            multiply::<KIND>(&first, x, tokens.clone(), y, y_stride, fetch);
            let q = source.q.add(source.blocks * source.stride);
            let scale = source.scale.add(source.blocks * LANES);
            let second = Source { q, scale, rows: source.rows - LANES, ..*source };
            return multiply::<KIND>(&second, x, tokens, y.add(LANES), y_stride, fetch);
        }
    }
    let (mut t, mut y) = (tokens.start, y);
    let two = source.rows > LANES;
    // SAFETY: the wrapper's asserts.
    unsafe {
        while t < tokens.end {
            // Twice 16 rows share each broadcast activation; 3 tokens are what the registers hold.
            let many = match (tokens.end - t, two) {
                (3 | 5.., true) => tile::<3, 2, KIND>(source, x, t, y, y_stride, fetch),
                (2.., true) => tile::<2, 2, KIND>(source, x, t, y, y_stride, fetch),
                (_, true) => tile::<1, 2, KIND>(source, x, t, y, y_stride, fetch),
                (4.., false) => tile::<4, 1, KIND>(source, x, t, y, y_stride, fetch),
                (_, false) => tile::<1, 1, KIND>(source, x, t, y, y_stride, fetch),
            };
            t += many;
            y = y.add(many * y_stride);
        }
    }
}

/// Keeps a sum in its register between two columns' products. Without it the compiler adds up trees of products, for which
/// the registers don't reach: broadcast activations went to the stack and back.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn keep(sum: &mut __m256i) {
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) * sum, options(nomem, nostack, preserves_flags)) };
}

/// T tokens by G groups of eight rows; returns T.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn tile<const T: usize, const G: usize, const KIND: u8>(
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
        let mask = _mm256_set1_epi8(15);
        let xq = x.q.as_ptr().add(token * blocks * BLOCK);
        let (xs, xm) = (x.scale.as_ptr().add(token * blocks), x.sum.as_ptr().add(token * blocks));
        let mut acc = [[_mm256_setzero_ps(); G]; T];
        for block in 0..blocks {
            fetch.step();
            let xq = xq.add(block * BLOCK);
            let mut dot = [[_mm256_setzero_si256(); G]; T];
            let mut add = |k: usize, w: [__m256i; G]| {
                for (t, dot) in dot.iter_mut().enumerate() {
                    let four = xq.add(t * blocks * BLOCK + k * 4).cast::<i32>().read_unaligned();
                    let four = _mm256_set1_epi32(four);
                    for g in 0..G {
                        if is_signed(KIND) {
                            // |w| · sign(x, w): 127 · 127 · 2 fits 16 bits, two of them don't.
                            let pairs =
                                _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(four, w[g]));
                            dot[g] = _mm256_add_epi32(dot[g], _mm256_madd_epi16(pairs, ones));
                        } else {
                            // 8 · 15 · 127 · 2 fits 16 bits: one widening for the block.
                            dot[g] = _mm256_add_epi16(dot[g], _mm256_maddubs_epi16(w[g], four));
                        }
                        keep(&mut dot[g]);
                    }
                }
            };
            let mut at = [source.q; G];
            for (g, at) in at.iter_mut().enumerate() {
                *at = source.q.add((g * blocks + block) * source.stride);
            }
            let load = |k: usize| at.map(|at| _mm256_loadu_si256(at.add(k * 32).cast()));
            if is_nibbles(KIND) {
                for p in 0..4 {
                    let both = load(p);
                    add(p, both.map(|both| _mm256_and_si256(both, mask)));
                    add(p + 4, both.map(|both| _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask)));
                }
            } else {
                for k in 0..BLOCK / 4 {
                    add(k, load(k));
                }
            }
            for g in 0..G {
                let halves = |n: usize| {
                    let quants = if is_nibbles(KIND) { PANEL_BLOCK / 2 } else { PANEL_BLOCK };
                    _mm256_cvtph_ps(_mm_loadu_si128(at[g].add(quants + n * LANES * 2).cast()))
                };
                let wide = (g * blocks + block) * LANES;
                let scale = match KIND {
                    SMALL | SIGNED => _mm256_loadu_ps(source.scale.add(wide)),
                    _ => halves(0),
                };
                for t in 0..T {
                    let dot = if is_signed(KIND) { dot[t][g] } else { _mm256_madd_epi16(dot[t][g], ones) };
                    let both = _mm256_mul_ps(scale, _mm256_set1_ps(*xs.add(t * blocks + block)));
                    acc[t][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, acc[t][g]);
                    if !is_signed(KIND) {
                        let min = match KIND {
                            SMALL => _mm256_loadu_ps(source.min.add(wide)),
                            PACKED_Q4_1 => halves(1),
                            _ => _mm256_mul_ps(scale, _mm256_set1_ps(-8.0)),
                        };
                        let sum = _mm256_set1_ps(*xm.add(t * blocks + block));
                        acc[t][g] = _mm256_fmadd_ps(min, sum, acc[t][g]);
                    }
                }
            }
        }
        store_tile(acc, y, y_stride, source.rows);
    }
    T
}
