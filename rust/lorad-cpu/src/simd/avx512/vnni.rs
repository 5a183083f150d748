//! Integer dot products of sixteen rows by `vpdpbusd`: unsigned weights, signed activations.

use std::arch::x86_64::*;
use std::ops::Range;

use super::panel::{Group, Meaning, WidePanel, WIDE, WIDE_BLOCK};
use super::Avx512;
use crate::fetch::Fetch;
use crate::quant::kernel::{Rounded, BLOCK};
use crate::shared::Parts;
use crate::simd::quant::check;

const SMALL: u8 = Meaning::Small as u8;
const SIGNED: u8 = Meaning::Signed as u8;
const HALVES: u8 = Meaning::Halves as u8;

impl Avx512 {
    /// See [`crate::quant::kernel::multiply_scalar`]; the sums are those of AVX2, bit for bit.
    ///
    /// # Safety
    /// As for [`crate::quant::kernel::multiply_scalar`].
    pub unsafe fn multiply(
        self,
        panel: &WidePanel,
        x: &Rounded<'_>,
        tokens: Range<usize>,
        y: &Parts<'_, f32>,
        y_begin: usize,
        y_stride: usize,
        fetch: &mut Fetch,
    ) {
        assert_eq!(panel.blocks(), x.blocks);
        let Some(y) = check(x, &tokens, panel.rows(), y, y_begin, y_stride) else { return };
        // SAFETY: `self` proves the features, a panel is whole, `check` bounds x and y, the caller owns y's columns.
        unsafe {
            match panel.meaning() {
                Meaning::Small => multiply::<SMALL>(panel, x, tokens, y, y_stride, fetch),
                Meaning::Signed => multiply::<SIGNED>(panel, x, tokens, y, y_stride, fetch),
                Meaning::Halves => multiply::<HALVES>(panel, x, tokens, y, y_stride, fetch),
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply<const MEANING: u8>(
    panel: &WidePanel,
    x: &Rounded<'_>,
    tokens: Range<usize>,
    y: *mut f32,
    y_stride: usize,
    fetch: &mut Fetch,
) {
    let (mut t, mut y) = (tokens.start, y);
    let two = panel.groups() == 2;
    // SAFETY: the wrapper's asserts.
    unsafe {
        while t < tokens.end {
            // Two groups share each broadcast activation; 6 tokens are what the registers hold.
            let many = match (tokens.end - t, two) {
                (6.., true) => tile::<6, 2, MEANING>(panel, x, t, y, y_stride, fetch),
                (3.., true) => tile::<3, 2, MEANING>(panel, x, t, y, y_stride, fetch),
                (2.., true) => tile::<2, 2, MEANING>(panel, x, t, y, y_stride, fetch),
                (_, true) => tile::<1, 2, MEANING>(panel, x, t, y, y_stride, fetch),
                (6.., false) => tile::<6, 1, MEANING>(panel, x, t, y, y_stride, fetch),
                (3.., false) => tile::<3, 1, MEANING>(panel, x, t, y, y_stride, fetch),
                (_, false) => tile::<1, 1, MEANING>(panel, x, t, y, y_stride, fetch),
            };
            t += many;
            y = y.add(many * y_stride);
        }
    }
}

/// T tokens by G groups of sixteen rows; returns T.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn tile<const T: usize, const G: usize, const MEANING: u8>(
    panel: &WidePanel,
    x: &Rounded<'_>,
    token: usize,
    y: *mut f32,
    y_stride: usize,
    fetch: &mut Fetch,
) -> usize {
    let blocks = x.blocks;
    let parts = if MEANING == HALVES { 2 } else { 1 };
    let mut groups = [const { Group::NONE }; G];
    for (g, group) in groups.iter_mut().enumerate() {
        *group = panel.group(g);
    }
    // SAFETY: the wrapper's asserts.
    unsafe {
        let xq = x.q.as_ptr().add(token * blocks * BLOCK);
        let (xs, xm) = (x.scale.as_ptr().add(token * blocks), x.sum.as_ptr().add(token * blocks));
        let totals = x.totals.as_ptr().add(token * blocks * 2);
        let mut acc = [[_mm512_setzero_ps(); G]; T];
        for block in 0..blocks {
            fetch.step();
            for part in 0..parts {
                let mut dot = [[_mm512_setzero_si512(); G]; T];
                if MEANING != SMALL {
                    // Signed weights are made unsigned by adding 128; their sums begin where that is taken off again.
                    for (t, dot) in dot.iter_mut().enumerate() {
                        let total = totals.add((t * blocks + block) * 2);
                        let total = match MEANING {
                            HALVES => *total.add(part),
                            _ => (*total).wrapping_add(*total.add(1)),
                        };
                        *dot = [_mm512_set1_epi32(total.wrapping_mul(-128)); G];
                    }
                }
                for k in 0..BLOCK / 4 / parts {
                    let k = part * (BLOCK / 4 / parts) + k;
                    let mut w = [_mm512_setzero_si512(); G];
                    for (w, group) in w.iter_mut().zip(&groups) {
                        *w = _mm512_loadu_si512(group.q.add(block * WIDE_BLOCK + k * WIDE * 4).cast());
                        if MEANING != SMALL {
                            *w = _mm512_xor_si512(*w, _mm512_set1_epi8(-128));
                        }
                    }
                    for (t, dot) in dot.iter_mut().enumerate() {
                        let four =
                            xq.add((t * blocks + block) * BLOCK + k * 4).cast::<i32>().read_unaligned();
                        let four = _mm512_set1_epi32(four);
                        for g in 0..G {
                            dot[g] = _mm512_dpbusd_epi32(dot[g], w[g], four);
                        }
                    }
                }
                for (g, group) in groups.iter().enumerate() {
                    let scale = _mm512_loadu_ps(group.scale.add((block * parts + part) * WIDE));
                    for t in 0..T {
                        let both = _mm512_mul_ps(scale, _mm512_set1_ps(*xs.add(t * blocks + block)));
                        acc[t][g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t][g]), both, acc[t][g]);
                        if MEANING == SMALL {
                            let min = _mm512_loadu_ps(group.min.add(block * WIDE));
                            let sum = _mm512_set1_ps(*xm.add(t * blocks + block));
                            acc[t][g] = _mm512_fmadd_ps(min, sum, acc[t][g]);
                        }
                    }
                }
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            for (g, acc) in acc.iter().enumerate() {
                let rows = 0xffff >> (WIDE - groups[g].rows);
                _mm512_mask_storeu_ps(y.add(t * y_stride + g * WIDE), rows, *acc);
            }
        }
    }
    T
}
