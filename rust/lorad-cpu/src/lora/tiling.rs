//! LoRA by tiles (AMX), for adapters in bf16 and groups of many tokens.
//!
//! Weights are bf16 as they are, sums are f32. s is kept as two bf16, the second being what the first leaves (17 bits), and
//! so is x where it comes as f32; beside a product by tiles x is rounded once, to bf16, for both. A tile of s holds 16
//! tokens' `[16 rank rows, first halves | second halves]`, zeros for tokens of other groups, so that a tile of tokens may
//! be shared: it meets the tiles of each group's B. (0 · B is 0: adapters with NaN or infinite weights are refused when
//! they are read.)

use std::ops::Range;

use super::delta::{both, Delta, Input, Target};
use super::units::{tiles_of, Unit, Units, TOKENS};
use crate::aligned::Aligned;
use crate::cpu::Level;
use crate::shared::{Arena, Parts};
#[cfg(target_arch = "x86_64")]
use crate::simd::Tiles;

/// Elements of a tile of bf16: 16 rows of 32.
pub const TILE: usize = 512;
/// Rank rows of a tile of s.
pub const RANKS: usize = 16;
/// Columns of y that a tile of B has.
pub const COLUMNS: usize = 16;
/// Tiles of columns that are made at once.
pub const GROUPS: usize = 2;
/// A unit that doesn't meet the columns.
const NONE: u32 = u32::MAX;

/// Activations in tiles `[tiles of 16 tokens][blocks of 32 columns]`.
#[derive(Clone, Copy)]
pub struct XTiles<'a> {
    /// Rounded to bf16.
    pub first: &'a [u16],
    /// What that leaves.
    pub second: Option<&'a [u16]>,
}

/// A unit's s for a tile of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Number of the unit.
    pub unit: u32,
    /// First tile of s.
    pub s: u32,
    /// Tiles of s: one for 16 rank rows.
    pub tiles: u32,
}

/// s of all tiled units, and which of it belongs to which tile of tokens.
#[derive(Default)]
pub struct Tiling {
    s: Aligned<u16>,
    entries: Vec<Entry>,
    /// `entries[start[t]..start[t + 1]]` are those of tile t.
    start: Vec<u32>,
}

impl Tiling {
    /// Makes room, and the list of entries.
    pub(super) fn prepare(&mut self, units: &Units<'_>, n: usize) {
        self.s.reserve(units.tiles * TILE);
        self.entries.clear();
        self.start.clear();
        self.start.push(0);
        if units.tiles == 0 {
            return;
        }
        // Units are in the order of their tokens.
        let tiled: Vec<_> = units.all.iter().enumerate().filter(|(_, unit)| unit.tiled).collect();
        let mut first = 0;
        for tile in 0..n.div_ceil(TOKENS) {
            while first < tiled.len() && tiles_of(&tiled[first].1.tokens).end <= tile {
                first += 1;
            }
            for (number, unit) in &tiled[first..] {
                let tiles = tiles_of(&unit.tokens);
                if tiles.start > tile {
                    break;
                }
                let each = unit.rank().div_ceil(RANKS);
                let s = unit.s_begin + (tile - tiles.start) * each;
                self.entries.push(Entry { unit: *number as u32, s: s as u32, tiles: each as u32 });
            }
            self.start.push(self.entries.len() as u32);
        }
    }

    /// Tiles of tokens that a unit has.
    pub(super) fn tiles(unit: &Unit<'_>) -> usize {
        tiles_of(&unit.tokens).len()
    }

    /// s, for tasks to write.
    pub(super) fn halves(&mut self) -> Parts<'_, u16> {
        Parts::new(&mut self.s)
    }
}

#[cfg(target_arch = "x86_64")]
thread_local! {
    /// Tiles of A, and of x.
    static SHRINK: std::cell::RefCell<(Aligned<u32>, [Aligned<u16>; 2])> = std::cell::RefCell::default();
}

#[cfg(target_arch = "x86_64")]
impl Tiling {
    /// Computes s for some of a unit's tiles of tokens.
    pub(super) fn shrink(
        level: Level,
        arena: &Arena<'_>,
        unit: &Unit<'_>,
        range: Range<usize>,
        input: Input<'_>,
        s: &Parts<'_, u16>,
    ) {
        const AT_ONCE: usize = 4;
        let Some((_, tiles)) = level.tiles() else { unreachable!("a unit is tiled where there are tiles") };
        let (first, each) = (tiles_of(&unit.tokens).start, unit.rank().div_ceil(RANKS));
        let blocks = input.in_features / 32;
        SHRINK.with_borrow_mut(|(a, own)| {
            // Without tiles of x this task makes its own.
            let (x, skipped) = match input.tiles {
                Some(x) => (x, 0),
                None => {
                    let rows = (first + range.start) * TOKENS * input.in_features;
                    let end = input.x.len().min((first + range.end) * TOKENS * input.in_features);
                    (XTiles::split(tiles, &input.x[rows..end], input.in_features, own), first + range.start)
                }
            };
            a.reserve(blocks * TILE / 2);
            for pair in 0..each {
                let ranks = pair * RANKS..unit.rank().min((pair + 1) * RANKS);
                if ranks.len() < RANKS {
                    a.fill(0);
                }
                for chunk in unit.a_chunks() {
                    let rank = chunk.rank_begin as usize;
                    if ranks.contains(&rank) {
                        let weights = unit.weights(arena, chunk);
                        let (block, rank) = (chunk.begin as usize / 32, rank - ranks.start);
                        tiles.transpose(weights, chunk.rows as usize, rank, &mut a[block * TILE / 2..]);
                    }
                }
                for begin in range.clone().step_by(AT_ONCE) {
                    let count = AT_ONCE.min(range.end - begin);
                    let mut sums = [[0f32; TOKENS * RANKS]; AT_ONCE];
                    let at = (first + begin - skipped) * blocks * TILE;
                    tiles.shrink(a, blocks, &x.first[at..], &mut sums[..count], false);
                    if let Some(second) = x.second {
                        tiles.shrink(a, blocks, &second[at..], &mut sums[..count], true);
                    }
                    for (tile, sums) in (begin..).zip(&sums[..count]) {
                        let to = (unit.s_begin + tile * each + pair) * TILE;
                        // SAFETY: tasks have disjoint (unit, tile).
                        let to = unsafe { s.part(to, TILE) };
                        let token = (first + tile) * TOKENS;
                        let mine =
                            unit.tokens.start.max(token) - token..unit.tokens.end.min(token + TOKENS) - token;
                        tiles.halve(sums, unit.span.shape.scale, mine, to);
                    }
                }
            }
        });
    }
}

/// Nothing: only x86 has tiles.
#[cfg(not(target_arch = "x86_64"))]
impl Tiling {
    pub(super) fn shrink(
        _: Level,
        _: &Arena<'_>,
        _: &Unit<'_>,
        _: Range<usize>,
        _: Input<'_>,
        _: &Parts<'_, u16>,
    ) {
        unreachable!("a unit is tiled where there are tiles");
    }
}

#[cfg(target_arch = "x86_64")]
impl<'a> XTiles<'a> {
    /// Rounds x `[n, in_features]`; nothing is lost but what 17 bits don't hold.
    fn split(tiles: Tiles, x: &[f32], in_features: usize, to: &'a mut [Aligned<u16>; 2]) -> Self {
        let blocks = in_features / 32;
        let length = (x.len() / in_features).next_multiple_of(TOKENS) * in_features;
        to.iter_mut().for_each(|half| half.reserve(length));
        let [first, second] = to;
        tiles.round(x, blocks, &mut first[..length], Some(&mut second[..length]));
        Self { first, second: Some(second) }
    }
}

/// The tiles of B that some columns of y meet.
#[derive(Default)]
pub struct BTiles {
    /// For each unit that meets them `[tiles of s][GROUPS]`, pairs of rank rows beside each other, each twice.
    tiles: Aligned<u16>,
    /// Where a unit's begin.
    at: Vec<u32>,
}

/// What products by tiles add to their sums.
#[derive(Clone, Copy)]
pub struct Extra<'a> {
    /// See [`Tiling`].
    pub start: &'a [u32],
    /// See [`Tiling`].
    pub entries: &'a [Entry],
    /// All tiles of s.
    pub s: &'a [u16],
    /// See [`BTiles`].
    pub at: &'a [u32],
    /// See [`BTiles`].
    pub b: &'a [u16],
}

impl Extra<'_> {
    /// What a tile of tokens meets: tiles of s and of B, [`GROUPS`] of these for one of those.
    #[inline(always)]
    pub fn of(&self, tile: usize) -> impl Iterator<Item = (*const u16, *const u16)> + '_ {
        let entries = &self.entries[self.start[tile] as usize..self.start[tile + 1] as usize];
        entries.iter().flat_map(move |entry| {
            let at = self.at[entry.unit as usize];
            let tiles = if at == NONE { 0 } else { entry.tiles as usize };
            (0..tiles).map(move |tile| {
                let (s, b) = (entry.s as usize + tile, at as usize + tile * GROUPS);
                (self.s[s * TILE..][..TILE].as_ptr(), self.b[b * TILE..][..GROUPS * TILE].as_ptr())
            })
        })
    }
}

#[cfg(target_arch = "x86_64")]
impl BTiles {
    /// Interleaves the weights of tiled units for up to 32 columns of y.
    pub fn fill(&mut self, delta: &Delta<'_>, tiles: Tiles, columns: &Range<usize>) {
        let (_, units, arena) = delta.tiling();
        self.at.clear();
        let mut count = 0;
        let meets = |unit: &Unit<'_>| unit.tiled && !both(&unit.columns(), columns).is_empty();
        self.at.extend(units.iter().map(|unit| {
            if !meets(unit) {
                return NONE;
            }
            count += unit.rank().div_ceil(RANKS) * GROUPS;
            (count - unit.rank().div_ceil(RANKS) * GROUPS) as u32
        }));
        self.tiles.reserve(count * TILE);
        for (unit, at) in units.iter().zip(&self.at).filter(|(_, at)| **at != NONE) {
            for pair in 0..unit.rank().div_ceil(RANKS) {
                for group in 0..GROUPS {
                    let first = columns.start + group * COLUMNS;
                    let rows = gather(unit, arena, pair, first..columns.end.min(first + COLUMNS));
                    let to = (*at as usize + pair * GROUPS + group) * TILE;
                    tiles.interleave(&rows, &mut self.tiles[to..][..TILE]);
                }
            }
        }
    }

    /// What a product adds, once [`BTiles::fill`] has been called for its columns.
    pub fn extra<'s>(&'s self, delta: &'s Delta<'_>) -> Extra<'s> {
        let (tiling, ..) = delta.tiling();
        Extra { start: &tiling.start, entries: &tiling.entries, s: &tiling.s, at: &self.at, b: &self.tiles }
    }
}

thread_local! {
    static B_TILES: std::cell::RefCell<BTiles> = std::cell::RefCell::default();
}

impl Delta<'_> {
    /// Adds tiled units to columns of y for some tokens, of which the first begins a tile.
    ///
    /// # Safety
    /// Nobody else may use these elements of y meanwhile.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn expand_tiled(
        &self,
        level: Level,
        columns: Range<usize>,
        tokens: Range<usize>,
        to: Target<'_, '_>,
    ) {
        let Some((_, tiles)) = level.tiles().filter(|_| self.has_tiled()) else { return };
        B_TILES.with_borrow_mut(|b| {
            for first in columns.clone().step_by(GROUPS * COLUMNS) {
                let some = first..columns.end.min(first + GROUPS * COLUMNS);
                b.fill(self, tiles, &some);
                let at = to.at + first - columns.start;
                let y = to.y.pointer(at, (tokens.len() - 1) * to.stride + some.len());
                // SAFETY: the caller's promise.
                unsafe { tiles.add(&b.extra(self), some.len(), tokens.clone(), y, to.stride) }
            }
        });
    }

    /// Nothing is left to tiles.
    #[cfg(not(target_arch = "x86_64"))]
    pub unsafe fn expand_tiled(&self, _: Level, _: Range<usize>, _: Range<usize>, _: Target<'_, '_>) {}
}

/// Rank rows of B for up to 16 columns of y, zeros where there are none.
fn gather(unit: &Unit<'_>, arena: &Arena<'_>, pair: usize, columns: Range<usize>) -> [[u16; COLUMNS]; RANKS] {
    let mut rows = [[0u16; COLUMNS]; RANKS];
    let shared = both(&unit.columns(), &columns);
    for chunk in unit.b_chunks().iter().filter(|chunk| chunk.rank_begin as usize / RANKS == pair) {
        let (begin, len) = (unit.column + chunk.begin as usize, chunk.len as usize);
        let shared = both(&shared, &(begin..begin + len));
        if shared.is_empty() {
            continue;
        }
        let weights = unit.weights(arena, chunk);
        let (to, count) = (shared.start - columns.start, shared.len());
        for row in 0..chunk.rows as usize {
            let from = &weights[(row * len + shared.start - begin) * 2..][..count * 2];
            let row = &mut rows[chunk.rank_begin as usize % RANKS + row];
            let halves = |(to, two): (&mut u16, &[u8])| *to = u16::from_le_bytes([two[0], two[1]]);
            match <&[u8; COLUMNS * 2]>::try_from(from) {
                // One vector: the length is known.
                Ok(whole) => row.iter_mut().zip(whole.chunks_exact(2)).for_each(halves),
                Err(_) => row[to..].iter_mut().zip(from.chunks_exact(2)).for_each(halves),
            }
        }
    }
    rows
}
