//! Batched LoRA over rank tiles: `y += scale · (x · Aᵀ) · B`, for many adapters of any rank in one call.
//!
//! Two phases over one work list. Shrink computes s `[tokens, rank]` for each (unit, module), cut by rank tiles; expand
//! adds s·B to y, cut by columns. A unit is a run of at most [`UNIT_TOKENS`] tokens of one group, so an adapter's A and
//! B are read once a step, not once a token. Modules given together share their input x.
#![allow(unsafe_code)] // tasks write disjoint parts of s and y

mod tiling;

use std::cell::RefCell;
use std::ops::Range;

use lorad_blocks::layout::{Chunk, Span, TILE_ROWS};
use tiling::Tiling;

use crate::aligned::Aligned;
use crate::cpu::{Cpu, Level};
use crate::error::{index, length, require};
use crate::shared::{Arena, Parts};
use crate::table::{AdapterTable, Slot};
use crate::{with_number, Element, OpError};

/// Tokens that a task computes at once at most.
pub const UNIT_TOKENS: usize = 32;
/// What reading a weight costs beside multiplying it by one token's value.
const READ_COST: usize = 4;
/// Tokens of a unit from which tiles pay, where the CPU has such.
const MANY: usize = 16;
/// Rank tiles that meet y in one pass at most.
const TILES_MAX: usize = 4;
/// Columns by which expand is cut: two cache lines of bf16.
const COLUMN_STEP: usize = 64;

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

/// A chunk of A and how it meets x and s.
#[derive(Clone, Copy, Debug)]
pub struct ShrinkChunk<'a> {
    /// `[rows, len]`.
    pub weights: &'a [u8],
    /// Rank rows.
    pub rows: usize,
    /// Columns.
    pub len: usize,
    /// Rows of x and s.
    pub tokens: usize,
    /// Elements between rows of x.
    pub x_stride: usize,
    /// Elements between rows of s.
    pub s_stride: usize,
    /// Add to s (a later chunk of a cut row) or set it.
    pub add: bool,
    /// What comes after `weights`, to be fetched meanwhile; may be empty.
    pub next: &'a [u8],
}

/// Rank rows of B, from the first wanted column on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpandTile<'a> {
    /// Rows are `stride` elements apart.
    pub weights: &'a [u8],
    /// Rank rows.
    pub rows: usize,
    /// Elements between rows of B.
    pub stride: usize,
    /// `[tokens, rows]`: scale · s.
    pub coefficients: &'a [f32],
}

/// Tiles of B that meet the same columns of y, and how they do.
#[derive(Clone, Copy, Debug)]
pub struct ExpandChunk<'a> {
    /// By rank: y is passed once for all of them.
    pub tiles: &'a [ExpandTile<'a>],
    /// Columns wanted.
    pub columns: usize,
    /// Rows of the coefficients and of y.
    pub tokens: usize,
    /// Elements between rows of y.
    pub y_stride: usize,
    /// What comes after the last tile's weights, to be fetched meanwhile; may be empty.
    pub next: &'a [u8],
}

/// `s[t, j] (+)= Σ_i x[t, i] · weights[j, i]`.
pub fn shrink_scalar<N: crate::number::Number>(chunk: &ShrinkChunk<'_>, x: &[f32], s: &mut [f32]) {
    for t in 0..chunk.tokens {
        let x = &x[t * chunk.x_stride..][..chunk.len];
        for j in 0..chunk.rows {
            let row = &chunk.weights[j * chunk.len * N::SIZE..][..chunk.len * N::SIZE];
            let sum: f32 = x.iter().enumerate().map(|(i, x)| x * N::get(row, i)).sum();
            let to = &mut s[t * chunk.s_stride + j];
            *to = if chunk.add { *to + sum } else { sum };
        }
    }
}

/// `y[t, c] += Σ_j coefficients[t, j] · weights[j, c]`, j over all tiles; y's row t begins at `y_begin + t · y_stride`.
///
/// # Safety
/// Nobody else may use these columns of y's rows meanwhile.
pub unsafe fn expand_scalar<N: crate::number::Number>(
    chunk: &ExpandChunk<'_>,
    y: &Parts<'_, f32>,
    y_begin: usize,
) {
    for t in 0..chunk.tokens {
        // SAFETY: the caller's promise.
        let y = unsafe { y.part(y_begin + t * chunk.y_stride, chunk.columns) };
        for tile in chunk.tiles {
            for j in 0..tile.rows {
                let coefficient = tile.coefficients[t * tile.rows + j];
                let row = &tile.weights[j * tile.stride * N::SIZE..];
                for (c, y) in y.iter_mut().enumerate() {
                    *y += coefficient * N::get(row, c);
                }
            }
        }
    }
}

/// One adapter's module for a run of tokens.
struct Unit<'a> {
    slot: &'a Slot,
    span: &'a Span,
    tokens: Range<usize>,
    /// Where its columns of y begin.
    column: usize,
    /// Where its s begins: for each tile `[tokens, rows]`, so that tasks own contiguous parts.
    s_begin: usize,
}

impl Unit<'_> {
    fn rank(&self) -> usize {
        self.span.shape.rank as usize
    }

    /// Whether tiles pay, if there are any.
    fn has_many(&self) -> bool {
        self.tokens.len() >= MANY && self.slot.layout().element() == Element::BF16
    }

    fn cost(&self, width: usize) -> usize {
        self.rank() * width * (READ_COST + self.tokens.len())
    }
}

/// A part of a unit: rank rows for shrink, columns for expand.
struct Task {
    unit: usize,
    range: Range<usize>,
}

impl Task {
    /// The chunks of A whose rank rows are in this part.
    fn a_chunks<'u>(&'u self, units: &'u [Unit<'_>]) -> impl Iterator<Item = (&'u Unit<'u>, &'u Chunk)> {
        let unit = &units[self.unit];
        let chunks = unit.slot.layout().a_chunks(unit.span).iter();
        chunks
            .filter(|chunk| self.range.contains(&(chunk.rank_begin as usize)))
            .map(move |chunk| (unit, chunk))
    }

    /// The chunks of B that meet this part, and the columns that they share with it.
    fn b_chunks<'u>(
        &'u self,
        units: &'u [Unit<'_>],
    ) -> impl Iterator<Item = (&'u Unit<'u>, &'u Chunk, Range<usize>)> {
        let unit = &units[self.unit];
        unit.slot.layout().b_chunks(unit.span).iter().filter_map(move |chunk| {
            let (begin, end) = (chunk.begin as usize, (chunk.begin + chunk.len) as usize);
            let columns = self.range.start.max(begin)..self.range.end.min(end);
            (!columns.is_empty()).then_some((unit, chunk, columns))
        })
    }
}

/// Work lists and s, kept from call to call.
#[derive(Default)]
struct Scratch {
    s: Vec<f32>,
    transposed: Aligned<u32>,
    tasks: [Vec<Task>; 2],
    costs: [Vec<usize>; 2],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Adds every group's adapter to y. `exact`: in the arithmetic of few tokens also where there are many, so that a row's
/// result doesn't depend on how many there are.
///
/// `y` f32 `[n, y_width]`: module i of `modules` adds to columns `offsets[i] ..`; `x` f32 `[n, in_features]`. Returns
/// the groups whose tag isn't their slot's: their rows of y are NaN.
pub fn lora(
    cpu: &Cpu,
    y: &mut [f32],
    y_width: usize,
    x: &[f32],
    in_features: usize,
    arena: &Arena<'_>,
    table: &AdapterTable,
    layer: u32,
    modules: &[u32],
    offsets: &[usize],
    groups: Groups<'_>,
    exact: bool,
) -> Result<Vec<usize>, OpError> {
    require(in_features > 0 && y_width > 0, "x and y need columns", in_features.min(y_width))?;
    let n = x.len() / in_features;
    length("x", n * in_features, x.len())?;
    length("y", n * y_width, y.len())?;
    length("offsets", modules.len(), offsets.len())?;
    let count = groups.slot.len();
    length("group_tag", count, groups.tag.len())?;
    length("group_begin", count, groups.begin.len())?;
    length("group_end", count, groups.end.len())?;

    let (mut units, mut wrong, mut s_len, mut last) = (Vec::new(), Vec::new(), 0, 0);
    for group in 0..count {
        let slot = index("group_slot", groups.slot[group], table.len())?;
        let begin = index("group_begin", groups.begin[group], n + 1)?;
        let end = index("group_end", groups.end[group], n + 1)?;
        require(last <= begin && begin <= end, "groups must be ascending and disjoint: group", group)?;
        last = end;
        let slot = match table.get(slot) {
            Some(slot) if slot.tag() == groups.tag[group] as u32 => slot,
            _ => {
                wrong.push(group);
                continue;
            }
        };
        let mut column_end = 0;
        for (&module, &column) in modules.iter().zip(offsets) {
            let Some(span) = slot.span(layer, module) else { continue };
            length("in_features of the adapter", in_features, span.shape.in_features as usize)?;
            let room = y_width.saturating_sub(column);
            require(span.shape.out_features as usize <= room, "y is too narrow for module", module as usize)?;
            require(column_end <= column, "offsets must be ascending and modules disjoint: column", column)?;
            column_end = column + span.shape.out_features as usize;
            let page_max = slot.page_max();
            require(page_max < arena.pages(), "arena: an adapter's page is out of range", page_max)?;
            require(
                arena.page_bytes() == slot.layout().page_bytes(),
                "arena: other pages",
                arena.page_bytes(),
            )?;
            for first in (begin..end).step_by(UNIT_TOKENS) {
                let tokens = first..end.min(first + UNIT_TOKENS);
                let s_begin = s_len;
                s_len += tokens.len() * span.shape.rank as usize;
                units.push(Unit { slot, span, tokens, column, s_begin });
            }
        }
    }
    for &group in &wrong {
        y[groups.begin[group] as usize * y_width..groups.end[group] as usize * y_width].fill(f32::NAN);
    }
    if units.is_empty() {
        return Ok(wrong);
    }
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.s.len() < s_len {
            scratch.s.resize(s_len, 0.0);
        }
        plan(cpu, &units, scratch);
        let many = units.iter().any(Unit::has_many);
        let tiling =
            if exact || !many { None } else { Tiling::new(cpu, x, in_features, &mut scratch.transposed) };
        let (s, y) = (Parts::new(&mut scratch.s), Parts::new(y));
        let [shrinks, expands] = &scratch.tasks;
        cpu.pool.run_balanced(&scratch.costs[0], &|tasks| {
            let mut pieces = shrinks[tasks].iter().flat_map(|task| task.a_chunks(&units)).peekable();
            while let Some((unit, chunk)) = pieces.next() {
                if let Some(tiling) = tiling.as_ref().filter(|_| unit.has_many() && Tiling::shrinks(chunk)) {
                    let alike = |(other, theirs): &(&Unit<'_>, &Chunk)| {
                        std::ptr::eq(*other, unit)
                            && (theirs.begin, theirs.len, theirs.rows) == (chunk.begin, chunk.len, chunk.rows)
                    };
                    let second = pieces.next_if(alike).map(|(_, chunk)| chunk);
                    tiling.shrink(arena, unit, chunk, second, &s);
                    continue;
                }
                let next = pieces.peek().map_or(&[][..], |(unit, chunk)| weights(arena, unit.slot, chunk));
                shrink(cpu.level, weights(arena, unit.slot, chunk), next, unit, chunk, x, in_features, &s);
            }
        });
        cpu.pool.run_balanced(&scratch.costs[1], &|tasks| {
            let mut pieces = expands[tasks].iter().flat_map(|task| task.b_chunks(&units)).peekable();
            let mut alike = Vec::with_capacity(TILES_MAX);
            while let Some((unit, chunk, columns)) = pieces.next() {
                alike.clear();
                alike.push(chunk);
                // Several tokens' y is passed once for all tiles; one token's stays in the first cache anyway, and its
                // tiles are read one after the other.
                while alike.len() < TILES_MAX && unit.tokens.len() > 1 {
                    let same = |(other, _, theirs): &(&Unit<'_>, &Chunk, Range<usize>)| {
                        std::ptr::eq(*other, unit) && *theirs == columns
                    };
                    let Some((_, chunk, _)) = pieces.next_if(same) else { break };
                    alike.push(chunk);
                }
                let next = pieces.peek().map_or(&[][..], |(unit, chunk, _)| weights(arena, unit.slot, chunk));
                expand(cpu.level, tiling.as_ref(), arena, next, unit, &alike, columns, &s, &y, y_width);
            }
        });
    });
    Ok(wrong)
}

/// Cuts units into tasks of at most an eighth of a thread's share, as far as tiles and column steps allow.
fn plan(cpu: &Cpu, units: &[Unit<'_>], scratch: &mut Scratch) {
    for phase in 0..2 {
        let (tasks, costs) = (&mut scratch.tasks[phase], &mut scratch.costs[phase]);
        tasks.clear();
        costs.clear();
        let size = |unit: &Unit<'_>| {
            let shape = &unit.span.shape;
            // Width that weighs, length that is cut, step of the cut.
            match phase {
                0 => (shape.in_features as usize, unit.rank(), TILE_ROWS),
                _ => (shape.out_features as usize, shape.out_features as usize, COLUMN_STEP),
            }
        };
        let total: usize = units.iter().map(|unit| unit.cost(size(unit).0)).sum();
        let share = if cpu.pool.threads() == 1 { usize::MAX } else { total.div_ceil(cpu.pool.threads() * 8) };
        for (number, unit) in units.iter().enumerate() {
            let (width, length, step) = size(unit);
            let cost = unit.cost(width);
            let parts = cost.div_ceil(share.max(1)).clamp(1, length.div_ceil(step));
            let part = length.div_ceil(parts).next_multiple_of(step);
            for begin in (0..length).step_by(part) {
                let range = begin..length.min(begin + part);
                costs.push(cost / length.max(1) * range.len());
                tasks.push(Task { unit: number, range });
            }
        }
    }
}

/// The bytes of a chunk.
fn weights<'a>(arena: &'a Arena<'_>, slot: &Slot, chunk: &Chunk) -> &'a [u8] {
    let bytes = (chunk.rows * chunk.len) as usize * slot.layout().element().bytes();
    let page = slot.pages()[chunk.page as usize] as usize;
    // SAFETY: an adapter's pages are filled before its slot is set and belong to it until the slot is cleared; both
    // happen between steps.
    unsafe { arena.read(page, chunk.offset as usize, bytes) }
}

fn shrink(
    level: Level,
    weights: &[u8],
    next: &[u8],
    unit: &Unit<'_>,
    chunk: &Chunk,
    x: &[f32],
    in_features: usize,
    s: &Parts<'_, f32>,
) {
    let (rows, tokens) = (chunk.rows as usize, unit.tokens.len());
    let piece = ShrinkChunk {
        weights,
        rows,
        len: chunk.len as usize,
        tokens,
        x_stride: in_features,
        s_stride: rows,
        add: chunk.begin > 0,
        next,
    };
    let x = &x[unit.tokens.start * in_features + chunk.begin as usize..];
    // SAFETY: tasks of a phase have disjoint (unit, tile).
    let s = unsafe { s.part(unit.s_begin + chunk.rank_begin as usize * tokens, rows * tokens) };
    with_number!(unit.slot.layout().element(), N => match level {
        Level::Portable => shrink_scalar::<N>(&piece, x, s),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) => avx2.shrink::<N>(&piece, x, s),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_, avx512) => avx512.shrink::<N>(&piece, x, s),
    });
}

fn expand(
    level: Level,
    tiling: Option<&Tiling<'_>>,
    arena: &Arena<'_>,
    next: &[u8],
    unit: &Unit<'_>,
    chunks: &[&Chunk],
    columns: Range<usize>,
    s: &Parts<'_, f32>,
    y: &Parts<'_, f32>,
    y_width: usize,
) {
    let (tokens, scale) = (unit.tokens.len(), unit.span.shape.scale);
    let element = unit.slot.layout().element();
    let mut coefficients = [0f32; TILES_MAX * UNIT_TOKENS * TILE_ROWS];
    let mut tiles = [ExpandTile::default(); TILES_MAX];
    let mut room = &mut coefficients[..];
    for (tile, chunk) in tiles.iter_mut().zip(chunks) {
        let rows = chunk.rows as usize;
        // SAFETY: shrink has ended; nobody writes s in this phase.
        let s = unsafe { s.read(unit.s_begin + chunk.rank_begin as usize * tokens, rows * tokens) };
        let (scaled, rest) = room.split_at_mut(rows * tokens);
        room = rest;
        for (coefficient, s) in scaled.iter_mut().zip(s) {
            *coefficient = scale * s;
        }
        let skipped = (columns.start - chunk.begin as usize) * element.bytes();
        *tile = ExpandTile {
            weights: &weights(arena, unit.slot, chunk)[skipped..],
            rows,
            stride: chunk.len as usize,
            coefficients: scaled,
        };
    }
    let tiles = &mut tiles[..chunks.len()];
    let y_begin = unit.tokens.start * y_width + unit.column + columns.start;
    let done = match tiling {
        Some(tiling) if unit.has_many() => tiling.expand(tiles, tokens, columns.len(), y, y_begin, y_width),
        _ => 0,
    };
    if done == tokens {
        return;
    }
    for tile in &mut *tiles {
        tile.coefficients = &tile.coefficients[done * tile.rows..];
    }
    let piece = ExpandChunk { tiles, columns: columns.len(), tokens: tokens - done, y_stride: y_width, next };
    let y_begin = y_begin + done * y_width;
    // Tasks of a phase have disjoint (unit, columns), and units share a row only in the columns of other modules,
    // which don't overlap.
    with_number!(element, N => match level {
        // SAFETY: as above.
        Level::Portable => unsafe { expand_scalar::<N>(&piece, y, y_begin) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2(avx2) => unsafe { avx2.expand::<N>(&piece, y, y_begin) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512(_, avx512) => unsafe { avx512.expand::<N>(&piece, y, y_begin) },
    });
}
