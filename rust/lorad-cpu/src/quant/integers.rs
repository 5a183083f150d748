//! Products by integer dot products: activations are rounded to 8 bits, weights multiplied as they are.

use std::cell::RefCell;
use std::ops::Range;

use super::job::{at, Job, Product, PANELS_MAX, PANEL_BYTES};
use super::kernel::{multiply_scalar, round_scalar, Rounded, RoundedRow, BLOCK, GROUPS, LANES};
use super::wide::Wide;
#[cfg(target_arch = "x86_64")]
use super::WIDE_ROWS;
use super::{Along, QuantMatrix, ROUND_PARALLEL};
use crate::cpu::{Cpu, Level};
use crate::fetch::Fetch;
use crate::lora::{Input, Target, TILED};
use crate::shared::Parts;
#[cfg(target_arch = "x86_64")]
use crate::simd::WidePanel;
use crate::OpError;

/// Rounded activations that stay in the second-level cache while all of a task's weights pass by.
const ROUNDED_BYTES: usize = 160 << 10;
/// Rows of a panel.
const PANEL_ROWS: usize = GROUPS * LANES;
/// Tokens up to which weights are multiplied as they are packed; with more, widening them once pays.
const PACKED_TOKENS: usize = 3;

/// Tokens that a step of the innermost loop takes at most.
const STEP_TOKENS: usize = 6;

/// Rounded activations of a call.
#[derive(Default)]
struct Activations {
    q: Vec<i8>,
    scale: Vec<f32>,
    sum: Vec<f32>,
    totals: Vec<i32>,
}

thread_local! {
    static ACTIVATIONS: RefCell<Activations> = RefCell::default();
    static WIDE: RefCell<Vec<Wide>> = RefCell::default();
    /// What activations' second terms add to a panel's columns.
    static SECOND: RefCell<Vec<f32>> = RefCell::default();
    /// What the first term leaves of a row.
    static LEFT: RefCell<Vec<f32>> = RefCell::default();
    #[cfg(target_arch = "x86_64")]
    static WIDE_PANELS: RefCell<Vec<WidePanel>> = RefCell::default();
}

impl QuantMatrix {
    /// See [`QuantMatrix::matmul`].
    pub(super) fn multiply_integers(
        &self,
        cpu: &Cpu,
        y: &mut [f32],
        x: &[f32],
        along: &Along<'_>,
    ) -> Result<Vec<usize>, OpError> {
        let (cols, blocks) = (self.cols(), self.cols() / BLOCK);
        let mut job = Job::new(cpu, self, y.len(), x.len(), along, TILED)?;
        let terms = if self.fine { 2 } else { 1 };
        let rounded = job.tokens * terms;
        job.panel_rows = panel_rows(cpu.level, rounded);
        let each = blocks * (BLOCK + if job.panel_rows == PANEL_ROWS { 8 } else { 16 });
        job.tokens_max = (ROUNDED_BYTES / terms / each).max(48) / 48 * 48;
        job.panels_max = (PANEL_BYTES / (cols * job.panel_rows)).clamp(1, PANELS_MAX);
        if rounded > PACKED_TOKENS {
            // Wide panels are widened in steps too, group by group.
            let widening = if job.panel_rows > PANEL_ROWS { job.panel_rows / LANES } else { 0 };
            let multiplying = job.tokens.min(job.tokens_max).div_ceil(STEP_TOKENS) * terms;
            job.steps = (widening + multiplying) * blocks;
        }
        ACTIVATIONS.with_borrow_mut(|activations| {
            activations.reserve(rounded, blocks);
            let rounding = activations.rounding(cpu, x, job.tokens, blocks, self.fine);
            let input = Input { x, in_features: cols, tiles: None };
            job.shrink(input, rounding.tasks, &|task| rounding.run(task));
            let x = activations.rounded(rounded, blocks);
            job.run(y, input, &Integers { matrix: self, level: cpu.level, x });
        });
        Ok(job.end(y))
    }
}

/// The product of a matrix with rounded activations.
struct Integers<'a> {
    matrix: &'a QuantMatrix,
    level: Level,
    x: Rounded<'a>,
}

impl Product for Integers<'_> {
    fn fill(&self, slot: usize, rows: Range<usize>, fetch: &mut Fetch) {
        let (kind, blocks) = (self.matrix.kind(), self.x.blocks);
        let packed = self.matrix.packed_rows(&rows);
        match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) | Level::Avx512(..) if self.x.tokens <= PACKED_TOKENS => {}
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_, avx512) => WIDE_PANELS.with_borrow_mut(|panels| {
                at(panels, slot).fill(avx512, kind, packed, rows.len(), blocks, fetch);
            }),
            level => {
                WIDE.with_borrow_mut(|panels| at(panels, slot).fill(level, kind, packed, rows.len(), blocks))
            }
        }
    }

    fn multiply(
        &self,
        slot: usize,
        rows: Range<usize>,
        tokens: Range<usize>,
        to: Target<'_, '_>,
        fetch: &mut Fetch,
    ) {
        self.term(slot, &rows, tokens.clone(), to, fetch);
        if !self.matrix.fine {
            return;
        }
        SECOND.with_borrow_mut(|second| {
            let (stride, n) = (rows.len(), self.x.tokens / 2);
            second.resize(second.len().max(tokens.len() * stride), 0.0);
            let parts = Parts::new(second);
            let add = Target { y: &parts, at: 0, stride };
            self.term(slot, &rows, n + tokens.start..n + tokens.end, add, fetch);
            for (token, add) in second.chunks_exact(stride).take(tokens.len()).enumerate() {
                // SAFETY: tasks have disjoint panels, that is columns of y.
                let y = unsafe { to.y.part(to.at + token * to.stride, stride) };
                y.iter_mut().zip(add).for_each(|(y, add)| *y += add);
            }
        });
    }
}

impl Integers<'_> {
    /// The product with these rows of rounded activations.
    fn term(
        &self,
        slot: usize,
        rows: &Range<usize>,
        tokens: Range<usize>,
        to: Target<'_, '_>,
        fetch: &mut Fetch,
    ) {
        let (kind, packed, x) = (self.matrix.kind(), self.matrix.packed_rows(rows), &self.x);
        match self.level {
            Level::Portable => WIDE.with_borrow(|panels| {
                let panel = panels[slot].view(kind, packed, rows.len());
                // SAFETY: tasks have disjoint panels, that is columns of y.
                unsafe { multiply_scalar(&panel, x, tokens, to.y, to.at, to.stride) }
            }),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) | Level::Avx512(avx2, _) if x.tokens <= PACKED_TOKENS => {
                // SAFETY: as above.
                unsafe { avx2.multiply_packed(kind, packed, rows.len(), x, tokens, to.y, to.at, to.stride) }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) => WIDE.with_borrow(|panels| {
                let panel = panels[slot].view(kind, packed, rows.len());
                // SAFETY: as above.
                unsafe { avx2.multiply(&panel, x, tokens, to.y, to.at, to.stride, fetch) }
            }),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_, avx512) => WIDE_PANELS.with_borrow(|panels| {
                // SAFETY: as above.
                unsafe { avx512.multiply(&panels[slot], x, tokens, to.y, to.at, to.stride, fetch) }
            }),
        }
    }
}

impl Activations {
    /// Makes room for `[n, blocks · 32]`.
    fn reserve(&mut self, n: usize, blocks: usize) {
        if self.q.len() < n * blocks * BLOCK {
            self.q.resize(n * blocks * BLOCK, 0);
        }
        if self.scale.len() < n * blocks {
            self.scale.resize(n * blocks, 0.0);
            self.sum.resize(n * blocks, 0.0);
            self.totals.resize(n * blocks * 2, 0);
        }
    }

    /// The rounding of x `[n, blocks · 32]`; `fine`: what that leaves is rounded too, to rows n to 2 n.
    fn rounding<'a>(
        &'a mut self,
        cpu: &'a Cpu,
        x: &'a [f32],
        n: usize,
        blocks: usize,
        fine: bool,
    ) -> Rounding<'a> {
        Rounding {
            level: cpu.level,
            x,
            n,
            blocks,
            fine,
            q: Parts::new(&mut self.q),
            scale: Parts::new(&mut self.scale),
            sum: Parts::new(&mut self.sum),
            totals: Parts::new(&mut self.totals),
            tasks: if x.len() < ROUND_PARALLEL { 1 } else { n.min(cpu.pool.threads() * 4) },
        }
    }

    /// What was rounded.
    fn rounded(&self, n: usize, blocks: usize) -> Rounded<'_> {
        Rounded { q: &self.q, scale: &self.scale, sum: &self.sum, totals: &self.totals, blocks, tokens: n }
    }
}

/// Rounding in tasks, rows each.
struct Rounding<'a> {
    level: Level,
    x: &'a [f32],
    n: usize,
    blocks: usize,
    fine: bool,
    q: Parts<'a, i8>,
    scale: Parts<'a, f32>,
    sum: Parts<'a, f32>,
    totals: Parts<'a, i32>,
    tasks: usize,
}

impl Rounding<'_> {
    fn run(&self, task: usize) {
        for row in self.n * task / self.tasks..self.n * (task + 1) / self.tasks {
            let x = &self.x[row * self.blocks * BLOCK..][..self.blocks * BLOCK];
            self.round(x, row);
            if self.fine {
                LEFT.with_borrow_mut(|left| {
                    left.clear();
                    self.leave(x, row, left);
                    self.round(left, self.n + row);
                });
            }
        }
    }

    /// Rounds to row `to`.
    fn round(&self, x: &[f32], to: usize) {
        let (blocks, cols) = (self.blocks, self.blocks * BLOCK);
        // SAFETY: tasks have disjoint rows.
        let to = unsafe {
            RoundedRow {
                q: self.q.part(to * cols, cols),
                scale: self.scale.part(to * blocks, blocks),
                sum: self.sum.part(to * blocks, blocks),
                totals: self.totals.part(to * blocks * 2, blocks * 2),
            }
        };
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = self.level.avx2() {
            return avx2.round_row(x, to);
        }
        round_scalar(x, to);
    }

    /// What rounding to `row` has left.
    fn leave(&self, x: &[f32], row: usize, left: &mut Vec<f32>) {
        let (blocks, cols) = (self.blocks, self.blocks * BLOCK);
        // SAFETY: this task has written the row.
        let (q, scale) = unsafe { (self.q.read(row * cols, cols), self.scale.read(row * blocks, blocks)) };
        for ((x, q), scale) in x.chunks_exact(BLOCK).zip(q.chunks_exact(BLOCK)).zip(scale) {
            left.extend(x.iter().zip(q).map(|(x, q)| x - scale * f32::from(*q)));
        }
    }
}

/// Rows of a panel for `n` tokens: what a task owns is whole panels.
fn panel_rows(level: Level, n: usize) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(..) if n > PACKED_TOKENS => WIDE_ROWS,
        _ => PANEL_ROWS,
    }
}
