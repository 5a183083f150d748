//! Loads that widen, stores that round, and what takes lanes together.

use std::arch::x86_64::*;

use crate::number::{Number, BF16, F16, F32};

/// A [`Number`] that AVX2 widens and rounds eight at a time.
pub trait Wide: Number {
    /// Widens eight elements.
    ///
    /// # Safety
    /// Eight elements are readable; AVX2, FMA and F16C are there.
    unsafe fn load8(from: *const u8) -> __m256;
    /// Widens sixteen elements.
    ///
    /// # Safety
    /// Sixteen elements are readable; AVX-512 is there.
    unsafe fn load16(from: *const u8) -> __m512;
    /// Rounds eight elements, ties to even.
    ///
    /// # Safety
    /// Eight elements are writable; AVX2, FMA and F16C are there.
    unsafe fn store8(to: *mut u8, value: __m256);
}

impl Wide for F32 {
    #[inline(always)]
    unsafe fn load8(from: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load16(from: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store8(to: *mut u8, value: __m256) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to.cast(), value) }
    }
}

impl Wide for F16 {
    #[inline(always)]
    unsafe fn load8(from: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load16(from: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store8(to: *mut u8, value: __m256) {
        // SAFETY: the caller's promise.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)) }
    }
}

impl Wide for BF16 {
    #[inline(always)]
    unsafe fn load8(from: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))))
        }
    }
    #[inline(always)]
    unsafe fn load16(from: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }
    #[inline(always)]
    unsafe fn store8(to: *mut u8, value: __m256) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm256_castps_si256(value);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
            let upper = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(upper, upper));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        }
    }
}

/// Sum of the lanes in the order `((0+4)+(2+6)) + ((1+5)+(3+7))`, which [`sum4`] keeps.
///
/// # Safety
/// AVX2 is there.
#[inline(always)]
pub unsafe fn sum(value: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
        let evens = _mm_add_ps(pairs, _mm_movehl_ps(pairs, pairs));
        _mm_cvtss_f32(_mm_add_ss(evens, _mm_movehdup_ps(evens)))
    }
}

/// [`sum`] of four vectors at once.
///
/// # Safety
/// AVX2 is there.
#[inline(always)]
pub unsafe fn sum4(value: [__m256; 4]) -> __m128 {
    // SAFETY: the caller's promise.
    unsafe {
        let half = |v: __m256| _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let (a, b, c, d) = (half(value[0]), half(value[1]), half(value[2]), half(value[3]));
        let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab))
    }
}

/// Largest lane; not for NaN.
///
/// # Safety
/// AVX2 is there.
#[inline(always)]
pub unsafe fn max(value: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
        let evens = _mm_max_ps(pairs, _mm_movehl_ps(pairs, pairs));
        _mm_cvtss_f32(_mm_max_ss(evens, _mm_movehdup_ps(evens)))
    }
}

/// Writes sums of T tokens by G groups of eight rows to y, whose rows of tokens are `y_stride` apart; lanes from `rows` on aren't.
///
/// # Safety
/// `rows` elements of each token's y are writable; AVX2 is there.
#[inline(always)]
pub unsafe fn store_tile<const T: usize, const G: usize>(
    acc: [[__m256; G]; T],
    y: *mut f32,
    y_stride: usize,
    rows: usize,
) {
    for (t, acc) in acc.iter().enumerate() {
        for (g, acc) in acc.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let y = y.add(t * y_stride + g * 8);
                if rows - g * 8 >= 8 {
                    _mm256_storeu_ps(y, *acc);
                } else {
                    let mut lanes = [0f32; 8];
                    _mm256_storeu_ps(lanes.as_mut_ptr(), *acc);
                    std::ptr::copy_nonoverlapping(lanes.as_ptr(), y, rows - g * 8);
                }
            }
        }
    }
}
