//! Weights widened for sixteen lanes: a byte a weight, whatever the kind.

use crate::aligned::Aligned;
use crate::fetch::Fetch;
use crate::quant::kernel::{BLOCK, LANES};
use crate::quant::pack::Kind;
use crate::simd::forms::{
    is_halves, min, scale, weights, Source, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
};

use super::Avx512;

/// Rows of a group: the lanes of a vector.
pub const WIDE: usize = 2 * LANES;
/// Bytes of a block of sixteen rows: `[8 groups of columns][16 rows][4 columns]`.
pub const WIDE_BLOCK: usize = WIDE * BLOCK;

/// Up to 32 rows of a quantised matrix.
#[derive(Default)]
pub struct WidePanel {
    /// `[groups of 16 rows][blocks]` of [`WIDE_BLOCK`] bytes: the weights in scales, of either sign.
    q: Aligned<u8>,
    /// `[groups, blocks, 16]`, or `[groups, blocks, 2, 16]` where 16 columns share one.
    scale: Aligned<f32>,
    /// `[groups, blocks, 16]`: what is added to each weight, where the kind has that.
    min: Aligned<f32>,
    blocks: usize,
    rows: usize,
    meaning: Meaning,
}

/// What the bytes of a panel mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Meaning {
    /// 0..=31, and a minimum.
    #[default]
    Small,
    /// -128..=127, no minimum.
    Signed,
    /// -32..=31, two scales a block, no minimum.
    Halves,
}

impl Meaning {
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Q8_0 => Self::Signed,
            Kind::Q6K => Self::Halves,
            _ => Self::Small,
        }
    }
}

/// A group of sixteen rows of a panel.
pub struct Group {
    pub q: *const u8,
    pub scale: *const f32,
    pub min: *const f32,
    /// Rows that exist.
    pub rows: usize,
}

impl Group {
    /// A place to fill.
    pub const NONE: Self =
        Self { q: std::ptr::null(), scale: std::ptr::null(), min: std::ptr::null(), rows: 0 };
}

impl WidePanel {
    /// Widens `rows` rows of packed groups of eight; each block of a group is a step of `fetch`.
    pub fn fill(
        &mut self,
        _proof: Avx512,
        kind: Kind,
        packed: &[u8],
        rows: usize,
        blocks: usize,
        fetch: &mut Fetch,
    ) {
        let (groups, wide) = (rows.div_ceil(LANES), rows.div_ceil(WIDE));
        assert!(
            rows > 0
                && blocks > 0
                && packed.len() >= kind.packed_at(groups * blocks - 1) + kind.packed_bytes()
        );
        let scales = if kind.has_half_scales() { 2 } else { 1 };
        self.q.reserve(wide * blocks * WIDE_BLOCK);
        self.scale.reserve(wide * blocks * scales * WIDE);
        self.min.reserve(wide * blocks * WIDE);
        (self.blocks, self.rows, self.meaning) = (blocks, rows, Meaning::of(kind));
        for group in 0..groups {
            let to = (group / 2 * blocks, group % 2 * LANES);
            let (q, scale, min) = (self.q.as_mut_ptr(), self.scale.as_mut_ptr(), self.min.as_mut_ptr());
            let first = group * blocks;
            // SAFETY: the proof; the assert bounds what is read, the reserved lengths what is written: block `to.0` and
            // those after it, lanes `to.1` to `to.1 + 7`.
            unsafe {
                let to = (
                    q.add(to.0 * WIDE_BLOCK + to.1 * 4),
                    scale.add(to.0 * scales * WIDE + to.1),
                    min.add(to.0 * WIDE + to.1),
                );
                match kind {
                    Kind::Q4_0 => widen::<Q4_0>(packed, first, blocks, to, fetch),
                    Kind::Q4_1 => widen::<Q4_1>(packed, first, blocks, to, fetch),
                    Kind::Q5_0 => widen::<Q5_0>(packed, first, blocks, to, fetch),
                    Kind::Q5_1 => widen::<Q5_1>(packed, first, blocks, to, fetch),
                    Kind::Q8_0 => widen::<Q8_0>(packed, first, blocks, to, fetch),
                    Kind::Q4K => widen::<Q4_K>(packed, first, blocks, to, fetch),
                    Kind::Q5K => widen::<Q5_K>(packed, first, blocks, to, fetch),
                    Kind::Q6K => widen::<Q6_K>(packed, first, blocks, to, fetch),
                }
            }
        }
    }

    /// Blocks of a row.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Rows that exist.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// What its bytes mean.
    pub fn meaning(&self) -> Meaning {
        self.meaning
    }

    /// Groups of sixteen rows, the last of which may have fewer.
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(WIDE)
    }

    /// A group of rows; [`WidePanel::fill`] made all of its blocks.
    pub fn group(&self, number: usize) -> Group {
        assert!(number < self.groups());
        let scales = if self.meaning == Meaning::Halves { 2 } else { 1 };
        let first = number * self.blocks;
        Group {
            q: self.q[first * WIDE_BLOCK..].as_ptr(),
            scale: self.scale[first * scales * WIDE..].as_ptr(),
            min: self.min[first * WIDE..].as_ptr(),
            rows: WIDE.min(self.rows - number * WIDE),
        }
    }
}

/// Widens the blocks of eight rows from block `first` of the packed ones. Half vectors, as a packed group has eight
/// rows, which is what single tokens are multiplied by.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen<const FORM: u8>(
    packed: &[u8],
    first: usize,
    blocks: usize,
    to: (*mut u8, *mut f32, *mut f32),
    fetch: &mut Fetch,
) {
    use std::arch::x86_64::*;
    let none = std::ptr::null();
    let source = Source { q: packed.as_ptr(), scale: none, min: none, blocks, first: 0, rows: LANES };
    let scales = if is_halves(FORM) { 2 } else { 1 };
    for block in 0..blocks {
        fetch.step();
        // SAFETY: the caller's asserts.
        unsafe {
            let q = to.0.add(block * WIDE_BLOCK);
            for half in 0..2 {
                for i in 0..4 {
                    let w = weights::<FORM>(source.q, first + block, half, i);
                    _mm256_storeu_si256(q.add((half * 4 + i) * WIDE * 4).cast(), w);
                }
            }
            for half in 0..scales {
                let scale = scale::<FORM>(&source, first + block, half);
                _mm256_storeu_ps(to.1.add((block * scales + half) * WIDE), scale);
                if !is_halves(FORM) && FORM != Q8_0 {
                    _mm256_storeu_ps(to.2.add(block * WIDE), min::<FORM>(&source, first + block, scale));
                }
            }
        }
    }
}
