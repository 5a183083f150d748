//! Products with weights that are widened as they are read: eight weight rows are the lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use super::wide::{store_tile, Wide};
use super::Avx2;
use crate::dense::{Panel, LANES};
use crate::shared::Parts;

impl Avx2 {
    /// See [`crate::dense::multiply_scalar`]; products are fused with sums.
    ///
    /// # Safety
    /// As for [`crate::dense::multiply_scalar`].
    pub unsafe fn multiply_dense<N: Wide>(
        self,
        panel: &Panel<'_>,
        x: &[f32],
        tokens: Range<usize>,
        y: &Parts<'_, f32>,
        y_begin: usize,
        y_stride: usize,
    ) {
        let groups = panel.rows.div_ceil(LANES);
        assert!(matches!(groups, 1 | 2) && panel.weights.len() >= groups * panel.cols * LANES * N::SIZE);
        assert!(x.len() >= tokens.end * panel.cols);
        let Some(last) = tokens.len().checked_sub(1) else { return };
        let y = y.pointer(y_begin + tokens.start * y_stride, last * y_stride + panel.rows);
        // SAFETY: `self` proves the features, the asserts bound all accesses, the caller owns the columns of y.
        unsafe { multiply::<N>(panel, &x[tokens.start * panel.cols..], tokens.len(), y, y_stride) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<N: Wide>(panel: &Panel<'_>, x: &[f32], tokens: usize, y: *mut f32, y_stride: usize) {
    let (mut t, two) = (0, panel.rows > LANES);
    while t < tokens {
        // SAFETY: the wrapper's asserts.
        unsafe {
            let (x, y) = (x.as_ptr().add(t * panel.cols), y.add(t * y_stride));
            // 6 tokens by 16 rows are what the registers hold.
            t += match (tokens - t, two) {
                (6.., true) => tile::<N, 6, 2>(panel, x, y, y_stride),
                (3.., true) => tile::<N, 3, 2>(panel, x, y, y_stride),
                (_, true) => tile::<N, 1, 2>(panel, x, y, y_stride),
                (6.., false) => tile::<N, 6, 1>(panel, x, y, y_stride),
                (_, false) => tile::<N, 1, 1>(panel, x, y, y_stride),
            };
        }
    }
}

/// T tokens by G groups of eight rows; returns T.
#[inline(always)]
unsafe fn tile<N: Wide, const T: usize, const G: usize>(
    panel: &Panel<'_>,
    x: *const f32,
    y: *mut f32,
    y_stride: usize,
) -> usize {
    let (weights, cols) = (panel.weights.as_ptr(), panel.cols);
    // SAFETY: the wrapper's asserts.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); G]; T];
        for k in 0..cols {
            let mut w = [_mm256_setzero_ps(); G];
            for (g, w) in w.iter_mut().enumerate() {
                *w = N::load8(weights.add((g * cols + k) * LANES * N::SIZE));
            }
            for (t, acc) in acc.iter_mut().enumerate() {
                let x = _mm256_set1_ps(*x.add(t * cols + k));
                for g in 0..G {
                    acc[g] = _mm256_fmadd_ps(x, w[g], acc[g]);
                }
            }
        }
        store_tile(acc, y, y_stride, panel.rows);
    }
    T
}
