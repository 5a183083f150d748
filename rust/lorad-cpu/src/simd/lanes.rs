//! One kernel for two widths: what it needs of a vector of floats.

use std::arch::x86_64::*;

use super::wide::{self, Wide};

/// A width: AVX2's or AVX-512's. Methods are inlined into kernels that are compiled for it.
///
/// # Safety
/// Every method needs the features of its width; pointers are good for [`Lanes::COUNT`] elements.
pub trait Lanes {
    /// Floats of a vector.
    const COUNT: usize;
    /// That many floats.
    type Vector: Copy;

    unsafe fn splat(value: f32) -> Self::Vector;
    unsafe fn load(from: *const f32) -> Self::Vector;
    unsafe fn widen<N: Wide>(from: *const u8) -> Self::Vector;
    unsafe fn store(to: *mut f32, value: Self::Vector);
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn sub(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn mul(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn div(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a · b + c`, rounded once.
    unsafe fn fma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `c − a · b`, rounded once.
    unsafe fn fnma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The larger; b where one is NaN.
    unsafe fn max(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The smaller; b where one is NaN.
    unsafe fn min(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Nearest integers, ties to even.
    unsafe fn round(a: Self::Vector) -> Self::Vector;
    /// `a · 2^n`, `n` being integers from -127 to 128, in two factors: n may be 128, which no single exponent holds.
    unsafe fn scale(a: Self::Vector, n: Self::Vector) -> Self::Vector;
    /// Lanes `begin..end` of `a`, others of `b`.
    unsafe fn select(begin: usize, end: usize, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Eight lanes: those of AVX-512's upper half are added to the lower's.
    unsafe fn fold(a: Self::Vector) -> __m256;
    /// Eight lanes: the larger of each half's. Not for NaN.
    unsafe fn fold_max(a: Self::Vector) -> __m256;
}

/// AVX2 with FMA and F16C.
pub struct Eight;

/// AVX-512.
pub struct Sixteen;

/// exp, to about 1 ulp, after Cephes' `expf`; 1.2e-38 below -87.3, 2.4e38 above 88.3; a NaN stays one.
///
/// # Safety
/// The width's features are there.
#[inline(always)]
pub unsafe fn exp<L: Lanes>(x: L::Vector) -> L::Vector {
    // SAFETY: the caller's promise.
    unsafe {
        // min and max return their second operand where one is NaN.
        let x = L::max(L::splat(-87.336_54), L::min(L::splat(88.376_26), x));
        let n = L::round(L::mul(x, L::splat(std::f32::consts::LOG2_E)));
        let r = L::fnma(n, L::splat(0.693_359_4), x);
        let r = L::fnma(n, L::splat(-2.121_944_4e-4), r);
        let mut p = L::splat(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = L::fma(p, r, L::splat(c));
        }
        L::scale(L::fma(p, L::mul(r, r), L::add(r, L::splat(1.0))), n)
    }
}

/// Sum of the lanes.
///
/// # Safety
/// The width's features are there.
#[inline(always)]
pub unsafe fn sum<L: Lanes>(value: L::Vector) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { wide::sum(L::fold(value)) }
}

// SAFETY, for all methods below: the caller has the features and pointers are good.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Eight {
    const COUNT: usize = 8;
    type Vector = __m256;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn widen<N: Wide>(from: *const u8) -> __m256 {
        unsafe { N::load8(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m256) {
        unsafe { _mm256_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn scale(a: __m256, n: __m256) -> __m256 {
        unsafe {
            let n = _mm256_cvtps_epi32(n);
            let low = _mm256_srai_epi32::<1>(n);
            let power = |n: __m256i| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
            };
            _mm256_mul_ps(_mm256_mul_ps(a, power(low)), power(_mm256_sub_epi32(n, low)))
        }
    }
    #[inline(always)]
    unsafe fn select(begin: usize, end: usize, a: __m256, b: __m256) -> __m256 {
        unsafe {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let below = |bound: usize| {
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(bound.min(8) as i32), lanes))
            };
            _mm256_blendv_ps(b, a, _mm256_andnot_ps(below(begin), below(end)))
        }
    }
    #[inline(always)]
    unsafe fn fold(a: __m256) -> __m256 {
        a
    }
    #[inline(always)]
    unsafe fn fold_max(a: __m256) -> __m256 {
        a
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // as above
impl Lanes for Sixteen {
    const COUNT: usize = 16;
    type Vector = __m512;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn widen<N: Wide>(from: *const u8) -> __m512 {
        unsafe { N::load16(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<0>(a) }
    }
    #[inline(always)]
    unsafe fn scale(a: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    unsafe fn select(begin: usize, end: usize, a: __m512, b: __m512) -> __m512 {
        unsafe {
            let below = |bound: usize| ((1u32 << bound.min(16)) - 1) as __mmask16;
            _mm512_mask_blend_ps(below(end) & !below(begin), b, a)
        }
    }
    #[inline(always)]
    unsafe fn fold(a: __m512) -> __m256 {
        unsafe { _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)) }
    }
    #[inline(always)]
    unsafe fn fold_max(a: __m512) -> __m256 {
        unsafe { _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)) }
    }
}
