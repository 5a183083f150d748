//! Units: what a step's groups ask of one layer's modules, checked once.

use std::ops::Range;

use lorad_blocks::layout::{Chunk, Span};

use super::{Adapters, Modules};
use crate::error::{index, length, require};
use crate::shared::Arena;
use crate::table::Slot;
use crate::{Element, OpError};

/// Tokens that a task computes at once at most, but for tiles.
pub const UNIT_TOKENS: usize = 32;
/// What reading a weight costs beside multiplying it by one token's value.
const READ_COST: usize = 4;
/// Columns that a tile takes at once.
pub const TILE_COLUMNS: usize = 32;

/// One adapter's module for a run of tokens.
pub(super) struct Unit<'a> {
    pub slot: &'a Slot,
    pub span: &'a Span,
    pub tokens: Range<usize>,
    /// Where its columns of y begin.
    pub column: usize,
    /// Where its scale · s begins: f32, for each rank tile `[tokens, rows]`, so that tasks own contiguous parts; of a unit
    /// for tiles in halves, see [`super::tiling`].
    pub s_begin: usize,
    /// Computed by tiles.
    pub tiled: bool,
    /// Taken by itself, see [`super::alone`].
    pub alone: bool,
}

impl Unit<'_> {
    pub fn rank(&self) -> usize {
        self.span.shape.rank as usize
    }

    pub fn element(&self) -> Element {
        self.slot.layout().element()
    }

    pub fn b_chunks(&self) -> &[Chunk] {
        self.slot.layout().b_chunks(self.span)
    }

    pub fn a_chunks(&self) -> &[Chunk] {
        self.slot.layout().a_chunks(self.span)
    }

    pub fn vector_chunks(&self) -> &[Chunk] {
        self.slot.layout().vector_chunks(self.span)
    }

    /// Multiplications with a width of columns, and the reading of weights that they need.
    pub fn cost(&self, width: u32) -> usize {
        // What has nothing but vectors costs something too.
        self.rank().max(1) * width as usize * (READ_COST + self.tokens.len())
    }

    /// The cost of both matrices.
    pub fn whole_cost(&self) -> usize {
        self.cost(self.span.shape.in_features + self.span.shape.out_features)
    }

    /// Columns of y that it adds to.
    pub fn columns(&self) -> Range<usize> {
        self.column..self.column + self.span.shape.out_features as usize
    }

    /// The bytes of a chunk.
    pub fn weights<'a>(&self, arena: &'a Arena<'_>, chunk: &Chunk) -> &'a [u8] {
        let bytes = self.slot.layout().chunk_bytes(chunk);
        let page = self.slot.pages()[chunk.page as usize] as usize;
        // SAFETY: an adapter's pages are filled before its slot is set and belong to it until the slot is cleared; both
        // happen between steps.
        unsafe { arena.read(page, chunk.offset as usize, bytes) }
    }
}

/// All units of a call, and the groups whose slot holds something else.
pub(super) struct Units<'a> {
    pub all: Vec<Unit<'a>>,
    /// Numbers of groups and their tokens.
    pub wrong: Vec<(usize, Range<usize>)>,
    /// Length of s.
    pub floats: usize,
    /// Tiles of halves of s.
    pub tiles: usize,
    /// Whether any has vectors.
    pub vectors: bool,
    /// By token, whether a unit that is taken by itself adds to it; none if there are no such units.
    pub waits: Vec<bool>,
}

impl<'a> Units<'a> {
    /// `n` rows of x with `in_features` columns, y of `y_width`; groups of `tiled` tokens and more are for tiles.
    pub fn new(
        adapters: &Adapters<'a>,
        modules: &Modules<'_>,
        n: usize,
        in_features: usize,
        y_width: usize,
        tiled: usize,
        threads: usize,
    ) -> Result<Self, OpError> {
        let Adapters { arena, table, groups, .. } = *adapters;
        length("offsets", modules.numbers.len(), modules.offsets.len())?;
        let count = groups.slot.len();
        length("group_tag", count, groups.tag.len())?;
        length("group_begin", count, groups.begin.len())?;
        length("group_end", count, groups.end.len())?;
        let tiled = if in_features.is_multiple_of(TILE_COLUMNS) { tiled } else { usize::MAX };
        let (all, wrong, waits) = (Vec::new(), Vec::new(), Vec::new());
        let mut units = Self { all, wrong, floats: 0, tiles: 0, vectors: false, waits };
        let (mut last, mut adapters) = (0, 0);
        for group in 0..count {
            let slot = index("group_slot", groups.slot[group], table.len())?;
            let begin = index("group_begin", groups.begin[group], n + 1)?;
            let end = index("group_end", groups.end[group], n + 1)?;
            require(last <= begin && begin <= end, "groups must be ascending and disjoint: group", group)?;
            last = end;
            let slot = match table.get(slot) {
                Some(slot) if slot.tag() == groups.tag[group] as u32 => slot,
                _ => {
                    units.wrong.push((group, begin..end));
                    continue;
                }
            };
            let (page_max, page_bytes) = (slot.page_max(), arena.page_bytes());
            require(page_max < arena.pages(), "arena: an adapter's page is out of range", page_max)?;
            require(page_bytes == slot.layout().page_bytes(), "arena: other pages", page_bytes)?;
            let mut column_end = 0;
            for (&module, &column) in modules.numbers.iter().zip(modules.offsets) {
                let Some(span) = slot.span(modules.layer, module) else { continue };
                length("in_features of the adapter", in_features, span.shape.in_features as usize)?;
                let room = y_width.saturating_sub(column);
                require(
                    span.shape.out_features as usize <= room,
                    "y is too narrow for module",
                    module as usize,
                )?;
                require(
                    column_end <= column,
                    "offsets must be ascending and modules disjoint: column",
                    column,
                )?;
                column_end = column + span.shape.out_features as usize;
                units.add(slot, span, begin..end, column, tiled);
            }
            let few = |unit: &Unit<'_>| unit.tokens.end == end && !unit.tiled;
            adapters += usize::from(units.all.last().is_some_and(few));
        }
        units.take_alone(adapters, threads, n);
        Ok(units)
    }

    /// Of more than two adapters a thread each unit is taken by itself, but not one that is half of a thread's share.
    fn take_alone(&mut self, adapters: usize, threads: usize, n: usize) {
        if adapters > threads * 2 {
            let few = self.all.iter().filter(|unit| !unit.tiled);
            let most = few.map(Unit::whole_cost).sum::<usize>() / (threads * 2);
            let alone = |unit: &&mut Unit<'_>| !unit.tiled && unit.whole_cost() <= most;
            self.waits.resize(n, false);
            for unit in self.all.iter_mut().filter(alone) {
                unit.alone = true;
                self.waits[unit.tokens.clone()].fill(true);
            }
        }
    }

    fn add(&mut self, slot: &'a Slot, span: &'a Span, tokens: Range<usize>, column: usize, tiled: usize) {
        let rank = span.shape.rank as usize;
        self.vectors |= span.shape.vectors.any();
        let mut unit =
            Unit { slot, span, tokens: tokens.clone(), column, s_begin: 0, tiled: false, alone: false };
        let whole = |chunk: &Chunk| (chunk.begin | chunk.len).is_multiple_of(TILE_COLUMNS as u32);
        let tiled = rank > 0 && tokens.len() >= tiled && unit.element() == Element::BF16;
        if tiled && unit.a_chunks().iter().all(whole) {
            (unit.tiled, unit.s_begin) = (true, self.tiles);
            self.tiles += tiles_of(&tokens).len() * rank.div_ceil(TOKENS);
            self.all.push(unit);
            return;
        }
        for first in tokens.clone().step_by(UNIT_TOKENS) {
            let tokens = first..tokens.end.min(first + UNIT_TOKENS);
            let s_begin = self.floats;
            self.floats += tokens.len() * rank;
            self.all.push(Unit { slot, span, tokens, column, s_begin, tiled: false, alone: false });
        }
    }
}

/// Tokens of a tile; also rank rows that it takes.
pub const TOKENS: usize = 16;

/// Tiles that some tokens lie in.
pub(super) fn tiles_of(tokens: &Range<usize>) -> Range<usize> {
    tokens.start / TOKENS..tokens.end.div_ceil(TOKENS)
}
