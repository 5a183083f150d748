//! Weights as they are stored (f32, f16, bf16), widened in registers as they are multiplied.
//!
//! Rows are interleaved by eight, `[group of 8 rows][cols][8]`: one vector is one column of eight rows. Sums run along the
//! columns, one after the other: a row's result doesn't depend on the rows beside it, on how they are cut into tiles or on
//! the number of threads, which a library's product doesn't promise.
#![allow(unsafe_code)] // tasks write disjoint columns of y

use std::ops::Range;

use crate::aligned::Aligned;
use crate::cpu::{Cpu, Level};
use crate::error::{index, length, require};
use crate::number::Number;
use crate::shared::Parts;
use crate::{with_number, Element, OpError};

/// Weight rows side by side.
pub const LANES: usize = 8;
/// Rows of a panel: two groups share each activation that is loaded.
const PANEL_ROWS: usize = 2 * LANES;
/// Activations that stay in the second-level cache while all of a task's weights pass by.
const X_BYTES: usize = 160 << 10;
/// Tokens of a tile; blocks of tokens are multiples of it.
const TILE_TOKENS: usize = 6;

/// A `[rows, cols]` weight of floats.
pub struct DenseMatrix {
    element: Element,
    rows: usize,
    cols: usize,
    data: Aligned<u8>,
}

/// Some groups of a matrix.
pub struct Panel<'a> {
    /// `[groups][cols][8]`.
    pub weights: &'a [u8],
    /// Rows that exist.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

impl DenseMatrix {
    /// Interleaves `data`, the little-endian bytes of a `[rows, cols]` tensor.
    pub fn new(element: Element, data: &[u8], rows: usize, cols: usize) -> Result<Self, OpError> {
        require(rows > 0, "rows must be positive", rows)?;
        require(cols > 0, "cols must be positive", cols)?;
        let size = element.bytes();
        let bytes = rows.checked_mul(cols).and_then(|count| count.checked_mul(size));
        length("data", bytes.unwrap_or(usize::MAX), data.len())?;
        let len = rows.div_ceil(LANES) * LANES * cols * size;
        let mut packed = Aligned::zeros(len);
        for (row, values) in data.chunks_exact(cols * size).enumerate() {
            let group = &mut packed[row / LANES * LANES * cols * size..];
            for (col, value) in values.chunks_exact(size).enumerate() {
                group[(col * LANES + row % LANES) * size..][..size].copy_from_slice(value);
            }
        }
        Ok(Self { element, rows, cols, data: packed })
    }

    /// Number type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Rows: outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// `y [n, rows] = x [n, cols] · Wᵀ`.
    pub fn matmul(&self, cpu: &Cpu, y: &mut [f32], x: &[f32]) -> Result<(), OpError> {
        let n = x.len() / self.cols;
        length("x", n * self.cols, x.len())?;
        length("y", n * self.rows, y.len())?;
        let y = Parts::new(y);
        let panels = self.rows.div_ceil(PANEL_ROWS);
        let tasks = if cpu.pool.threads() == 1 { 1 } else { panels.min(cpu.pool.threads() * 4) };
        cpu.pool.run(tasks, &|task| {
            self.multiply_panels(cpu.level, panels * task / tasks..panels * (task + 1) / tasks, x, n, &y);
        });
        Ok(())
    }

    /// Multiplies the rows of some panels.
    fn multiply_panels(&self, level: Level, panels: Range<usize>, x: &[f32], n: usize, y: &Parts<'_, f32>) {
        let tokens_max = (X_BYTES / (self.cols * 4)).max(TILE_TOKENS) / TILE_TOKENS * TILE_TOKENS;
        for begin in (0..n).step_by(tokens_max) {
            let tokens = begin..n.min(begin + tokens_max);
            for number in panels.clone() {
                let first = number * PANEL_ROWS;
                let rows = PANEL_ROWS.min(self.rows - first);
                let panel = Panel { weights: self.groups(first / LANES, rows), rows, cols: self.cols };
                with_number!(self.element, N => match level {
                    // SAFETY: tasks have disjoint panels, that is columns of y.
                    Level::Portable => unsafe {
                        multiply_scalar::<N>(&panel, x, tokens.clone(), y, first, self.rows);
                    },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    Level::Avx2(avx2) | Level::Avx512(avx2, _) => unsafe {
                        avx2.multiply_dense::<N>(&panel, x, tokens.clone(), y, first, self.rows);
                    },
                });
            }
        }
    }

    /// The groups that hold `rows` rows from group `group`.
    fn groups(&self, group: usize, rows: usize) -> &[u8] {
        let bytes = LANES * self.cols * self.element.bytes();
        &self.data[group * bytes..][..rows.div_ceil(LANES) * bytes]
    }

    /// `out[i] = row ids[i]`, `[n, cols]`, exactly.
    pub fn widen_rows(&self, out: &mut [f32], ids: &[i32]) -> Result<(), OpError> {
        length("out", ids.len() * self.cols, out.len())?;
        for &id in ids {
            index("ids", id, self.rows)?;
        }
        for (out, &id) in out.chunks_exact_mut(self.cols).zip(ids) {
            let (group, lane) = (self.groups(id as usize / LANES, 1), id as usize % LANES);
            with_number!(self.element, N => {
                out.iter_mut().enumerate().for_each(|(col, out)| *out = N::get(group, col * LANES + lane));
            });
        }
        Ok(())
    }
}

/// `y[t, r] = Σ_k w[r, k] · x[t, k]`, k ascending; y's row t is at `y_begin + t · y_stride`.
///
/// # Safety
/// Nobody else may use these `panel.rows` columns of y meanwhile.
pub unsafe fn multiply_scalar<N: Number>(
    panel: &Panel<'_>,
    x: &[f32],
    tokens: Range<usize>,
    y: &Parts<'_, f32>,
    y_begin: usize,
    y_stride: usize,
) {
    for t in tokens {
        let x = &x[t * panel.cols..][..panel.cols];
        // SAFETY: the caller's promise.
        let y = unsafe { y.part(y_begin + t * y_stride, panel.rows) };
        for (row, y) in y.iter_mut().enumerate() {
            let at = row / LANES * panel.cols * LANES + row % LANES;
            *y = x.iter().enumerate().map(|(k, x)| N::get(panel.weights, at + k * LANES) * x).sum();
        }
    }
}
