//! A packed block read weight by weight: the definition of what the packed bytes mean.

use super::kernel::{BLOCK, LANES};
use super::pack::Kind;
use crate::number::f16_to_f32;

/// 32 columns of eight rows.
pub struct Block<'a> {
    kind: Kind,
    /// K-quants: f16 that the scalars are multiplied with.
    head: &'a [u8],
    quants: &'a [u8],
    scalars: &'a [u8],
}

impl<'a> Block<'a> {
    /// Block `number` of packed bytes.
    pub fn new(kind: Kind, packed: &'a [u8], number: usize) -> Self {
        let head = &packed[kind.packed_head_at(number)..][..kind.packed_head_bytes()];
        let (quants, scalars) =
            packed[kind.packed_at(number)..][..kind.packed_bytes()].split_at(kind.packed_quant_bytes());
        Self { kind, head, quants, scalars }
    }

    /// Quant of a row and column: unsigned (Q8_0: a signed byte).
    fn quant(&self, lane: usize, column: usize) -> u8 {
        let columns = column / 4;
        let byte = |columns: usize| self.quants[(columns * LANES + lane) * 4 + column % 4];
        if self.kind == Kind::Q8_0 {
            return byte(columns);
        }
        let low = if columns < 4 { byte(columns) & 15 } else { byte(columns - 4) >> 4 };
        let (bits, planes) = (self.kind.plane_bits(), self.kind.packed_low_bytes() / (LANES * 4));
        if bits == 0 {
            return low;
        }
        let high = byte(planes + columns * bits / 8) >> (columns * bits % 8);
        low | (high & ((1 << bits) - 1)) << 4
    }

    /// What the quant means, in scales.
    fn steps(&self, lane: usize, column: usize) -> i8 {
        (self.quant(lane, column) as i8).wrapping_sub(self.kind.zero() as i8)
    }

    /// Scale of a row in columns 0..16 (`half` 0) or 16..32 (1). Exact: 11 bits by at most 8.
    fn scale(&self, lane: usize, half: usize) -> f32 {
        if self.kind.has_half_scales() {
            return half_float(self.head, lane) * f32::from(self.scalars[half * LANES + lane] as i8);
        }
        if self.kind.is_k() {
            return half_float(self.head, lane) * f32::from(self.scalars[lane]);
        }
        half_float(self.scalars, lane)
    }

    /// What is added to a row's weights.
    fn min(&self, lane: usize) -> Option<f32> {
        if self.kind.halves() == 1 {
            return None;
        }
        if self.kind.is_k() {
            return Some(-(half_float(self.head, LANES + lane) * f32::from(self.scalars[LANES + lane])));
        }
        Some(half_float(self.scalars, LANES + lane))
    }

    /// Widens a row, in the arithmetic of gguf-py.
    pub fn row(&self, lane: usize, out: &mut [f32]) {
        let min = self.min(lane);
        for (half, out) in out.chunks_exact_mut(BLOCK / 2).enumerate() {
            let scale = self.scale(lane, half);
            for (column, out) in out.iter_mut().enumerate() {
                let weight = scale * f32::from(self.steps(lane, half * BLOCK / 2 + column));
                *out = min.map_or(weight, |min| weight + min);
            }
        }
    }
}

/// Number `index` of some f16.
fn half_float(bytes: &[u8], index: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]))
}

/// Widens the packed blocks of a composed kind for [`super::kernel::multiply_scalar`]: `panel` a byte a weight; `scale`
/// `[blocks, 8]`, or `[blocks, 2, 8]` where 16 columns share one; `min` `[blocks, 8]`, none for Q6_K.
pub fn unpack_scalar(kind: Kind, packed: &[u8], panel: &mut [u8], scale: &mut [f32], min: &mut [f32]) {
    let scales = scale.len() / (panel.len() / BLOCK);
    for (number, panel) in panel.chunks_exact_mut(LANES * BLOCK).enumerate() {
        let block = Block::new(kind, packed, number);
        for lane in 0..LANES {
            for column in 0..BLOCK {
                panel[(column / 4 * LANES + lane) * 4 + column % 4] = if kind.has_half_scales() {
                    block.steps(lane, column) as u8
                } else {
                    block.quant(lane, column)
                };
            }
            for half in 0..scales {
                scale[(number * scales + half) * LANES + lane] = block.scale(lane, half);
            }
            if let Some(min) = min.get_mut(number * LANES + lane) {
                // (q − 16) · d = q · d + (−16 d), exact: 16 is a power of two.
                let zero = -f32::from(kind.zero()) * block.scale(lane, 0);
                *min = block.min(lane).unwrap_or(zero);
            }
        }
    }
}
