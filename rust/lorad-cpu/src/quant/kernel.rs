//! The dot product of eight weight rows with rounded activations, and its scalar definition.

use std::ops::Range;

use crate::number::f16_to_f32;
use crate::shared::Parts;

/// Weight rows side by side.
pub const LANES: usize = 8;
/// Groups of rows that a panel holds at most: they share each activation that is loaded.
pub const GROUPS: usize = 2;
/// Columns that share a scale.
pub const BLOCK: usize = 32;

/// Rounded activations.
#[derive(Clone, Copy)]
pub struct Rounded<'a> {
    /// `[n, blocks · 32]`, -127..=127.
    pub q: &'a [i8],
    /// `[n, blocks]`: x ≈ scale · q. NaN where the block holds a NaN or infinity.
    pub scale: &'a [f32],
    /// `[n, blocks]`: scale · Σ q.
    pub sum: &'a [f32],
    /// `[n, blocks, 2]`: Σ q of each half of a block.
    pub totals: &'a [i32],
    /// Blocks of a row.
    pub blocks: usize,
    /// Rows.
    pub tokens: usize,
}

/// A row of [`Rounded`] to write.
pub struct RoundedRow<'a> {
    /// `[blocks · 32]`.
    pub q: &'a mut [i8],
    /// `[blocks]`.
    pub scale: &'a mut [f32],
    /// `[blocks]`.
    pub sum: &'a mut [f32],
    /// `[blocks, 2]`.
    pub totals: &'a mut [i32],
}

/// What a panel's bytes mean.
#[derive(Clone, Copy)]
pub enum Weights<'a> {
    /// 0..=15, and a minimum `[groups, blocks, 8]` that is added to each weight.
    Small {
        /// The minima.
        min: &'a [f32],
    },
    /// 0..=31, and a minimum as above: sums of 32 columns don't fit 16 bits, those of 16 do.
    Five {
        /// The minima.
        min: &'a [f32],
    },
    /// -128..=127.
    Signed,
    /// -32..=31, and scales `[groups, blocks, 2, 8]`: 16 columns share one.
    Halves,
}

/// Up to [`GROUPS`] groups of eight rows, one byte a weight.
pub struct Panel<'a> {
    /// `[groups][blocks]`, `stride` bytes apart: `[8 groups of columns][8 rows][4 columns]`.
    pub q: &'a [u8],
    /// Bytes between blocks.
    pub stride: usize,
    /// `[groups, blocks, 8]`, but see [`Weights::Halves`].
    pub scale: &'a [f32],
    /// What `q` means.
    pub weights: Weights<'a>,
    /// Rows that exist.
    pub rows: usize,
}

/// Rounds a row: scale = max|x| / 127, q = x / scale to nearest, ties to even.
pub fn round_scalar(x: &[f32], to: RoundedRow<'_>) {
    for (block, (x, q)) in x.chunks_exact(BLOCK).zip(to.q.chunks_exact_mut(BLOCK)).enumerate() {
        let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
        // NaN or infinity anywhere makes the block's scale NaN, which nothing downstream can lose.
        let zero: f32 = x.iter().map(|x| x * 0.0).sum();
        let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
        let totals = &mut to.totals[block * 2..][..2];
        totals.fill(0);
        for (column, (x, q)) in x.iter().zip(q).enumerate() {
            *q = (x * inverse).round_ties_even() as i8;
            totals[column / (BLOCK / 2)] += i32::from(*q);
        }
        to.scale[block] = most / 127.0 + zero;
        to.sum[block] = to.scale[block] * (totals[0] + totals[1]) as f32;
    }
}

/// Columns c and c + 16 of a packed byte to one byte each.
pub fn unpack_nibbles_scalar(packed: &[u8], stride: usize, panel: &mut [u8]) {
    for (block, to) in panel.chunks_exact_mut(LANES * BLOCK).enumerate() {
        let (low, high) = to.split_at_mut(LANES * BLOCK / 2);
        for (index, byte) in packed[block * stride..][..LANES * BLOCK / 2].iter().enumerate() {
            (low[index], high[index]) = (byte & 15, byte >> 4);
        }
    }
}

/// Eight halves of each block.
pub fn unpack_scales_scalar(packed: &[u8], stride: usize, scales: &mut [f32]) {
    for (block, to) in scales.chunks_exact_mut(LANES).enumerate() {
        for (two, to) in packed[block * stride..].chunks_exact(2).zip(to) {
            *to = f16_to_f32(u16::from_le_bytes([two[0], two[1]]));
        }
    }
}

/// `y[t, r] = Σ_blocks scale_w · scale_x · Σ q_w q_x (+ min · scale_x Σ q_x)`, summed by halves of a block where those
/// have scales; y's row for the first of `tokens` is at `y_begin`, each other one `y_stride` after the last.
///
/// # Safety
/// Nobody else may use these `panel.rows` columns of y meanwhile.
pub unsafe fn multiply_scalar(
    panel: &Panel<'_>,
    x: &Rounded<'_>,
    tokens: Range<usize>,
    y: &Parts<'_, f32>,
    y_begin: usize,
    y_stride: usize,
) {
    for (number, t) in tokens.enumerate() {
        // SAFETY: the caller's promise.
        let y = unsafe { y.part(y_begin + number * y_stride, panel.rows) };
        for (row, y) in y.iter_mut().enumerate() {
            let (group, lane) = (row / LANES, row % LANES);
            let mut acc = 0f32;
            for block in 0..x.blocks {
                let (at, number) = (t * x.blocks + block, group * x.blocks + block);
                let xq = &x.q[at * BLOCK..][..BLOCK];
                let w = &panel.q[number * panel.stride..][..LANES * BLOCK];
                let scales = if matches!(panel.weights, Weights::Halves) { 2 } else { 1 };
                for (part, xq) in xq.chunks_exact(BLOCK / scales).enumerate() {
                    let mut dot = 0i32;
                    for (column, xq) in xq.iter().enumerate() {
                        let column = part * BLOCK / scales + column;
                        let w = w[(column / 4 * LANES + lane) * 4 + column % 4];
                        let w = if matches!(panel.weights, Weights::Signed | Weights::Halves) {
                            i32::from(w as i8)
                        } else {
                            i32::from(w)
                        };
                        dot += w * i32::from(*xq);
                    }
                    let scale = panel.scale[(number * scales + part) * LANES + lane];
                    acc += dot as f32 * (scale * x.scale[at]);
                }
                if let Weights::Small { min } | Weights::Five { min } = panel.weights {
                    acc += min[number * LANES + lane] * x.sum[at];
                }
            }
            *y = acc;
        }
    }
}
