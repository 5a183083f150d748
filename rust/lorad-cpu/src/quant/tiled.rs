//! Products by tiles of bf16: activations are rounded once, each panel of 32 rows as it's multiplied.

use std::cell::RefCell;
use std::ops::Range;

use super::job::{at, Job, Product, PANELS_MAX, PANEL_BYTES};
use super::kernel::{BLOCK, LANES};
use super::{Along, QuantMatrix, ROUND_PARALLEL, WIDE_ROWS};
use crate::aligned::Aligned;
use crate::cpu::Cpu;
use crate::fetch::Fetch;
use crate::lora::{BTiles, Delta, Input, Target, XTiles};
use crate::shared::Parts;
use crate::simd::{Avx512, TilePanel, Tiles, WidePanel, TILE_ROWS};
use crate::OpError;

/// Rounded activations that meet some panels at once: what stays in the second-level cache beside them. It holds several
/// times as much, but less and less of it is there when it's needed.
const X_BYTES: usize = 256 << 10;
/// Tokens that a product takes at once.
const PAIR: usize = 2 * TILE_ROWS;

/// Tokens of a group from which its adapter is part of the product.
const TILED: usize = 16;

/// A panel, and what adapters add to its columns.
#[derive(Default)]
struct Panel {
    weights: TilePanel,
    b: BTiles,
}

thread_local! {
    static X: RefCell<Aligned<u16>> = RefCell::default();
    static PANELS: RefCell<(WidePanel, Vec<Panel>)> = RefCell::default();
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
        let mut job = Job::new(cpu, self, y.len(), x.len(), along, TILED)?;
        job.panel_rows = WIDE_ROWS;
        job.tokens_max = (X_BYTES / (cols * 2) / PAIR * PAIR).max(PAIR);
        job.panels_max = (PANEL_BYTES / (cols * WIDE_ROWS * 2)).clamp(1, PANELS_MAX);
        job.steps = WIDE_ROWS / LANES * blocks;
        X.with_borrow_mut(|rounded| {
            rounded.reserve(job.tokens.next_multiple_of(TILE_ROWS) * cols);
            round(cpu, proof, x, blocks, rounded);
            let rounded = &**rounded;
            let tiles = Some(XTiles { first: rounded, second: None });
            let input = Input { x, in_features: cols, tiles };
            job.shrink(input, 0, &|_| ());
            let delta = job.delta().filter(|delta| delta.has_tiled());
            job.run(y, input, &ByTiles { matrix: self, proof: (avx512, proof), x: rounded, blocks, delta });
        });
        Ok(job.end(y))
    }
}

/// The product of a matrix with activations in tiles, adapters in tiles added to it.
struct ByTiles<'a> {
    matrix: &'a QuantMatrix,
    proof: (Avx512, Tiles),
    x: &'a [u16],
    blocks: usize,
    delta: Option<&'a Delta<'a>>,
}

impl Product for ByTiles<'_> {
    fn enter(&self) {
        self.proof.1.enter();
    }

    fn leave(&self) {
        self.proof.1.leave();
    }

    fn takes_tiled(&self) -> bool {
        true
    }

    fn fill(&self, slot: usize, rows: Range<usize>, fetch: &mut Fetch) {
        let (avx512, tiles) = self.proof;
        PANELS.with_borrow_mut(|(wide, panels)| {
            let panel = at(panels, slot);
            let (kind, packed) = (self.matrix.kind(), self.matrix.packed_rows(&rows));
            if TilePanel::takes(kind) {
                panel.weights.fill_nibbles(tiles, kind, packed, rows.len(), self.blocks, fetch);
            } else {
                wide.fill(avx512, kind, packed, rows.len(), self.blocks, fetch);
                panel.weights.fill(tiles, wide);
            }
            if let Some(delta) = self.delta {
                panel.b.fill(delta, tiles, &rows);
            }
        });
    }

    fn multiply(
        &self,
        slot: usize,
        rows: Range<usize>,
        tokens: Range<usize>,
        to: Target<'_, '_>,
        _: &mut Fetch,
    ) {
        PANELS.with_borrow(|(_, panels)| {
            let panel = &panels[slot];
            let extra = self.delta.map(|delta| panel.b.extra(delta));
            let y = to.y.pointer(to.at, (tokens.len() - 1) * to.stride + rows.len());
            // SAFETY: tasks have disjoint panels, that is columns of y, and enter first.
            unsafe { self.proof.1.multiply(&panel.weights, self.x, extra.as_ref(), tokens, y, to.stride) }
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
