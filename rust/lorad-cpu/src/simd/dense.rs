//! Element-wise operators and row sums.

use std::arch::x86_64::*;

use super::lanes::{exp, Eight, Lanes, Sixteen};
use super::wide::{max, sum, Wide};
use super::{Avx2, Avx512};
use crate::activation::{gate_scalar, Gate, GELU_CUBE, GELU_SLOPE};
use crate::rope::rotate_scalar;

impl Avx2 {
    /// See [`crate::norm::sum_of_squares_scalar`].
    pub fn sum_of_squares(self, x: &[f32]) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { sum_of_squares(x) }
    }

    /// `out = x · factor · weight`.
    pub fn scale(self, out: &mut [f32], x: &[f32], weight: &[f32], factor: f32) {
        // SAFETY: `self` proves the features.
        unsafe { scale(out, x, weight, factor) }
    }

    /// `x = x · factor · weight`.
    pub fn scale_in_place(self, x: &mut [f32], weight: &[f32], factor: f32) {
        // SAFETY: `self` proves the features.
        unsafe { scale_in_place(x, weight, factor) }
    }

    /// `to += from`.
    pub fn add(self, to: &mut [f32], from: &[f32]) {
        // SAFETY: `self` proves the features.
        unsafe { add(to, from) }
    }

    /// See [`crate::rope::rotate_scalar`].
    pub fn rotate(self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        // SAFETY: `self` proves the features.
        unsafe { rotate(head, cos, sin) }
    }

    /// Widens `out.len()` elements.
    pub fn widen<N: Wide>(self, out: &mut [f32], from: &[u8]) {
        assert!(from.len() >= out.len() * N::SIZE);
        // SAFETY: `self` proves the features; `from` is long enough.
        unsafe { widen::<N>(out, from) }
    }

    /// Rounds all of `from`.
    pub fn narrow<N: Wide>(self, out: &mut [u8], from: &[f32]) {
        assert!(out.len() >= from.len() * N::SIZE);
        // SAFETY: `self` proves the features; `out` is long enough.
        unsafe { narrow::<N>(out, from) }
    }

    /// Largest element and whether all are numbers below infinity.
    pub fn max_finite(self, x: &[f32]) -> (f32, bool) {
        // SAFETY: `self` proves the features.
        unsafe { max_finite(x) }
    }

    /// Σ exp((x − max) · factor).
    pub fn sum_exp(self, x: &[f32], max: f32, factor: f32) -> f64 {
        // SAFETY: `self` proves the features.
        unsafe { sum_exp(x, max, factor) }
    }

    /// `out = exp((x − max) · factor)`; returns the sum.
    pub fn write_exp(self, out: &mut [f32], x: &[f32], max: f32, factor: f32) -> f64 {
        assert_eq!(out.len(), x.len());
        // SAFETY: `self` proves the features; the lengths are equal.
        unsafe { write_exp(out, x, max, factor) }
    }
}

/// Both widths' entries of the gate.
macro_rules! entries {
    ($proof:ident, $lanes:ident, $features:literal) => {
        impl $proof {
            /// `out = gate(z) · up`.
            pub fn gate_mul(self, gate: Gate, out: &mut [f32], z: &[f32], up: &[f32]) {
                #[target_feature(enable = $features)]
                unsafe fn run(gate: Gate, out: &mut [f32], z: &[f32], up: &[f32]) {
                    // SAFETY: the caller's.
                    unsafe {
                        match gate {
                            Gate::Silu => gate_mul::<$lanes, false>(gate, out, z, up),
                            Gate::GeluTanh => gate_mul::<$lanes, true>(gate, out, z, up),
                        }
                    }
                }
                assert!(out.len() == z.len() && out.len() == up.len());
                // SAFETY: `self` proves the features; the lengths are equal.
                unsafe { run(gate, out, z, up) }
            }
        }
    };
}

entries!(Avx2, Eight, "avx2,fma,f16c");
entries!(Avx512, Sixteen, "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma");

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sum_of_squares(x: &[f32]) -> f32 {
    // SAFETY: within the chunks.
    unsafe {
        let mut acc = [_mm256_setzero_ps(); 4];
        let chunks = x.chunks_exact(32);
        let tail = chunks.remainder();
        for chunk in chunks {
            for (v, acc) in acc.iter_mut().enumerate() {
                let x = _mm256_loadu_ps(chunk.as_ptr().add(v * 8));
                *acc = _mm256_fmadd_ps(x, x, *acc);
            }
        }
        let total = sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])));
        tail.iter().fold(total, |total, x| x.mul_add(*x, total))
    }
}

// Plain loops that the compiler vectorises under the target feature.

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale(out: &mut [f32], x: &[f32], weight: &[f32], factor: f32) {
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale_in_place(x: &mut [f32], weight: &[f32], factor: f32) {
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * factor * weight;
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    rotate_scalar(head, cos, sin);
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

#[inline(always)]
unsafe fn gate_mul<L: Lanes, const GELU: bool>(gate: Gate, out: &mut [f32], z: &[f32], up: &[f32]) {
    let whole = out.len() / L::COUNT * L::COUNT;
    for i in (0..whole).step_by(L::COUNT) {
        // SAFETY: i + L::COUNT <= len of all three.
        unsafe {
            let g = L::load(z.as_ptr().add(i));
            let s = if GELU {
                let cube = L::mul(L::mul(g, g), L::mul(g, L::splat(GELU_CUBE)));
                L::mul(L::add(cube, g), L::splat(GELU_SLOPE))
            } else {
                g
            };
            let e = exp::<L>(L::sub(L::splat(0.0), s));
            let gated = L::div(g, L::add(e, L::splat(1.0)));
            L::store(out.as_mut_ptr().add(i), L::mul(gated, L::load(up.as_ptr().add(i))));
        }
    }
    for i in whole..out.len() {
        out[i] = gate_scalar(gate, z[i]) * up[i];
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen<N: Wide>(out: &mut [f32], from: &[u8]) {
    let whole = out.len() / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 <= elements of both.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(i), N::load8(from.as_ptr().add(i * N::SIZE))) }
    }
    for (i, out) in out.iter_mut().enumerate().skip(whole) {
        *out = N::get(from, i);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn narrow<N: Wide>(out: &mut [u8], from: &[f32]) {
    let whole = from.len() / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 <= elements of both.
        unsafe { N::store8(out.as_mut_ptr().add(i * N::SIZE), _mm256_loadu_ps(from.as_ptr().add(i))) }
    }
    for (i, value) in from.iter().enumerate().skip(whole) {
        N::put(out, i, *value);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn max_finite(x: &[f32]) -> (f32, bool) {
    // SAFETY: within the chunks.
    unsafe {
        let mut most = [_mm256_set1_ps(f32::NEG_INFINITY); 4];
        let mut zero = [_mm256_setzero_ps(); 4];
        let chunks = x.chunks_exact(32);
        let tail = chunks.remainder();
        for chunk in chunks {
            for v in 0..4 {
                let x = _mm256_loadu_ps(chunk.as_ptr().add(v * 8));
                most[v] = _mm256_max_ps(x, most[v]);
                // 0 · x + 0 stays 0 only for finite x... and -inf is a masked logit, so take max(x, lowest).
                zero[v] =
                    _mm256_fmadd_ps(_mm256_max_ps(_mm256_set1_ps(f32::MIN), x), _mm256_setzero_ps(), zero[v]);
            }
        }
        let zero = sum(_mm256_add_ps(_mm256_add_ps(zero[0], zero[1]), _mm256_add_ps(zero[2], zero[3])));
        let most = max(_mm256_max_ps(_mm256_max_ps(most[0], most[1]), _mm256_max_ps(most[2], most[3])));
        let finite = zero == 0.0 && tail.iter().all(|x| !x.is_nan() && *x < f32::INFINITY);
        (tail.iter().copied().fold(most, f32::max), finite)
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sum_exp(x: &[f32], most: f32, factor: f32) -> f64 {
    let mut total = 0f64;
    // Parts of 512 in f32, then f64: the sum of a large vocabulary keeps its small terms.
    for part in x.chunks(512) {
        let chunks = part.chunks_exact(8);
        let tail = chunks.remainder();
        // SAFETY: within the chunks.
        unsafe {
            let (most8, factor8) = (_mm256_set1_ps(most), _mm256_set1_ps(factor));
            let mut acc = _mm256_setzero_ps();
            for chunk in chunks {
                let value = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(chunk.as_ptr()), most8), factor8);
                acc = _mm256_add_ps(acc, exp::<Eight>(value));
            }
            total += f64::from(sum(acc));
        }
        total += tail.iter().map(|x| f64::from(((x - most) * factor).exp())).sum::<f64>();
    }
    total
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn write_exp(out: &mut [f32], x: &[f32], most: f32, factor: f32) -> f64 {
    let mut total = 0f64;
    for (out, part) in out.chunks_mut(512).zip(x.chunks(512)) {
        let whole = part.len() / 8 * 8;
        // SAFETY: i + 8 <= len of both.
        unsafe {
            let (most8, factor8) = (_mm256_set1_ps(most), _mm256_set1_ps(factor));
            let mut acc = _mm256_setzero_ps();
            for i in (0..whole).step_by(8) {
                let value =
                    _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(part.as_ptr().add(i)), most8), factor8);
                // Below exp's range the weight is exactly 0, so that a masked logit is never drawn.
                let seen = _mm256_cmp_ps::<_CMP_GT_OQ>(value, _mm256_set1_ps(-87.3));
                let value = _mm256_and_ps(exp::<Eight>(value), seen);
                acc = _mm256_add_ps(acc, value);
                _mm256_storeu_ps(out.as_mut_ptr().add(i), value);
            }
            total += f64::from(sum(acc));
        }
        for i in whole..part.len() {
            out[i] = ((part[i] - most) * factor).exp();
            total += f64::from(out[i]);
        }
    }
    total
}
