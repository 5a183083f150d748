//! Batched LoRA over rank tiles: `y += scale · (x · Aᵀ) · B`, for many adapters of any rank in one call.
//!
//! Modules may have vectors beside their tiles (DoRA, biases): once all that an adapter adds to some of y is there, that
//! becomes `gain · y + bias` ([`vectors`]).
//!
//! Two phases. Shrink computes s `[tokens, rank]` for each (unit, module), cut by rank tiles; expand adds s·B to columns
//! of y, all tokens of them in one task. A unit is a run of tokens of one group, so an adapter's A and B are read once a
//! step, not once a token. Modules given together share their input x. [`lora`] adds to a y that is there; a product
//! ([`crate::quant`]) takes a [`Delta`] along and adds to each part of y right after it has made it.
#![allow(unsafe_code)] // tasks write disjoint parts of s and y

mod alone;
pub mod chunk;
mod delta;
mod embedding;
mod tiling;
mod units;
mod vectors;

pub use delta::{Delta, Input, Target};
pub use embedding::lora_embed;
pub use tiling::{BTiles, Extra, XTiles, RANKS, TILE};
pub use units::{TILE_COLUMNS, TOKENS, UNIT_TOKENS};

use crate::cpu::Cpu;
use crate::error::{length, require};
use crate::shared::{Arena, Parts};
use crate::table::AdapterTable;
use crate::OpError;

/// Tokens of a group from which tiles pay where adapters are all that is done, or done beside integers.
pub(crate) const TILED: usize = 64;
/// Columns by which y is cut: two cache lines of f32, one of bf16.
const COLUMN_STEP: usize = 32;

/// Token ranges by adapter, as the plan has them.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// `[groups]` slot of the table.
    pub slot: &'a [i32],
    /// `[groups]` tag that the slot must have.
    pub tag: &'a [i32],
    /// `[groups]` first token; groups are in ascending order.
    pub begin: &'a [i32],
    /// `[groups]` one past the last token.
    pub end: &'a [i32],
}

/// A step's adapters.
#[derive(Clone, Copy)]
pub struct Adapters<'a> {
    /// Where their pages are.
    pub arena: &'a Arena<'a>,
    /// Which adapter lies where.
    pub table: &'a AdapterTable,
    /// Whose tokens are whose.
    pub groups: Groups<'a>,
    /// Never by tiles: a row's result doesn't depend on how many there are.
    pub exact: bool,
}

/// Modules of a layer that share their input.
#[derive(Clone, Copy, Debug)]
pub struct Modules<'a> {
    /// The layer.
    pub layer: u32,
    /// Their numbers within it.
    pub numbers: &'a [u32],
    /// Where each one's columns of y begin, ascending.
    pub offsets: &'a [usize],
}

/// Adds every group's adapter to `y` f32 `[n, y_width]`; `x` f32 `[n, in_features]`. Returns the groups whose tag isn't
/// their slot's: their rows of y are NaN.
pub fn lora(
    cpu: &Cpu,
    y: &mut [f32],
    y_width: usize,
    x: &[f32],
    in_features: usize,
    adapters: &Adapters<'_>,
    modules: &Modules<'_>,
) -> Result<Vec<usize>, OpError> {
    require(in_features > 0 && y_width > 0, "x and y need columns", in_features.min(y_width))?;
    let n = x.len() / in_features;
    length("x", n * in_features, x.len())?;
    length("y", n * y_width, y.len())?;
    let mut delta = Delta::new(cpu, adapters, modules, n, in_features, y_width, TILED)?;
    if !delta.is_empty() {
        let input = Input { x, in_features, tiles: None };
        delta.shrink(input, 0, &|_| ());
        let delta = &delta;
        let y = Parts::new(y);
        let whole = Target { y: &y, at: 0, stride: y_width };
        if delta.has_alone() {
            let shares = cpu.pool.threads() * 4;
            // SAFETY: each unit is in one share.
            cpu.pool.run(shares, &|share| unsafe {
                delta.share(share..shares).iter().for_each(|unit| delta.run_unit(*unit, input, whole));
            });
        }
        let steps = if delta.is_alone() { 0 } else { y_width.div_ceil(COLUMN_STEP) };
        let tasks = if cpu.pool.threads() == 1 { steps.min(1) } else { steps.min(cpu.pool.threads() * 8) };
        cpu.pool.run(tasks, &|task| {
            let columns =
                steps * task / tasks * COLUMN_STEP..y_width.min(steps * (task + 1) / tasks * COLUMN_STEP);
            let to = Target { at: columns.start, ..whole };
            // SAFETY: tasks have disjoint columns.
            unsafe {
                delta.expand(columns.clone(), 0..n, to);
                delta.expand_tiled(cpu.level, columns.clone(), 0..n, to);
                delta.finish(columns, 0..n, to);
            }
        });
    }
    delta.poison(y, y_width);
    Ok(delta.wrong())
}
