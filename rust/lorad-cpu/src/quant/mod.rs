//! Block-quantised weights of GGUF files, multiplied as they are by integer dot products.
//!
//! Rows are interleaved by eight: [`pack`] says how; nothing is rounded, so [`QuantMatrix::dequantize`] gives what the
//! file holds, bit for bit. Activations are rounded to 8 bits in blocks of 32, each row by itself, and sums run along
//! the columns in one order: a row's result doesn't depend on the rows beside it.
#![allow(unsafe_code)] // tasks write disjoint columns of y

pub mod block;
pub mod file_block;
pub mod kernel;
pub mod pack;
mod tiled;

use std::cell::RefCell;
use std::ops::Range;

use crate::cpu::{Cpu, Level};
use crate::error::{index, length, require};
use crate::shared::Parts;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx512, WidePanel};
use crate::OpError;
use kernel::{multiply_scalar, round_scalar, Panel, Rounded, RoundedRow, Weights, BLOCK, GROUPS, LANES};
use pack::{Kind, Packed};

/// Rounded activations that stay in the second-level cache while all of a task's weights pass by.
const ROUNDED_BYTES: usize = 160 << 10;
/// Rows of a panel.
const PANEL_ROWS: usize = GROUPS * LANES;
/// Tokens up to which weights are multiplied as they are packed; with more, widening them once pays.
#[cfg(target_arch = "x86_64")]
const PACKED_TOKENS: usize = 3;
/// Activations from which rounding them is shared among threads.
const ROUND_PARALLEL: usize = 16 << 10;
/// Rows of a panel of sixteen lanes.
#[cfg(target_arch = "x86_64")]
const WIDE_ROWS: usize = 32;

/// A quantised `[rows, cols]` weight.
pub struct QuantMatrix {
    packed: Packed,
}

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
    /// Repacks the blocks of a `[rows, cols]` tensor, `data` being its bytes in a GGUF file.
    pub fn new(kind: Kind, data: &[u8], rows: usize, cols: usize) -> Result<Self, OpError> {
        Packed::new(kind, data, rows, cols).map(|packed| Self { packed })
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

    /// `y [n, rows] = x [n, cols] · Wᵀ`.
    pub fn matmul(&self, cpu: &Cpu, y: &mut [f32], x: &[f32]) -> Result<(), OpError> {
        let (rows, cols) = (self.rows(), self.cols());
        let n = x.len() / cols;
        length("x", n * cols, x.len())?;
        length("y", n * rows, y.len())?;
        if n == 0 {
            return Ok(());
        }
        ACTIVATIONS.with_borrow_mut(|activations| {
            let x = activations.round(cpu, x, n, cols / BLOCK);
            let y = Parts::new(y);
            let panels = rows.div_ceil(panel_rows(cpu.level, n));
            let tasks = if cpu.pool.threads() == 1 { 1 } else { panels.min(cpu.pool.threads() * 4) };
            cpu.pool.run(tasks, &|task| {
                self.multiply_panels(cpu, panels * task / tasks..panels * (task + 1) / tasks, &x, n, &y);
            });
        });
        Ok(())
    }

    /// Multiplies the rows of some panels.
    fn multiply_panels(
        &self,
        cpu: &Cpu,
        panels: Range<usize>,
        x: &Rounded<'_>,
        n: usize,
        y: &Parts<'_, f32>,
    ) {
        let rows = self.rows();
        #[cfg(target_arch = "x86_64")]
        if let (Some(avx2), 0..=PACKED_TOKENS) = (cpu.level.avx2(), n) {
            for panel in panels {
                let (first, count) = self.panel_rows(panel);
                let packed = self.packed.groups(panel * GROUPS, count.div_ceil(LANES));
                // SAFETY: tasks have disjoint panels, that is columns of y.
                unsafe { avx2.multiply_packed(self.kind(), packed, count, x, 0..n, y, first, rows) }
            }
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if let Level::Avx512(_, avx512) = cpu.level {
            return self.multiply_wide(avx512, panels, x, n, y);
        }
        let tokens_max = (ROUNDED_BYTES / (x.blocks * (BLOCK + 8))).max(12) / 12 * 12;
        WIDE.with_borrow_mut(|wide| {
            for begin in (0..n).step_by(tokens_max) {
                let tokens = begin..n.min(begin + tokens_max);
                for number in panels.clone() {
                    let (first, _) = self.panel_rows(number);
                    let panel = self.panel(cpu.level, wide, number, x.blocks);
                    match cpu.level {
                        // SAFETY: tasks have disjoint panels, that is columns of y.
                        Level::Portable => unsafe {
                            multiply_scalar(&panel, x, tokens.clone(), y, first, rows);
                        },
                        #[cfg(target_arch = "x86_64")]
                        // SAFETY: as above.
                        Level::Avx2(avx2) => unsafe {
                            avx2.multiply(&panel, x, tokens.clone(), y, first, rows);
                        },
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx512(..) => unreachable!("has panels of its own"),
                    }
                }
            }
        });
    }

    /// Multiplies the rows of some panels of sixteen lanes.
    #[cfg(target_arch = "x86_64")]
    fn multiply_wide(
        &self,
        avx512: Avx512,
        panels: Range<usize>,
        x: &Rounded<'_>,
        n: usize,
        y: &Parts<'_, f32>,
    ) {
        let tokens_max = (ROUNDED_BYTES / (x.blocks * (BLOCK + 16))).max(48) / 48 * 48;
        WIDE_PANEL.with_borrow_mut(|panel| {
            for begin in (0..n).step_by(tokens_max) {
                let tokens = begin..n.min(begin + tokens_max);
                for number in panels.clone() {
                    let first = number * WIDE_ROWS;
                    let count = WIDE_ROWS.min(self.rows() - first);
                    let packed = self.packed.groups(first / LANES, count.div_ceil(LANES));
                    panel.fill(avx512, self.kind(), packed, count, x.blocks);
                    // SAFETY: tasks have disjoint panels, that is columns of y.
                    unsafe { avx512.multiply(panel, x, tokens.clone(), y, first, self.rows()) }
                }
            }
        });
    }

    /// First row of a panel and how many it has.
    fn panel_rows(&self, panel: usize) -> (usize, usize) {
        let first = panel * PANEL_ROWS;
        (first, PANEL_ROWS.min(self.rows() - first))
    }

    /// Widens a panel into `wide`; 8-bit quants are viewed where they are.
    fn panel<'a>(&'a self, level: Level, wide: &'a mut Wide, panel: usize, blocks: usize) -> Panel<'a> {
        let (kind, (_, rows)) = (self.kind(), self.panel_rows(panel));
        let groups = rows.div_ceil(LANES);
        if kind.is_composed() {
            return wide.compose(
                level,
                kind,
                self.packed.groups(panel * GROUPS, groups),
                groups * blocks,
                rows,
            );
        }
        let (packed, stride) = (self.packed.groups(panel * GROUPS, groups), kind.packed_bytes());
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
    /// Rounds x `[n, blocks · 32]`.
    fn round(&mut self, cpu: &Cpu, x: &[f32], n: usize, blocks: usize) -> Rounded<'_> {
        let cols = blocks * BLOCK;
        if self.q.len() < n * cols {
            self.q.resize(n * cols, 0);
        }
        if self.scale.len() < n * blocks {
            self.scale.resize(n * blocks, 0.0);
            self.sum.resize(n * blocks, 0.0);
            self.totals.resize(n * blocks * 2, 0);
        }
        let (q, scale) = (Parts::new(&mut self.q), Parts::new(&mut self.scale));
        let (sum, totals) = (Parts::new(&mut self.sum), Parts::new(&mut self.totals));
        let tasks = if x.len() < ROUND_PARALLEL { 1 } else { n.min(cpu.pool.threads() * 4) };
        cpu.pool.run(tasks, &|task| {
            for row in n * task / tasks..n * (task + 1) / tasks {
                // SAFETY: tasks have disjoint rows.
                let to = unsafe {
                    RoundedRow {
                        q: q.part(row * cols, cols),
                        scale: scale.part(row * blocks, blocks),
                        sum: sum.part(row * blocks, blocks),
                        totals: totals.part(row * blocks * 2, blocks * 2),
                    }
                };
                let x = &x[row * cols..][..cols];
                #[cfg(target_arch = "x86_64")]
                if let Some(avx2) = cpu.level.avx2() {
                    avx2.round_row(x, to);
                    continue;
                }
                round_scalar(x, to);
            }
        });
        Rounded { q: &self.q, scale: &self.scale, sum: &self.sum, totals: &self.totals, blocks }
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
