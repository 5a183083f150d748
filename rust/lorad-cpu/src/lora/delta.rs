//! What adapters add to y: first s for all of it, then columns of y by whoever makes them. Of many adapters see [`super::alone`].

use std::cell::Cell;
use std::ops::Range;

use lorad_blocks::layout::{Chunk, TILE_ROWS};

use super::chunk::{expand, shrink, ExpandChunk, ExpandTile, ShrinkChunk};
use super::tiling::{Tiling, XTiles};
use super::units::{Unit, Units};
use super::{Adapters, Modules};
use crate::cpu::{Cpu, Level};
use crate::fetch::Fetch;
use crate::pool::bundles;
use crate::shared::{Arena, Parts};
use crate::OpError;

/// Rank tiles whose list needs no memory of its own.
const FEW_TILES: usize = 8;
/// Bundles of shrink tasks that a thread gets.
const BUNDLES: usize = 4;

/// Buffers kept from call to call.
#[derive(Default)]
struct Scratch {
    s: Vec<f32>,
    tiling: Tiling,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// A step's adapters and one product's modules.
pub struct Delta<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) arena: &'a Arena<'a>,
    pub(super) units: Units<'a>,
    scratch: Scratch,
}

/// A part of a unit: rank rows, or of a tiled unit its tiles of tokens.
struct Task {
    unit: usize,
    range: Range<usize>,
}

/// The activations that s is made of.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// f32 `[n, in_features]`.
    pub x: &'a [f32],
    /// Columns of x.
    pub in_features: usize,
    /// The same in tiles, if they have been made for a product.
    pub tiles: Option<XTiles<'a>>,
}

/// Columns of y for some tokens, wherever they lie.
#[derive(Clone, Copy)]
pub struct Target<'a, 'b> {
    /// The buffer.
    pub y: &'a Parts<'b, f32>,
    /// Element of the first token's first column.
    pub at: usize,
    /// Elements between tokens.
    pub stride: usize,
}

impl<'a> Delta<'a> {
    /// Checks everything; nothing is computed yet. Groups of `tiled` tokens and more are left to tiles, where the CPU has
    /// them.
    pub fn new(
        cpu: &'a Cpu,
        adapters: &Adapters<'a>,
        modules: &Modules<'_>,
        n: usize,
        in_features: usize,
        y_width: usize,
        tiled: usize,
    ) -> Result<Self, OpError> {
        let tiled = if adapters.exact || !has_tiles(cpu.level) { usize::MAX } else { tiled };
        let threads = cpu.pool.threads();
        let units = Units::new(adapters, modules, n, in_features, y_width, tiled, threads)?;
        let mut scratch = SCRATCH.take();
        if scratch.s.len() < units.floats {
            scratch.s.resize(units.floats, 0.0);
        }
        scratch.tiling.prepare(&units, n);
        Ok(Self { cpu, arena: adapters.arena, units, scratch })
    }

    /// Whether there is nothing to add.
    pub fn is_empty(&self) -> bool {
        self.units.all.is_empty()
    }

    /// Whether units wait for tiles.
    pub fn has_tiled(&self) -> bool {
        self.units.tiles > 0
    }

    /// Groups whose tag isn't their slot's.
    pub fn wrong(&self) -> Vec<usize> {
        self.units.wrong.iter().map(|(group, _)| *group).collect()
    }

    /// Makes the rows of those groups NaN, in y `[n, width]`.
    pub fn poison(&self, y: &mut [f32], width: usize) {
        for (_, tokens) in &self.units.wrong {
            y[tokens.start * width..tokens.end * width].fill(f32::NAN);
        }
    }

    /// Computes s, but not of what is taken by itself; `other` are `others` tasks that have to be done too.
    pub fn shrink(&mut self, input: Input<'_>, others: usize, other: &(dyn Fn(usize) + Sync)) {
        let (tasks, costs) = self.plan();
        let bundles = bundles(&costs, self.cpu.pool.threads() * BUNDLES);
        let s = Parts::new(&mut self.scratch.s);
        let halves = self.scratch.tiling.halves();
        let (units, arena, cpu) = (&self.units.all, self.arena, self.cpu);
        cpu.pool.run(others + bundles.len(), &|number| {
            let Some(bundle) = number.checked_sub(others) else { return other(number) };
            for Task { unit, range } in &tasks[bundles[bundle].clone()] {
                let unit = &units[*unit];
                if unit.tiled {
                    Tiling::shrink(cpu.level, arena, unit, range.clone(), input, &halves);
                    continue;
                }
                let tokens = unit.tokens.len();
                // SAFETY: tasks have disjoint (unit, rank rows).
                let s = unsafe { s.part(unit.s_begin + range.start * tokens, range.len() * tokens) };
                shrink_unit(cpu, arena, unit, range.clone(), input, s);
            }
        });
    }

    /// Cuts units into tasks of at most an eighth of a thread's share, as far as tiles allow.
    fn plan(&self) -> (Vec<Task>, Vec<usize>) {
        let (mut tasks, mut costs) = (Vec::new(), Vec::new());
        let wanted = || self.units.all.iter().enumerate().filter(|(_, unit)| !unit.alone && unit.rank() > 0);
        let cost = |unit: &Unit<'_>| unit.cost(unit.span.shape.in_features);
        let total: usize = wanted().map(|(_, unit)| cost(unit)).sum();
        let threads = self.cpu.pool.threads();
        let share = if threads == 1 { usize::MAX } else { total.div_ceil(threads * 8) };
        for (number, unit) in wanted() {
            let (length, step) = if unit.tiled { (Tiling::tiles(unit), 4) } else { (unit.rank(), TILE_ROWS) };
            let cost = cost(unit);
            let parts = cost.div_ceil(share.max(1)).clamp(1, length.div_ceil(step));
            let part = length.div_ceil(parts).next_multiple_of(step);
            for begin in (0..length).step_by(part) {
                let range = begin..length.min(begin + part);
                costs.push(cost / length.max(1) * range.len());
                tasks.push(Task { unit: number, range });
            }
        }
        (tasks, costs)
    }

    /// Units that are added by columns, and for each the columns that it shares with some of y's.
    fn meeting(&self, columns: &Range<usize>) -> impl Iterator<Item = (&Unit<'a>, Range<usize>)> {
        let columns = columns.clone();
        self.units.all.iter().filter(|unit| !unit.tiled && !unit.alone).filter_map(move |unit| {
            let shared = both(&unit.columns(), &columns);
            (!shared.is_empty()).then(|| (unit, shared.start - unit.column..shared.end - unit.column))
        })
    }

    /// Adds to these columns of y for some tokens, but neither what is left to tiles nor what is taken by itself.
    ///
    /// # Safety
    /// Nobody else may use these elements of y meanwhile.
    pub unsafe fn expand(&self, columns: Range<usize>, tokens: Range<usize>, to: Target<'_, '_>) {
        for (unit, wanted) in self.meeting(&columns) {
            let rows = both(&unit.tokens, &tokens);
            if !rows.is_empty() {
                let column = unit.column + wanted.start - columns.start;
                let to = Target { at: to.at + (rows.start - tokens.start) * to.stride + column, ..to };
                let s = &self.scratch.s[unit.s_begin..][..unit.tokens.len() * unit.rank()];
                // SAFETY: the caller's promise.
                unsafe { self.expand_unit(unit, s, wanted, rows, to, &mut Fetch::default()) }
            }
        }
    }

    /// Adds to some columns of some rows of a unit.
    pub(super) unsafe fn expand_unit(
        &self,
        unit: &Unit<'_>,
        s: &[f32],
        wanted: Range<usize>,
        rows: Range<usize>,
        to: Target<'_, '_>,
        fetch: &mut Fetch,
    ) {
        let (count, size) = (unit.rank().div_ceil(TILE_ROWS), unit.element().bytes());
        if count == 0 {
            return;
        }
        let (mut few, mut many) = ([ExpandTile::default(); FEW_TILES], Vec::new());
        let tiles = if count <= FEW_TILES {
            &mut few[..count]
        } else {
            many.resize(count, ExpandTile::default());
            &mut many[..]
        };
        let mut begin = wanted.start;
        while begin < wanted.end {
            // The columns for which one chunk of each rank tile is enough; as a rule all.
            let mut end = wanted.end;
            let holds =
                |chunk: &&Chunk| (chunk.begin as usize..(chunk.begin + chunk.len) as usize).contains(&begin);
            for (chunk, tile) in unit.b_chunks().iter().filter(holds).zip(tiles.iter_mut()) {
                let (ranks, tokens) = (chunk.rows as usize, unit.tokens.len());
                let s = &s[chunk.rank_begin as usize * tokens..][..ranks * tokens];
                *tile = ExpandTile {
                    weights: &unit.weights(self.arena, chunk)[(begin - chunk.begin as usize) * size..],
                    rows: ranks,
                    stride: chunk.len as usize,
                    coefficients: &s[(rows.start - unit.tokens.start) * ranks..][..rows.len() * ranks],
                };
                end = end.min((chunk.begin + chunk.len) as usize);
            }
            let (columns, tokens, y_stride) = (end - begin, rows.len(), to.stride);
            let piece = ExpandChunk { tiles, columns, tokens, y_stride };
            // SAFETY: the caller's promise.
            unsafe {
                expand(self.cpu.level, unit.element(), &piece, to.y, to.at + begin - wanted.start, fetch)
            }
            begin = end;
        }
    }

    /// The tiled units, for products that take them along.
    pub(super) fn tiling(&self) -> (&Tiling, &[Unit<'a>], &'a Arena<'a>) {
        (&self.scratch.tiling, &self.units.all, self.arena)
    }
}

impl Drop for Delta<'_> {
    fn drop(&mut self) {
        SCRATCH.set(std::mem::take(&mut self.scratch));
    }
}

/// scale · x · Aᵀ for some rank rows of a unit, for each rank tile `[tokens, rows]`.
pub(super) fn shrink_unit(
    cpu: &Cpu,
    arena: &Arena<'_>,
    unit: &Unit<'_>,
    ranks: Range<usize>,
    input: Input<'_>,
    s: &mut [f32],
) {
    let tokens = unit.tokens.len();
    let mut chunks =
        unit.a_chunks().iter().filter(|chunk| ranks.contains(&(chunk.rank_begin as usize))).peekable();
    while let Some(chunk) = chunks.next() {
        let rows = chunk.rows as usize;
        let piece = ShrinkChunk {
            weights: unit.weights(arena, chunk),
            rows,
            len: chunk.len as usize,
            tokens,
            x_stride: input.in_features,
            s_stride: rows,
            add: chunk.begin > 0,
            next: chunks.peek().map_or(&[][..], |chunk| unit.weights(arena, chunk)),
        };
        let x = &input.x[unit.tokens.start * input.in_features + chunk.begin as usize..];
        let s = &mut s[(chunk.rank_begin as usize - ranks.start) * tokens..][..rows * tokens];
        shrink(cpu.level, unit.element(), &piece, x, s);
    }
    s.iter_mut().for_each(|s| *s *= unit.span.shape.scale);
}

/// What two ranges share; empty if nothing.
pub(super) fn both(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

#[cfg(target_arch = "x86_64")]
fn has_tiles(level: Level) -> bool {
    level.tiles().is_some()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_tiles(_: Level) -> bool {
    false
}
