//! Products by tiles of bf16: activations are rounded once, each panel of 32 rows as it's multiplied.

use std::cell::RefCell;

use super::job::{Block, Job};
use super::kernel::BLOCK;
use super::{Along, QuantMatrix, ROUND_PARALLEL, WIDE_ROWS};
use crate::aligned::Aligned;
use crate::cpu::Cpu;
use crate::lora::{BTiles, Delta, Input, XTiles};
use crate::shared::Parts;
use crate::simd::{Avx512, TilePanel, Tiles, WidePanel, TILE_ROWS};
use crate::OpError;

/// Rounded activations that stay in the second-level cache while the weights pass by, but for very wide ones.
const X_BYTES: usize = 1 << 20;
/// Tokens that share a panel of rounded weights at least: rounding it costs as much as multiplying it by some fifty.
const TOKENS_LEAST: usize = 256;

/// A panel on its way, and what adapters add to its columns.
#[derive(Default)]
struct Panels {
    wide: WidePanel,
    tiles: TilePanel,
    b: BTiles,
}

thread_local! {
    static X: RefCell<Aligned<u16>> = RefCell::default();
    static PANELS: RefCell<Panels> = RefCell::default();
}

impl QuantMatrix {
    /// See [`QuantMatrix::matmul_tiles`].
    pub(super) fn multiply_tiles(
        &self,
        cpu: &Cpu,
        (avx512, proof): (Avx512, Tiles),
        y: &mut [f32],
        x: &[f32],
        along: &Along<'_>,
    ) -> Result<Vec<usize>, OpError> {
        let (cols, blocks) = (self.cols(), self.cols() / BLOCK);
        let mut job = Job::new(cpu, self, y.len(), x.len(), along, true)?;
        job.panel_rows = WIDE_ROWS;
        job.tokens_max = (X_BYTES / (cols * 2)).max(TOKENS_LEAST).next_multiple_of(TILE_ROWS);
        X.with_borrow_mut(|rounded| {
            rounded.reserve(job.tokens.next_multiple_of(TILE_ROWS) * cols);
            round(cpu, proof, x, blocks, rounded);
            let rounded = &**rounded;
            let tiles = Some(XTiles { first: rounded, second: None, blocks });
            let input = Input { x, in_features: cols, tiles };
            job.shrink(input, 0, &|_| ());
            let tiled = job.delta().filter(|delta| delta.has_tiled());
            job.run(y, input, &|block, _| {
                self.multiply_panel_by_tiles((avx512, proof), block, rounded, blocks, tiled);
            });
        });
        Ok(job.end(y))
    }

    /// Multiplies the rows of a panel.
    fn multiply_panel_by_tiles(
        &self,
        (avx512, tiles): (Avx512, Tiles),
        block: &Block<'_, '_>,
        x: &[u16],
        blocks: usize,
        delta: Option<&Delta<'_>>,
    ) {
        let Block { first, rows, ref tokens, to } = *block;
        PANELS.with_borrow_mut(|panels| {
            let packed = self.packed_rows(first, rows);
            panels.wide.fill(avx512, self.kind(), packed, rows, blocks);
            panels.tiles.fill(tiles, &panels.wide);
            let extra = delta.map(|delta| {
                panels.b.fill(delta, tiles, &(first..first + rows));
                panels.b.extra(delta)
            });
            let y = to.y.pointer(to.at, (tokens.len() - 1) * to.stride + rows);
            // SAFETY: tasks have disjoint panels, that is columns of y.
            unsafe { tiles.multiply(&panels.tiles, x, extra.as_ref(), tokens.clone(), y, to.stride) }
        });
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
        tiles.round(&x[begin * cols..end.min(n) * cols], blocks, to, None);
    });
}
