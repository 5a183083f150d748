//! The work of [`QuantMatrix::matmul_tiles`]: activations are rounded once, each panel of 32 rows as it's multiplied.

use std::cell::RefCell;

use crate::aligned::Aligned;
use crate::cpu::Cpu;
use crate::error::length;
use crate::quant::kernel::{BLOCK, LANES};
use crate::quant::{QuantMatrix, ROUND_PARALLEL, WIDE_ROWS};
use crate::shared::Parts;
use crate::simd::{Avx512, TilePanel, Tiles, WidePanel, TILE_ROWS};
use crate::OpError;

/// Rounded activations that stay in the second-level cache while the weights pass by, but for very wide ones.
const X_BYTES: usize = 1 << 20;
/// Tokens that share a panel of rounded weights at least: rounding it costs as much as multiplying it by some fifty.
const TOKENS_LEAST: usize = 256;

thread_local! {
    static X: RefCell<Aligned<u16>> = RefCell::default();
    static PANELS: RefCell<(WidePanel, TilePanel)> = RefCell::default();
}

impl QuantMatrix {
    /// See [`QuantMatrix::matmul_tiles`].
    pub(super) fn multiply_tiles(
        &self,
        cpu: &Cpu,
        (avx512, tiles): (Avx512, Tiles),
        y: &mut [f32],
        x: &[f32],
    ) -> Result<(), OpError> {
        let (rows, cols) = (self.rows(), self.cols());
        let n = x.len() / cols;
        length("x", n * cols, x.len())?;
        length("y", n * rows, y.len())?;
        let (blocks, panels) = (cols / BLOCK, rows.div_ceil(WIDE_ROWS));
        let tokens_max = (X_BYTES / (cols * 2)).max(TOKENS_LEAST).next_multiple_of(TILE_ROWS);
        X.with_borrow_mut(|rounded| {
            rounded.reserve(n.next_multiple_of(TILE_ROWS) * cols);
            round(cpu, tiles, x, blocks, rounded);
            let (rounded, y) = (&*rounded, Parts::new(y));
            let tasks = if cpu.pool.threads() == 1 { 1 } else { panels.min(cpu.pool.threads() * 4) };
            cpu.pool.run(tasks, &|task| {
                PANELS.with_borrow_mut(|(wide, panel)| {
                    for begin in (0..n).step_by(tokens_max) {
                        let tokens = begin..n.min(begin + tokens_max);
                        for number in panels * task / tasks..panels * (task + 1) / tasks {
                            let first = number * WIDE_ROWS;
                            let count = WIDE_ROWS.min(rows - first);
                            let packed = self.packed.groups(first / LANES, count.div_ceil(LANES));
                            wide.fill(avx512, self.kind(), packed, count, blocks);
                            panel.fill(tiles, wide);
                            let to = y.pointer(first + begin * rows, (tokens.len() - 1) * rows + count);
                            // SAFETY: tasks have disjoint panels, that is columns of y.
                            unsafe { tiles.multiply(panel, rounded, tokens.clone(), to, rows) }
                        }
                    }
                });
            });
        });
        Ok(())
    }
}

/// Rounds activations, whole tiles of tokens to a task.
fn round(cpu: &Cpu, tiles: Tiles, x: &[f32], blocks: usize, rounded: &mut [u16]) {
    let cols = blocks * BLOCK;
    let (n, count) = (x.len() / cols, (x.len() / cols).div_ceil(TILE_ROWS));
    let rounded = Parts::new(rounded);
    let tasks = if x.len() < ROUND_PARALLEL { 1 } else { count.min(cpu.pool.threads() * 4) };
    cpu.pool.run(tasks, &|task| {
        let (begin, end) = (count * task / tasks * TILE_ROWS, count * (task + 1) / tasks * TILE_ROWS);
        // SAFETY: tasks have disjoint tiles.
        let to = unsafe { rounded.part(begin * cols, (end - begin) * cols) };
        tiles.round(&x[begin * cols..end.min(n) * cols], blocks, to);
    });
}
