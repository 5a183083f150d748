//! Products by integer dot products: activations are rounded to 8 bits, weights multiplied as they are.

use std::cell::RefCell;

use super::job::{Block, Job};
use super::kernel::{
    self, multiply_scalar, round_scalar, Panel, Rounded, RoundedRow, Weights, BLOCK, GROUPS, LANES,
};
use super::pack::Kind;
#[cfg(target_arch = "x86_64")]
use super::WIDE_ROWS;
use super::{block, Along, QuantMatrix, ROUND_PARALLEL};
use crate::cpu::{Cpu, Level};
use crate::fetch::Fetch;
use crate::lora::Input;
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

/// A panel, widened for the dot products.
#[derive(Default)]
struct Wide {
    q: Vec<u8>,
    scale: Vec<f32>,
    min: Vec<f32>,
}

thread_local! {
    static ACTIVATIONS: RefCell<Activations> = RefCell::default();
    static WIDE: RefCell<Wide> = RefCell::default();
    #[cfg(target_arch = "x86_64")]
    static WIDE_PANEL: RefCell<WidePanel> = RefCell::default();
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
        let mut job = Job::new(cpu, self, y.len(), x.len(), along, false)?;
        job.panel_rows = panel_rows(cpu.level, job.tokens);
        let each = blocks * (BLOCK + if job.panel_rows == PANEL_ROWS { 8 } else { 16 });
        job.tokens_max = (ROUNDED_BYTES / each).max(48) / 48 * 48;
        if job.tokens > PACKED_TOKENS {
            job.steps = job.tokens.min(job.tokens_max).div_ceil(STEP_TOKENS) * blocks;
        }
        ACTIVATIONS.with_borrow_mut(|activations| {
            activations.reserve(job.tokens, blocks);
            let rounding = activations.rounding(cpu, x, job.tokens, blocks);
            let input = Input { x, in_features: cols, tiles: None };
            job.shrink(input, rounding.tasks, &|task| rounding.run(task));
            let x = activations.rounded(job.tokens, blocks);
            job.run(y, input, &|block, fetch| self.multiply_panel(cpu.level, block, &x, fetch));
        });
        Ok(job.end(y))
    }

    /// Multiplies the rows of a panel.
    fn multiply_panel(&self, level: Level, block: &Block<'_, '_>, x: &Rounded<'_>, fetch: &mut Fetch) {
        let Block { first, rows, ref tokens, to } = *block;
        let tokens = tokens.clone();
        let packed = self.packed_rows(first, rows);
        match level {
            Level::Portable => WIDE.with_borrow_mut(|wide| {
                let panel = self.panel(level, wide, packed, rows, x.blocks);
                // SAFETY: tasks have disjoint panels, that is columns of y.
                unsafe { multiply_scalar(&panel, x, tokens, to.y, to.at, to.stride) }
            }),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) | Level::Avx512(avx2, _) if x.tokens <= PACKED_TOKENS => {
                // SAFETY: as above.
                unsafe { avx2.multiply_packed(self.kind(), packed, rows, x, tokens, to.y, to.at, to.stride) }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) => WIDE.with_borrow_mut(|wide| {
                let panel = self.panel(level, wide, packed, rows, x.blocks);
                // SAFETY: as above.
                unsafe { avx2.multiply(&panel, x, tokens, to.y, to.at, to.stride, fetch) }
            }),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_, avx512) => WIDE_PANEL.with_borrow_mut(|panel| {
                panel.fill(avx512, self.kind(), packed, rows, x.blocks);
                // SAFETY: as above.
                unsafe { avx512.multiply(panel, x, tokens, to.y, to.at, to.stride, fetch) }
            }),
        }
    }

    /// Widens a panel into `wide`; 8-bit quants are viewed where they are.
    fn panel<'a>(
        &'a self,
        level: Level,
        wide: &'a mut Wide,
        packed: &'a [u8],
        rows: usize,
        blocks: usize,
    ) -> Panel<'a> {
        let (kind, groups) = (self.kind(), rows.div_ceil(LANES));
        if kind.is_composed() {
            return wide.compose(level, kind, packed, groups * blocks, rows);
        }
        let stride = kind.packed_bytes();
        let (count, quants) = (groups * blocks, kind.packed_quant_bytes());
        let scales = |packed: &[u8], out: &mut Vec<f32>| {
            out.resize(count * LANES, 0.0);
            match level {
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(avx2) => avx2.unpack_scales(packed, stride, out),
                _ => kernel::unpack_scales_scalar(packed, stride, out),
            }
        };
        scales(&packed[quants..], &mut wide.scale);
        if kind == Kind::Q8_0 {
            return Panel { q: packed, stride, scale: &wide.scale, weights: Weights::Signed, rows };
        }
        wide.q.resize(count * LANES * BLOCK, 0);
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) => avx2.unpack_nibbles(packed, stride, &mut wide.q),
            _ => kernel::unpack_nibbles_scalar(packed, stride, &mut wide.q),
        }
        if kind == Kind::Q4_1 {
            scales(&packed[quants + LANES * 2..], &mut wide.min);
        } else {
            // (q − 8) · d = q · d + (−8 d), exact: 8 is a power of two.
            wide.min.clear();
            wide.min.extend(wide.scale.iter().map(|scale| -8.0 * scale));
        }
        let weights = Weights::Small { min: &wide.min };
        Panel { q: &wide.q, stride: LANES * BLOCK, scale: &wide.scale, weights, rows }
    }
}

impl Wide {
    /// Widens the packed blocks of a composed kind.
    fn compose(&mut self, level: Level, kind: Kind, packed: &[u8], blocks: usize, rows: usize) -> Panel<'_> {
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
        let min = &self.min;
        let weights = match kind.plane_bits() {
            0 => Weights::Small { min },
            1 => Weights::Five { min },
            _ => Weights::Halves,
        };
        Panel { q: &self.q, stride: LANES * BLOCK, scale: &self.scale, weights, rows }
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

    /// The rounding of x `[n, blocks · 32]`.
    fn rounding<'a>(&'a mut self, cpu: &'a Cpu, x: &'a [f32], n: usize, blocks: usize) -> Rounding<'a> {
        Rounding {
            level: cpu.level,
            x,
            n,
            blocks,
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
    q: Parts<'a, i8>,
    scale: Parts<'a, f32>,
    sum: Parts<'a, f32>,
    totals: Parts<'a, i32>,
    tasks: usize,
}

impl Rounding<'_> {
    fn run(&self, task: usize) {
        let (blocks, cols) = (self.blocks, self.blocks * BLOCK);
        for row in self.n * task / self.tasks..self.n * (task + 1) / self.tasks {
            // SAFETY: tasks have disjoint rows.
            let to = unsafe {
                RoundedRow {
                    q: self.q.part(row * cols, cols),
                    scale: self.scale.part(row * blocks, blocks),
                    sum: self.sum.part(row * blocks, blocks),
                    totals: self.totals.part(row * blocks * 2, blocks * 2),
                }
            };
            let x = &self.x[row * cols..][..cols];
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = self.level.avx2() {
                avx2.round_row(x, to);
                continue;
            }
            round_scalar(x, to);
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
