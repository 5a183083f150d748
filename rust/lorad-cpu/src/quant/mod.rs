//! Block-quantised weights of GGUF files, multiplied as they are by integer dot products.
//!
//! Rows are interleaved by eight: [`pack`] says how; nothing is rounded, so [`QuantMatrix::dequantize`] gives what the
//! file holds, bit for bit. Activations are rounded to 8 bits in blocks of 32, each row by itself, and sums run along
//! the columns in one order: a row's result doesn't depend on the rows beside it.
#![allow(unsafe_code)] // tasks write disjoint columns of y

pub mod block;
pub mod file_block;
mod integers;
mod job;
pub mod kernel;
pub mod pack;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod wide;

use std::ops::Range;

use crate::activation::Gate;
use crate::cpu::Cpu;
use crate::error::{index, length, require};
use crate::lora::{Adapters, Modules};
use crate::OpError;
pub use job::GATED_ROWS;
use kernel::LANES;
use pack::{Kind, Packed};

/// Activations from which rounding them is shared among threads.
const ROUND_PARALLEL: usize = 16 << 10;
/// Rows of a panel of sixteen lanes.
#[cfg(target_arch = "x86_64")]
const WIDE_ROWS: usize = 32;

/// A quantised `[rows, cols]` weight.
pub struct QuantMatrix {
    packed: Packed,
    /// Activations are rounded in two terms.
    fine: bool,
}

/// What else is done to a product while it's near.
#[derive(Clone, Copy, Default)]
pub struct Along<'a> {
    /// Adapters that add to it, in the modules whose outputs its rows are.
    pub adapters: Option<(Adapters<'a>, Modules<'a>)>,
    /// The first half of the rows go through this and multiply the second: y is `[n, rows / 2]`.
    pub gate: Option<Gate>,
}

impl QuantMatrix {
    /// Repacks the blocks of a `[rows, cols]` tensor, `data` being its bytes in a GGUF file.
    pub fn new(kind: Kind, data: &[u8], rows: usize, cols: usize) -> Result<Self, OpError> {
        Packed::new(kind, data, rows, cols).map(|packed| Self { packed, fine: false })
    }

    /// The same weight, but integer products take activations in two terms of 8 bits, the second being what the first
    /// leaves: twice the work, for inputs of which a few are so large that nothing is left of their neighbours.
    pub fn fine(self) -> Self {
        Self { fine: true, ..self }
    }

    /// Number type.
    pub fn kind(&self) -> Kind {
        self.packed.kind()
    }

    /// Rows: outputs.
    pub fn rows(&self) -> usize {
        self.packed.rows()
    }

    /// Columns: inputs.
    pub fn cols(&self) -> usize {
        self.packed.cols()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.packed.bytes()
    }

    /// The packed blocks of some rows, of which the first is the first of a group.
    fn packed_rows(&self, rows: &Range<usize>) -> &[u8] {
        self.packed.groups(rows.start / LANES, rows.len().div_ceil(LANES))
    }

    /// `y [n, rows] = x [n, cols] · Wᵀ`, and what comes `along`. Returns the groups whose tag isn't their slot's: their
    /// rows of y are NaN.
    pub fn matmul(
        &self,
        cpu: &Cpu,
        y: &mut [f32],
        x: &[f32],
        along: &Along<'_>,
    ) -> Result<Vec<usize>, OpError> {
        self.multiply_integers(cpu, y, x, along)
    }

    /// [`QuantMatrix::matmul`] with weights and activations rounded to bf16, sums in f32, on CPUs with tiles.
    pub fn matmul_tiles(
        &self,
        cpu: &Cpu,
        y: &mut [f32],
        x: &[f32],
        along: &Along<'_>,
    ) -> Result<Vec<usize>, OpError> {
        #[cfg(target_arch = "x86_64")]
        if let Some(levels) = cpu.level.tiles() {
            return self.multiply_tiles(cpu, levels, y, x, along);
        }
        let _ = (y, x, along);
        Err(OpError::Name { what: "level with tiles", got: cpu.level.name().to_owned() })
    }

    /// `out [rows, cols]`, bit for bit what the file holds.
    pub fn dequantize(&self, out: &mut [f32]) -> Result<(), OpError> {
        length("out", self.rows() * self.cols(), out.len())?;
        for (row, out) in out.chunks_exact_mut(self.cols()).enumerate() {
            self.packed.row(row, out);
        }
        Ok(())
    }

    /// `out[i] = row ids[i]`, `[n, cols]`.
    pub fn dequantize_rows(&self, out: &mut [f32], ids: &[i32]) -> Result<(), OpError> {
        length("out", ids.len() * self.cols(), out.len())?;
        for &id in ids {
            index("ids", id, self.rows())?;
        }
        for (out, &id) in out.chunks_exact_mut(self.cols()).zip(ids) {
            self.packed.row(id as usize, out);
        }
        Ok(())
    }
}

/// Refuses shapes that no GGUF tensor of `kind` has.
fn check(kind: Kind, data: &[u8], rows: usize, cols: usize) -> Result<(), OpError> {
    require(rows > 0, "rows must be positive", rows)?;
    let what = if kind.is_k() {
        "cols must be a positive multiple of 256"
    } else {
        "cols must be a positive multiple of 32"
    };
    require(cols > 0 && cols.is_multiple_of(kind.file_columns()), what, cols)?;
    let row = (cols / kind.file_columns()).checked_mul(kind.file_bytes());
    let bytes = row.and_then(|row| row.checked_mul(rows));
    length("data", bytes.unwrap_or(usize::MAX), data.len())
}
