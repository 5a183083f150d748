//! Vectors of weights, scales and minima of the kinds that are put together from parts, by what they are made of: the
//! blocks as they are packed, whose layout is [`Kind`]'s, asked at compile time, or a panel of widened ones.

use std::arch::x86_64::*;

use crate::quant::kernel::{BLOCK, LANES};
use crate::quant::pack::Kind;

/// Bytes of a block of the panel: [`LANES`] rows of [`BLOCK`] columns.
pub const PANEL_BLOCK: usize = LANES * BLOCK;

/// Where a tile's weights come from; the meaning of `q` is the FORM below.
pub struct Source {
    pub q: *const u8,
    pub scale: *const f32,
    pub min: *const f32,
    /// Blocks of a row.
    pub blocks: usize,
    /// First group of eight rows.
    pub first: usize,
    pub rows: usize,
}

/// Forms of weights: blocks as they are packed, by the kind's number; or widened to what
/// [`crate::quant::kernel::Weights`] calls `Five` and `Halves`.
pub const Q4_0: u8 = Kind::Q4_0 as u8;
pub const Q4_1: u8 = Kind::Q4_1 as u8;
pub const Q8_0: u8 = Kind::Q8_0 as u8;
pub const Q5_0: u8 = Kind::Q5_0 as u8;
pub const Q5_1: u8 = Kind::Q5_1 as u8;
pub const Q4_K: u8 = Kind::Q4K as u8;
pub const Q5_K: u8 = Kind::Q5K as u8;
pub const Q6_K: u8 = Kind::Q6K as u8;
pub const FIVE: u8 = 100;
pub const HALVES: u8 = 101;

const fn is_wide(form: u8) -> bool {
    form >= FIVE
}

/// The kind of a packed form; of a widened one any, as nobody looks at it.
const fn kind(form: u8) -> Kind {
    let kind = Kind::ALL[if is_wide(form) { 0 } else { form as usize }];
    assert!(is_wide(form) || kind as u8 == form);
    kind
}

pub const fn is_halves(form: u8) -> bool {
    form == HALVES || form == Q6_K
}

/// Eight f16 scalars.
#[inline(always)]
unsafe fn halves(from: *const u8) -> __m256 {
    // SAFETY: the callers' blocks hold them.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
}

/// Four columns of eight rows of block `block`: group `half · 4 + i` of its columns.
///
/// # Safety
/// The block is there; so are AVX2, FMA and F16C.
#[inline(always)]
pub unsafe fn weights<const FORM: u8>(q: *const u8, block: usize, half: usize, i: usize) -> __m256i {
    // SAFETY: the caller's promise: block `block` is there.
    unsafe {
        let load = |at: usize| _mm256_loadu_si256(q.add(at).cast());
        if is_wide(FORM) {
            return load(block * PANEL_BLOCK + (half * 4 + i) * 32);
        }
        let at = const { kind(FORM) }.packed_at(block);
        if FORM == Q8_0 {
            return load(at + (half * 4 + i) * 32);
        }
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
///
/// # Safety
/// The block is there; so are AVX2, FMA and F16C.
#[inline(always)]
pub unsafe fn scale<const FORM: u8>(source: &Source, block: usize, half: usize) -> __m256 {
    // SAFETY: the caller's promise: block `block` is there.
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
///
/// # Safety
/// The block is there; so are AVX2, FMA and F16C.
#[inline(always)]
pub unsafe fn min<const FORM: u8>(source: &Source, block: usize, scale: __m256) -> __m256 {
    // SAFETY: the caller's promise: block `block` is there.
    unsafe {
        if is_wide(FORM) {
            return _mm256_loadu_ps(source.min.add(block * LANES));
        }
        if FORM == Q4_0 || FORM == Q5_0 {
            // (q − zero) · d = q · d + (−zero · d), exact: zero is a power of two.
            return _mm256_mul_ps(scale, _mm256_set1_ps(const { -(kind(FORM).zero() as f32) }));
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

/// Widens `blocks` packed blocks to a panel, its scales and its minima.
///
/// # Safety
/// The blocks are there, `to` takes them: see [`crate::quant::block::unpack_scalar`]; so are the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn unpack<const FORM: u8>(packed: *const u8, blocks: usize, to: (*mut u8, *mut f32, *mut f32)) {
    let none = std::ptr::null();
    let source = Source { q: packed, scale: none, min: none, blocks, first: 0, rows: LANES };
    for block in 0..blocks {
        // SAFETY: the caller's promise.
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
