//! Blocks of 32 as GGUF has them, and as they lie here: eight rows interleaved, four columns at a time.
//!
//! A packed block of eight rows holds the quants, then eight f16 scales, then (Q4_1) eight f16 minima. Bytes of the
//! quants are `[4 columns group][row][4]`: one 32-byte vector is four neighbouring bytes of each row. For 4-bit kinds a
//! byte holds columns c (low half) and c + 16 (high half), as in the file. Rows beyond the last are zero.

use super::kernel::{BLOCK, LANES};
use crate::number::f16_to_f32;
use crate::OpError;

/// A block's number type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 4 bits, scale: d · (q − 8).
    Q4_0,
    /// 4 bits, scale and minimum: d · q + m.
    Q4_1,
    /// 8 bits, scale: d · q.
    Q8_0,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::Q4_0, Kind::Q4_1, Kind::Q8_0];

    /// GGUF's name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Q4_0 => "Q4_0",
            Kind::Q4_1 => "Q4_1",
            Kind::Q8_0 => "Q8_0",
        }
    }

    /// The kind that GGUF calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes of scale (and minimum) before the quants of a block in the file.
    const fn file_head(self) -> usize {
        match self {
            Kind::Q4_0 | Kind::Q8_0 => 2,
            Kind::Q4_1 => 4,
        }
    }

    /// Bytes of one row's quants in a block.
    const fn quant_bytes(self) -> usize {
        match self {
            Kind::Q4_0 | Kind::Q4_1 => BLOCK / 2,
            Kind::Q8_0 => BLOCK,
        }
    }

    /// Bytes of a block in the file.
    pub const fn file_bytes(self) -> usize {
        self.file_head() + self.quant_bytes()
    }

    /// Bytes of the quants of eight rows.
    pub const fn packed_quant_bytes(self) -> usize {
        self.quant_bytes() * LANES
    }

    /// Bytes of a block of eight rows.
    pub const fn packed_bytes(self) -> usize {
        self.file_bytes() * LANES
    }
}

/// The repacked matrix.
pub struct Packed {
    kind: Kind,
    rows: usize,
    cols: usize,
    data: Vec<u8>,
    /// Where data begins on a cache line.
    start: usize,
}

impl Packed {
    /// Repacks a file's blocks.
    pub fn new(kind: Kind, file: &[u8], rows: usize, cols: usize) -> Result<Self, OpError> {
        super::check(kind, file, rows, cols)?;
        let (blocks, groups) = (cols / BLOCK, rows.div_ceil(LANES));
        let len = groups * blocks * kind.packed_bytes();
        let mut data = vec![0u8; len + 63];
        let start = data.as_ptr().align_offset(64).min(63);
        let target = &mut data[start..start + len];
        let (head, quants) = (kind.file_head(), kind.packed_quant_bytes());
        for (number, source) in file.chunks_exact(kind.file_bytes()).enumerate() {
            let (row, block) = (number / blocks, number % blocks);
            let (group, lane) = (row / LANES, row % LANES);
            let to = &mut target[(group * blocks + block) * kind.packed_bytes()..][..kind.packed_bytes()];
            for (column, four) in source[head..].chunks_exact(4).enumerate() {
                to[(column * LANES + lane) * 4..][..4].copy_from_slice(four);
            }
            for (scalar, two) in source[..head].chunks_exact(2).enumerate() {
                to[quants + (scalar * LANES + lane) * 2..][..2].copy_from_slice(two);
            }
        }
        Ok(Self { kind, rows, cols, data, start })
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
        let bytes = self.cols / BLOCK * self.kind.packed_bytes();
        &self.data[self.start + group * bytes..][..count * bytes]
    }

    /// Widens one row, in the arithmetic of gguf-py: no fused multiply-add.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (group, lane) = (self.groups(row / LANES, 1), row % LANES);
        for (block, out) in group.chunks_exact(self.kind.packed_bytes()).zip(out.chunks_exact_mut(BLOCK)) {
            let (quants, scalars) = block.split_at(self.kind.packed_quant_bytes());
            let scalar = |index: usize| {
                let at = (index * LANES + lane) * 2;
                f16_to_f32(u16::from_le_bytes([scalars[at], scalars[at + 1]]))
            };
            let byte = |column: usize| quants[(column / 4 * LANES + lane) * 4 + column % 4];
            let nibble = |column: usize| if column < 16 { byte(column) & 15 } else { byte(column - 16) >> 4 };
            let d = scalar(0);
            for (column, out) in out.iter_mut().enumerate() {
                *out = match self.kind {
                    Kind::Q8_0 => f32::from(byte(column) as i8) * d,
                    Kind::Q4_0 => (f32::from(nibble(column)) - 8.0) * d,
                    Kind::Q4_1 => d * f32::from(nibble(column)) + scalar(1),
                };
            }
        }
    }
}
