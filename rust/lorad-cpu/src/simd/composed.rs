//! Integer dot products of kinds that are put together from parts: planes of bits, scales of scales. Lanes as in
//! [`super::quant`]; a kind's layout is [`Kind`]'s, asked at compile time.

use std::arch::x86_64::*;
use std::ops::Range;

use super::quant::check;
use super::Avx2;
use crate::quant::kernel::{Panel, Rounded, Weights, BLOCK, GROUPS, LANES};
use crate::quant::pack::Kind;
use crate::shared::Parts;

/// Bytes of a block of the panel: [`LANES`] rows of [`BLOCK`] columns.
const PANEL_BLOCK: usize = LANES * BLOCK;

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
                    multiply::<FIVE>(&source, x, tokens, y, y_stride);
                }
                Weights::Halves => {
                    assert!(panel.scale.len() >= groups * blocks * 2 * LANES);
                    let source = Source { q, scale, min: std::ptr::null(), blocks, first: 0, rows };
                    multiply::<HALVES>(&source, x, tokens, y, y_stride);
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
        let none = std::ptr::null();
        let source = Source { q: packed.as_ptr(), scale: none, min: none, blocks, first: 0, rows };
        // SAFETY: `self` proves the features, the asserts bound all accesses, the caller owns the columns of y.
        unsafe {
            match kind {
                Kind::Q5_0 => multiply::<Q5_0>(&source, x, tokens, y, y_stride),
                Kind::Q5_1 => multiply::<Q5_1>(&source, x, tokens, y, y_stride),
                Kind::Q4K => multiply::<Q4_K>(&source, x, tokens, y, y_stride),
                Kind::Q5K => multiply::<Q5_K>(&source, x, tokens, y, y_stride),
                Kind::Q6K => multiply::<Q6_K>(&source, x, tokens, y, y_stride),
                Kind::Q4_0 | Kind::Q4_1 | Kind::Q8_0 => unreachable!("not composed"),
            }
        }
    }
}

/// Where a tile's weights come from; the meaning of `q` is the FORM below.
struct Source {
    q: *const u8,
    scale: *const f32,
    min: *const f32,
    /// Blocks of a row.
    blocks: usize,
    /// First group of eight rows.
    first: usize,
    rows: usize,
}

/// Forms of weights: blocks as they are packed, by the kind's number; or widened to [`Weights::Five`],
/// [`Weights::Halves`].
const Q5_0: u8 = Kind::Q5_0 as u8;
const Q5_1: u8 = Kind::Q5_1 as u8;
const Q4_K: u8 = Kind::Q4K as u8;
const Q5_K: u8 = Kind::Q5K as u8;
const Q6_K: u8 = Kind::Q6K as u8;
const FIVE: u8 = 100;
const HALVES: u8 = 101;

const fn is_wide(form: u8) -> bool {
    form >= FIVE
}

/// The kind of a packed form; of a widened one any, as nobody looks at it.
const fn kind(form: u8) -> Kind {
    let kind = Kind::ALL[if is_wide(form) { 0 } else { form as usize }];
    assert!(is_wide(form) || kind as u8 == form);
    kind
}

const fn is_halves(form: u8) -> bool {
    form == HALVES || form == Q6_K
}

/// Eight f16 scalars.
#[inline(always)]
unsafe fn halves(from: *const u8) -> __m256 {
    // SAFETY: the callers' blocks hold them.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
}

/// Four columns of eight rows of block `block`: group `half · 4 + i` of its columns.
#[inline(always)]
unsafe fn weights<const FORM: u8>(q: *const u8, block: usize, half: usize, i: usize) -> __m256i {
    // SAFETY: the wrappers' asserts: block `block` is there.
    unsafe {
        let load = |at: usize| _mm256_loadu_si256(q.add(at).cast());
        if is_wide(FORM) {
            return load(block * PANEL_BLOCK + (half * 4 + i) * 32);
        }
        let at = const { kind(FORM) }.packed_at(block);
        let both = load(at + i * 32);
        let low = if half == 0 { both } else { _mm256_srli_epi16::<4>(both) };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        let plane = at + const { kind(FORM).packed_low_bytes() };
        // What shifts carry over a byte's border is outside of the masks.
        match const { kind(FORM).plane_bits() } {
            0 => low,
            1 => {
                let high = to_fifth(load(plane), half * 4 + i);
                _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(16)))
            }
            _ => {
                let high = to_fifth(load(plane + half * 32), i * 2);
                let q = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48)));
                _mm256_sub_epi8(q, _mm256_set1_epi8(32))
            }
        }
    }
}

/// Moves bit `from` of each byte to bit 4. A call knows `from` when it is compiled, as its loop is unrolled.
#[inline(always)]
unsafe fn to_fifth(plane: __m256i, from: usize) -> __m256i {
    // SAFETY: the caller's features.
    unsafe {
        match from {
            0 => _mm256_slli_epi16::<4>(plane),
            1 => _mm256_slli_epi16::<3>(plane),
            2 => _mm256_slli_epi16::<2>(plane),
            3 => _mm256_slli_epi16::<1>(plane),
            4 => plane,
            5 => _mm256_srli_epi16::<1>(plane),
            6 => _mm256_srli_epi16::<2>(plane),
            _ => _mm256_srli_epi16::<3>(plane),
        }
    }
}

/// Scales of eight rows; of a half of the columns, where halves have their own.
#[inline(always)]
unsafe fn scale<const FORM: u8>(source: &Source, block: usize, half: usize) -> __m256 {
    // SAFETY: the wrappers' asserts: block `block` is there.
    unsafe {
        if is_wide(FORM) {
            let scales = if is_halves(FORM) { 2 } else { 1 };
            return _mm256_loadu_ps(source.scale.add((block * scales + half) * LANES));
        }
        let scalars = source.q.add(kind(FORM).packed_at(block) + kind(FORM).packed_quant_bytes());
        if !kind(FORM).is_k() {
            return halves(scalars);
        }
        let bytes = _mm_loadl_epi64(scalars.add(half * LANES).cast());
        let sub = if is_halves(FORM) { _mm256_cvtepi8_epi32(bytes) } else { _mm256_cvtepu8_epi32(bytes) };
        let head = source.q.add(kind(FORM).packed_head_at(block));
        _mm256_mul_ps(halves(head), _mm256_cvtepi32_ps(sub))
    }
}

/// Minima of eight rows whose scales are `scale`.
#[inline(always)]
unsafe fn min<const FORM: u8>(source: &Source, block: usize, scale: __m256) -> __m256 {
    // SAFETY: the wrappers' asserts: block `block` is there.
    unsafe {
        if is_wide(FORM) {
            return _mm256_loadu_ps(source.min.add(block * LANES));
        }
        if FORM == Q5_0 {
            return _mm256_mul_ps(scale, _mm256_set1_ps(-16.0));
        }
        let scalars = source.q.add(kind(FORM).packed_at(block) + kind(FORM).packed_quant_bytes());
        if !kind(FORM).is_k() {
            return halves(scalars.add(LANES * 2));
        }
        let sub = _mm256_cvtepu8_epi32(_mm_loadl_epi64(scalars.add(LANES).cast()));
        let head = halves(source.q.add(kind(FORM).packed_head_at(block) + LANES * 2));
        _mm256_xor_ps(_mm256_mul_ps(head, _mm256_cvtepi32_ps(sub)), _mm256_set1_ps(-0.0))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<const FORM: u8>(packed: *const u8, blocks: usize, to: (*mut u8, *mut f32, *mut f32)) {
    let none = std::ptr::null();
    let source = Source { q: packed, scale: none, min: none, blocks, first: 0, rows: LANES };
    for block in 0..blocks {
        // SAFETY: the wrapper's asserts.
        unsafe {
            for half in 0..2 {
                for i in 0..4 {
                    let w = weights::<FORM>(packed, block, half, i);
                    _mm256_storeu_si256(to.0.add(block * PANEL_BLOCK + (half * 4 + i) * 32).cast(), w);
                }
                if is_halves(FORM) {
                    let scale = scale::<FORM>(&source, block, half);
                    _mm256_storeu_ps(to.1.add((block * 2 + half) * LANES), scale);
                }
            }
            if !is_halves(FORM) {
                let scale = scale::<FORM>(&source, block, 0);
                _mm256_storeu_ps(to.1.add(block * LANES), scale);
                _mm256_storeu_ps(to.2.add(block * LANES), min::<FORM>(&source, block, scale));
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
) {
    if is_halves(FORM) && source.rows > LANES {
        // The products of signed bytes need the registers that a second group would take.
        // SAFETY: the second group's weights and columns of y follow the first's.
        unsafe {
            let first = Source { rows: LANES, ..*source };
            multiply::<FORM>(&first, x, tokens.clone(), y, y_stride);
            let second = Source { first: 1, rows: source.rows - LANES, ..*source };
            return multiply::<FORM>(&second, x, tokens, y.add(LANES), y_stride);
        }
    }
    let (mut t, mut y) = (tokens.start, y);
    let two = source.rows > LANES;
    // SAFETY: the wrapper's asserts.
    unsafe {
        while t < tokens.end {
            let many = match (tokens.end - t, two) {
                (3 | 5.., true) => tile::<3, 2, FORM>(source, x, t, y, y_stride),
                (2.., true) => tile::<2, 2, FORM>(source, x, t, y, y_stride),
                (_, true) => tile::<1, 2, FORM>(source, x, t, y, y_stride),
                (4.., false) => tile::<4, 1, FORM>(source, x, t, y, y_stride),
                (2.., false) => tile::<2, 1, FORM>(source, x, t, y, y_stride),
                (_, false) => tile::<1, 1, FORM>(source, x, t, y, y_stride),
            };
            t += many;
            y = y.add(many * y_stride);
        }
    }
}

/// T tokens by G groups of eight rows; returns T.
#[inline(always)]
unsafe fn tile<const T: usize, const G: usize, const FORM: u8>(
    source: &Source,
    x: &Rounded<'_>,
    token: usize,
    y: *mut f32,
    y_stride: usize,
) -> usize {
    let blocks = source.blocks;
    // SAFETY: the wrapper's asserts.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let xq = x.q.as_ptr().add(token * blocks * BLOCK);
        let (xs, xm) = (x.scale.as_ptr().add(token * blocks), x.sum.as_ptr().add(token * blocks));
        let mut acc = [[_mm256_setzero_ps(); G]; T];
        for block in 0..blocks {
            let xq = xq.add(block * BLOCK);
            let mut at = [0; G];
            for (g, at) in at.iter_mut().enumerate() {
                *at = (source.first + g) * blocks + block;
            }
            let mut dot = [[_mm256_setzero_si256(); G]; T];
            let mut sum = [[_mm256_setzero_si256(); G]; T];
            for half in 0..2 {
                for i in 0..4 {
                    let w = at.map(|at| weights::<FORM>(source.q, at, half, i));
                    for (t, sum) in sum.iter_mut().enumerate() {
                        let four = xq.add(t * blocks * BLOCK + (half * 4 + i) * 4).cast::<i32>();
                        let four = _mm256_set1_epi32(four.read_unaligned());
                        for g in 0..G {
                            let pairs = if is_halves(FORM) {
                                // |w| · sign(x, w), |w| ≤ 32.
                                _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(four, w[g]))
                            } else {
                                _mm256_maddubs_epi16(w[g], four)
                            };
                            sum[g] = _mm256_add_epi16(sum[g], pairs);
                        }
                    }
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
        for (t, acc) in acc.iter().enumerate() {
            for (g, acc) in acc.iter().enumerate() {
                let y = y.add(t * y_stride + g * LANES);
                let rows = LANES.min(source.rows - g * LANES);
                if rows == LANES {
                    _mm256_storeu_ps(y, *acc);
                } else {
                    let mut lanes = [0f32; LANES];
                    _mm256_storeu_ps(lanes.as_mut_ptr(), *acc);
                    std::ptr::copy_nonoverlapping(lanes.as_ptr(), y, rows);
                }
            }
        }
    }
    T
}
