//! Paged attention: decode and chunked prefill in one call, straight from the pages.
//!
//! Online softmax over blocks of keys at absolute positions, so a token's result doesn't depend on how its prompt was
//! cut into chunks, nor on the other rows. Work is cut by (row, kv head, tile of queries); a tile takes the query heads
//! that share the kv head together, so K and V are read once for them.
#![allow(unsafe_code)] // tiles write disjoint parts of `out`

use std::cell::RefCell;

use crate::cpu::Cpu;
#[cfg(target_arch = "x86_64")]
use crate::cpu::Level;
use crate::error::{length, require};
use crate::kv::{KvGeometry, PageTable};
use crate::number::Number;
use crate::shared::{Arena, Parts};
use crate::{with_number, OpError};

/// Queries of a tile: (token, head) pairs.
pub const TILE_QUERIES: usize = 12;
/// Keys of a softmax block, if a page isn't larger.
pub const BLOCK_KEYS: usize = 64;

/// The window of a layer without one.
pub const ALL_KEYS: usize = usize::MAX;

/// Rows of the step.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// `[rows]` line of the page table.
    pub line: &'a [i32],
    /// `[rows]` tokens in the pages before this step.
    pub start: &'a [i32],
    /// `[rows + 1]` where the row's new tokens begin.
    pub offset: &'a [i32],
}

/// A tile of queries against the keys of one kv head.
pub struct Tile<'a> {
    /// f32 `[queries, head_dim]`, scaled.
    pub q: &'a [f32],
    /// `[queries]` first key that each query sees, ascending, below `seen`.
    pub first: &'a [usize],
    /// `[queries]` end of the keys that each query sees, ascending, at least 1.
    pub seen: &'a [usize],
    /// Pages of the line, enough for the last query.
    pub pages: &'a [i32],
    /// The page arena.
    pub arena: &'a Arena<'a>,
    /// Geometry of the pages.
    pub geometry: KvGeometry,
    /// Where K begins in a page.
    pub key_offset: usize,
    /// The first K of the tile that comes next, to be fetched meanwhile; may be empty.
    pub next: &'a [u8],
}

impl Tile<'_> {
    /// Keys of a softmax block: whole pages.
    pub fn block_keys(&self) -> usize {
        block_keys(self.geometry.page_tokens)
    }

    /// Where the block of `key` begins. Blocks lie at absolute positions whatever the tile sees of them, so that a query's
    /// sums are made in the same order in every tile.
    pub fn block_begin(&self, key: usize) -> usize {
        key / self.block_keys() * self.block_keys()
    }

    /// K `[head_dim, token]` and V `[token, head_dim]` of the line's page `column`.
    pub fn key_value(&self, column: usize) -> (&[u8], &[u8]) {
        let (page, bytes) = (self.pages[column] as usize, self.geometry.block_bytes());
        // SAFETY: the pages belong to this row, and its K and V were written before attention began.
        unsafe {
            (
                self.arena.read(page, self.key_offset, bytes),
                self.arena.read(page, self.key_offset + self.geometry.value_bytes(), bytes),
            )
        }
    }
}

fn block_keys(page_tokens: usize) -> usize {
    (BLOCK_KEYS / page_tokens).max(1) * page_tokens
}

/// What a tile keeps while it walks over the keys; reused from tile to tile.
#[derive(Default)]
pub struct State {
    /// Scaled queries.
    q: Vec<f32>,
    /// f32 `[queries, block_keys]`.
    pub scores: Vec<f32>,
    /// f32 `[queries, head_dim]`: Σ exp(score − max) · v.
    pub acc: Vec<f32>,
    /// `[queries]`: Σ exp(score − max).
    pub sum: [f32; TILE_QUERIES],
    /// `[queries]`.
    pub max: [f32; TILE_QUERIES],
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

struct Item {
    row: usize,
    head: usize,
    /// First query, counted token by token, within a token head by head.
    begin: usize,
    end: usize,
    /// First key that the first query sees.
    first: usize,
}

/// Causal attention of the step's tokens over their rows' pages; a token at position p sees the keys
/// `max(0, p + 1 − window) ..= p`, all up to its own with [`ALL_KEYS`].
///
/// `out` f32 `[n, heads · head_dim]`; `q` f32 `[n, q_width]`, heads in the first columns. The K and V of the step's own
/// tokens are in the pages already.
pub fn paged_attention(
    cpu: &Cpu,
    out: &mut [f32],
    q: &[f32],
    q_width: usize,
    arena: &Arena<'_>,
    geometry: KvGeometry,
    layer: usize,
    table: PageTable<'_>,
    rows: Rows<'_>,
    heads: usize,
    scale: f32,
    window: usize,
) -> Result<(), OpError> {
    geometry.check(arena, layer)?;
    require(window > 0, "window must be positive", window)?;
    let (head_dim, kv_heads) = (geometry.head_dim, geometry.kv_heads);
    require(heads > 0 && heads.is_multiple_of(kv_heads), "heads must be a multiple of kv_heads", heads)?;
    let shared = heads / kv_heads;
    let width = heads * head_dim;
    require(q_width >= width, "q must have all heads: width", q_width)?;
    let n = q.len() / q_width;
    length("q", n * q_width, q.len())?;
    length("out", n * width, out.len())?;
    let count = rows.line.len();
    length("row_start", count, rows.start.len())?;
    length("row_offset", count + 1, rows.offset.len())?;

    let (mut items, mut costs, mut row_pages) = (Vec::new(), Vec::new(), Vec::with_capacity(count));
    for row in 0..count {
        let (begin, end, start) = (rows.offset[row], rows.offset[row + 1], rows.start[row]);
        let fits = 0 <= begin && begin <= end && end as usize <= n && start >= 0;
        require(fits, "row_offset must ascend within n and row_start be positive: row", row)?;
        let tokens = (end - begin) as usize;
        let keys = start as usize + tokens;
        row_pages.push(table.pages(rows.line[row], keys.div_ceil(geometry.page_tokens), arena)?);
        for head in 0..kv_heads {
            for first in (0..tokens * shared).step_by(TILE_QUERIES) {
                let last = (tokens * shared).min(first + TILE_QUERIES);
                let first_key = (start as usize + first / shared + 1).saturating_sub(window);
                let keys = start as usize + last.div_ceil(shared) - first_key;
                costs.push((keys + 16) * (last - first + 2));
                items.push(Item { row, head, begin: first, end: last, first: first_key });
            }
        }
    }
    let out = Parts::new(out);
    let pages = &row_pages;
    let run = |item: &Item, next: Option<&Item>, state: &mut State| {
        let first_token = rows.offset[item.row] as usize;
        let column = |query: usize| (item.head * shared + query % shared) * head_dim;
        let queries = item.end - item.begin;
        let (mut first, mut seen) = ([0; TILE_QUERIES], [0; TILE_QUERIES]);
        state.q.clear();
        for ((query, seen), first) in (item.begin..item.end).zip(&mut seen).zip(&mut first) {
            let token = query / shared;
            *seen = rows.start[item.row] as usize + token + 1;
            *first = seen.saturating_sub(window);
            let q = &q[(first_token + token) * q_width + column(query)..][..head_dim];
            state.q.extend(q.iter().map(|q| q * scale));
        }
        let q = std::mem::take(&mut state.q);
        let key_offset = geometry.key_offset(layer, item.head);
        let next = next.map_or(&[][..], |next| {
            let block = block_keys(geometry.page_tokens);
            let column = next.first / block * block / geometry.page_tokens;
            let (page, offset) = (pages[next.row][column] as usize, geometry.key_offset(layer, next.head));
            // SAFETY: as in `Tile::key_value`.
            unsafe { arena.read(page, offset, geometry.block_bytes()) }
        });
        let tile = Tile {
            q: &q,
            first: &first[..queries],
            seen: &seen[..queries],
            pages: pages[item.row],
            arena,
            geometry,
            key_offset,
            next,
        };
        state.scores.resize((TILE_QUERIES * tile.block_keys()).max(state.scores.len()), 0.0);
        state.acc.clear();
        state.acc.resize(queries * head_dim, 0.0);
        state.sum = [0.0; TILE_QUERIES];
        state.max = [f32::NEG_INFINITY; TILE_QUERIES];
        #[cfg(target_arch = "x86_64")]
        let fits = |lanes| geometry.page_tokens.is_multiple_of(lanes) && head_dim % lanes == 0;
        with_number!(geometry.element, N => match cpu.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_, avx512) if fits(16) => avx512.attend::<N>(&tile, state),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) | Level::Avx512(avx2, _) if fits(8) => avx2.attend::<N>(&tile, state),
            _ => attend_scalar::<N>(&tile, state),
        });
        for (index, query) in (item.begin..item.end).enumerate() {
            let at = (first_token + query / shared) * width + column(query);
            // SAFETY: each (token, head) is in one item.
            let out = unsafe { out.part(at, head_dim) };
            let factor = 1.0 / state.sum[index];
            for (out, acc) in out.iter_mut().zip(&state.acc[index * head_dim..]) {
                *out = acc * factor;
            }
        }
        state.q = q;
    };
    cpu.pool.run_balanced(&costs, &|range| {
        STATE.with_borrow_mut(|state| {
            range.clone().for_each(|i| run(&items[i], items[..range.end].get(i + 1), state))
        });
    });
    Ok(())
}

/// `acc[q] = Σ_k exp(q·k − max) v`, `sum[q] = Σ_k exp(q·k − max)`, over the keys that q sees.
pub fn attend_scalar<N: Number>(tile: &Tile<'_>, state: &mut State) {
    let KvGeometry { page_tokens, head_dim, .. } = tile.geometry;
    let block = tile.block_keys();
    for (query, (&first, &seen)) in tile.first.iter().zip(tile.seen).enumerate() {
        let q = &tile.q[query * head_dim..][..head_dim];
        let acc = &mut state.acc[query * head_dim..][..head_dim];
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0f32);
        for block_begin in (tile.block_begin(first)..seen).step_by(block) {
            let begin = block_begin.max(first);
            let scores = &mut state.scores[..(block_begin + block).min(seen) - begin];
            for (key, score) in scores.iter_mut().enumerate() {
                let (k, _) = tile.key_value((begin + key) / page_tokens);
                let slot = (begin + key) % page_tokens;
                *score = q.iter().enumerate().map(|(d, q)| q * N::get(k, d * page_tokens + slot)).sum();
            }
            // A NaN score is kept by exp and so by the sum.
            let new_max = scores.iter().copied().fold(max, f32::max);
            if new_max > max {
                let factor = (max - new_max).exp();
                sum *= factor;
                acc.iter_mut().for_each(|acc| *acc *= factor);
                max = new_max;
            }
            for (key, score) in scores.iter().enumerate() {
                let weight = (score - max).exp();
                sum += weight;
                let (_, v) = tile.key_value((begin + key) / page_tokens);
                let slot = (begin + key) % page_tokens;
                for (d, acc) in acc.iter_mut().enumerate() {
                    *acc += weight * N::get(v, slot * head_dim + d);
                }
            }
        }
        (state.max[query], state.sum[query]) = (max, sum);
    }
}
