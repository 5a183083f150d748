//! Blocks of 32 columns as they lie here: eight rows interleaved, four columns at a time.
//!
//! A packed block of eight rows holds the quants, then their scalars. Bytes of the quants are `[4 columns group][row][4]`:
//! one 32-byte vector is four neighbouring bytes of each row. But for Q8_0 a byte holds the low four bits of columns c
//! (low half) and c + 16 (high half), as in the file; what a weight has beyond four bits follows in planes of the same
//! order, a byte holding the bits of the same place in each group of four columns (1 bit: eight groups; 2 bits: four).
//! Rows beyond the last are zero.
//!
//! Scalars: eight f16 scales, then (Q4_1, Q5_1) eight f16 minima. K-quants: eight bytes of sub-scales, then eight of
//! sub-minima (Q6_K: of the sub-scales of the other 16 columns), and a head before each eight blocks holds what those are
//! multiplied with: eight f16 d, then eight f16 dmin. Widened to f32 these would be read from memory at 0.75 bytes a
//! weight of Q4_K instead of 0.58. Bytes a weight, packed (in the file where that differs, as it has six bits where a
//! sub-scale takes a byte here):
//!
//! | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | 0.5625 | 0.625 | 0.6875 | 0.75 | 1.0625 | 0.5781 (0.5625) | 0.7031 (0.6875) | 0.8203 |

use super::block::Block;
use super::file_block::FileBlock;
use super::kernel::{BLOCK, LANES};
use crate::aligned::Aligned;
use crate::OpError;

/// A block's number type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 4 bits, scale: d · (q − 8).
    Q4_0,
    /// 4 bits, scale and minimum: d · q + m.
    Q4_1,
    /// 5 bits, scale: d · (q − 16).
    Q5_0,
    /// 5 bits, scale and minimum: d · q + m.
    Q5_1,
    /// 8 bits, scale: d · q.
    Q8_0,
    /// 4 bits, scale and minimum of 6 bits for each 32 of 256 columns: (d · sc) · q − dmin · m.
    Q4K,
    /// 5 bits, otherwise as Q4_K.
    Q5K,
    /// 6 bits, scale of 8 bits for each 16 of 256 columns: (d · sc) · (q − 32).
    Q6K,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 8] =
        [Kind::Q4_0, Kind::Q4_1, Kind::Q5_0, Kind::Q5_1, Kind::Q8_0, Kind::Q4K, Kind::Q5K, Kind::Q6K];

    /// GGUF's name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Q4_0 => "Q4_0",
            Kind::Q4_1 => "Q4_1",
            Kind::Q5_0 => "Q5_0",
            Kind::Q5_1 => "Q5_1",
            Kind::Q8_0 => "Q8_0",
            Kind::Q4K => "Q4_K",
            Kind::Q5K => "Q5_K",
            Kind::Q6K => "Q6_K",
        }
    }

    /// The kind that GGUF calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Columns of a block in the file.
    pub const fn file_columns(self) -> usize {
        if self.is_k() {
            256
        } else {
            BLOCK
        }
    }

    /// Bytes of a block in the file.
    pub const fn file_bytes(self) -> usize {
        match self {
            Kind::Q4_0 => 18,
            Kind::Q4_1 => 20,
            Kind::Q5_0 => 22,
            Kind::Q5_1 => 24,
            Kind::Q8_0 => 34,
            Kind::Q4K => 144,
            Kind::Q5K => 176,
            Kind::Q6K => 210,
        }
    }

    /// Whether blocks of 256 columns have scales of scales.
    pub const fn is_k(self) -> bool {
        matches!(self, Kind::Q4K | Kind::Q5K | Kind::Q6K)
    }

    /// Whether weights or scales are put together from parts: planes of bits, scales of scales.
    pub const fn is_composed(self) -> bool {
        self.is_k() || self.plane_bits() > 0
    }

    /// Whether 16 columns share a scale, not 32.
    pub const fn has_half_scales(self) -> bool {
        matches!(self, Kind::Q6K)
    }

    /// f16 scalars of a file's block: d, and a minimum or the scale of the minima.
    pub const fn halves(self) -> usize {
        match self {
            Kind::Q4_0 | Kind::Q5_0 | Kind::Q8_0 | Kind::Q6K => 1,
            Kind::Q4_1 | Kind::Q5_1 | Kind::Q4K | Kind::Q5K => 2,
        }
    }

    /// Bits of a weight beyond four; Q8_0's bytes are whole.
    pub const fn plane_bits(self) -> usize {
        match self {
            Kind::Q4_0 | Kind::Q4_1 | Kind::Q8_0 | Kind::Q4K => 0,
            Kind::Q5_0 | Kind::Q5_1 | Kind::Q5K => 1,
            Kind::Q6K => 2,
        }
    }

    /// The quant that means zero.
    pub const fn zero(self) -> u8 {
        match self {
            Kind::Q4_0 => 8,
            Kind::Q5_0 => 16,
            Kind::Q6K => 32,
            Kind::Q4_1 | Kind::Q5_1 | Kind::Q8_0 | Kind::Q4K | Kind::Q5K => 0,
        }
    }

    /// Bytes of the low four bits (Q8_0: all) of eight rows.
    pub const fn packed_low_bytes(self) -> usize {
        match self {
            Kind::Q8_0 => BLOCK * LANES,
            _ => BLOCK / 2 * LANES,
        }
    }

    /// Bytes of the quants of eight rows.
    pub const fn packed_quant_bytes(self) -> usize {
        self.packed_low_bytes() + self.plane_bits() * BLOCK / 8 * LANES
    }

    /// Bytes of a block of eight rows.
    pub const fn packed_bytes(self) -> usize {
        let scalars = if self.is_k() { 2 } else { self.halves() * 2 };
        self.packed_quant_bytes() + scalars * LANES
    }

    /// Blocks behind one head.
    const fn blocks_of_head(self) -> usize {
        self.file_columns() / BLOCK
    }

    /// Bytes of a head of eight rows: none but for K-quants.
    pub const fn packed_head_bytes(self) -> usize {
        if self.is_k() {
            self.halves() * 2 * LANES
        } else {
            0
        }
    }

    /// Where the head of block `block` of the packed bytes begins: the bytes of that many blocks, if they are whole rows.
    pub const fn packed_head_at(self, block: usize) -> usize {
        let bytes = self.packed_head_bytes() + self.blocks_of_head() * self.packed_bytes();
        block / self.blocks_of_head() * bytes
    }

    /// Where block `block` of the packed bytes begins.
    pub const fn packed_at(self, block: usize) -> usize {
        let within = block % self.blocks_of_head();
        self.packed_head_at(block) + self.packed_head_bytes() + within * self.packed_bytes()
    }
}

/// The repacked matrix.
pub struct Packed {
    kind: Kind,
    rows: usize,
    cols: usize,
    data: Aligned<u8>,
}

impl Packed {
    /// Repacks a file's blocks.
    pub fn new(kind: Kind, file: &[u8], rows: usize, cols: usize) -> Result<Self, OpError> {
        super::check(kind, file, rows, cols)?;
        let (blocks, groups) = (cols / BLOCK, rows.div_ceil(LANES));
        let mut data = Aligned::zeros(kind.packed_head_at(groups * blocks));
        let target: &mut [u8] = &mut data;
        let (mut source, each) = (FileBlock::default(), kind.file_columns() / BLOCK);
        for (number, bytes) in file.chunks_exact(kind.file_bytes()).enumerate() {
            let (row, block) = (number * each / blocks, number * each % blocks);
            let (first, lane) = (row / LANES * blocks + block, row % LANES);
            source.read(kind, bytes);
            for within in 0..each {
                put(kind, &source, within, &mut target[kind.packed_at(first + within)..], lane);
            }
            if kind.is_k() {
                put_halves(kind, &source, &mut target[kind.packed_head_at(first)..], lane);
            }
        }
        Ok(Self { kind, rows, cols, data })
    }

    /// Number type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// The blocks of `count` groups of eight rows, from row 8 · `group`.
    pub fn groups(&self, group: usize, count: usize) -> &[u8] {
        let bytes = self.kind.packed_head_at(self.cols / BLOCK);
        &self.data[group * bytes..][..count * bytes]
    }

    /// Widens one row, in the arithmetic of gguf-py: no fused multiply-add.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (group, lane) = (self.groups(row / LANES, 1), row % LANES);
        for (number, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            Block::new(self.kind, group, number).row(lane, out);
        }
    }
}

/// Puts 32 columns of one row among the eight of a packed block.
fn put(kind: Kind, source: &FileBlock, within: usize, to: &mut [u8], lane: usize) {
    let q = &source.q[within * BLOCK..][..BLOCK];
    let place = |columns: usize| columns * LANES * 4 + lane * 4;
    if kind == Kind::Q8_0 {
        for (columns, four) in q.chunks_exact(4).enumerate() {
            to[place(columns)..][..4].copy_from_slice(four);
        }
    } else {
        let (low, high) = q.split_at(BLOCK / 2);
        for (columns, (low, high)) in low.chunks_exact(4).zip(high.chunks_exact(4)).enumerate() {
            for (to, (low, high)) in to[place(columns)..][..4].iter_mut().zip(low.iter().zip(high)) {
                *to = low & 15 | high << 4;
            }
        }
        let (bits, planes) = (kind.plane_bits(), kind.packed_low_bytes());
        for (columns, four) in q.chunks_exact(4).enumerate().filter(|_| bits > 0) {
            let to = &mut to[planes + place(columns * bits / 8)..][..4];
            for (to, q) in to.iter_mut().zip(four) {
                *to |= q >> 4 << (columns * bits % 8);
            }
        }
    }
    let scalars = &mut to[kind.packed_quant_bytes()..];
    if kind.is_k() {
        [scalars[lane], scalars[LANES + lane]] = source.sub[within];
    } else {
        put_halves(kind, source, scalars, lane);
    }
}

/// Puts the f16 scalars of one row among those of eight.
fn put_halves(kind: Kind, source: &FileBlock, to: &mut [u8], lane: usize) {
    for (scalar, half) in source.halves[..kind.halves()].iter().enumerate() {
        to[(scalar * LANES + lane) * 2..][..2].copy_from_slice(half);
    }
}
