//! A panel of eight lanes, widened for the dot products; for AVX2 and the definition.

use super::block;
use super::kernel::{self, Panel, Weights, BLOCK, LANES};
use super::pack::Kind;
use crate::cpu::Level;

/// Bytes and scales; 8-bit quants stay where they are.
#[derive(Default)]
pub(super) struct Wide {
    q: Vec<u8>,
    scale: Vec<f32>,
    min: Vec<f32>,
}

impl Wide {
    /// Widens `rows` packed rows of `blocks` blocks.
    pub fn fill(&mut self, level: Level, kind: Kind, packed: &[u8], rows: usize, blocks: usize) {
        let count = rows.div_ceil(LANES) * blocks;
        if kind.is_composed() {
            return self.compose(level, kind, packed, count);
        }
        let (stride, quants) = (kind.packed_bytes(), kind.packed_quant_bytes());
        let scales = |packed: &[u8], out: &mut Vec<f32>| {
            out.resize(count * LANES, 0.0);
            match level {
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(avx2) => avx2.unpack_scales(packed, stride, out),
                _ => kernel::unpack_scales_scalar(packed, stride, out),
            }
        };
        scales(&packed[quants..], &mut self.scale);
        if kind == Kind::Q8_0 {
            return;
        }
        self.q.resize(count * LANES * BLOCK, 0);
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) => avx2.unpack_nibbles(packed, stride, &mut self.q),
            _ => kernel::unpack_nibbles_scalar(packed, stride, &mut self.q),
        }
        if kind == Kind::Q4_1 {
            scales(&packed[quants + LANES * 2..], &mut self.min);
        } else {
            // (q − 8) · d = q · d + (−8 d), exact: 8 is a power of two.
            self.min.clear();
            self.min.extend(self.scale.iter().map(|scale| -8.0 * scale));
        }
    }

    /// Widens packed blocks of a composed kind.
    fn compose(&mut self, level: Level, kind: Kind, packed: &[u8], blocks: usize) {
        let (scales, minima) = if kind.has_half_scales() { (2, 0) } else { (1, 1) };
        self.q.resize(blocks * LANES * BLOCK, 0);
        self.scale.resize(blocks * LANES * scales, 0.0);
        self.min.resize(blocks * LANES * minima, 0.0);
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) => {
                avx2.unpack_composed(kind, packed, &mut self.q, &mut self.scale, &mut self.min)
            }
            _ => block::unpack_scalar(kind, packed, &mut self.q, &mut self.scale, &mut self.min),
        }
    }

    /// What [`Wide::fill`] made of these packed rows.
    pub fn view<'a>(&'a self, kind: Kind, packed: &'a [u8], rows: usize) -> Panel<'a> {
        let min = &self.min;
        let weights = match (kind, kind.is_composed()) {
            (Kind::Q8_0, _) => Weights::Signed,
            (_, false) => Weights::Small { min },
            (_, true) => match kind.plane_bits() {
                0 => Weights::Small { min },
                1 => Weights::Five { min },
                _ => Weights::Halves,
            },
        };
        let (q, stride) =
            if kind == Kind::Q8_0 { (packed, kind.packed_bytes()) } else { (&self.q[..], LANES * BLOCK) };
        Panel { q, stride, scale: &self.scale, weights, rows }
    }
}
