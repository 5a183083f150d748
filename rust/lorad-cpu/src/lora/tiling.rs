//! Which parts of the work tiles take (AMX): adapters in bf16, units of many tokens, chunks that divide.

use lorad_blocks::layout::{Chunk, TILE_ROWS};

use super::{weights, ExpandTile, Unit};
use crate::aligned::Aligned;
use crate::cpu::Cpu;
use crate::shared::{Arena, Parts};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Tiles, LORA_BLOCK, TRANSPOSED};

/// Tokens of a tile.
const TOKENS: usize = 16;

/// A call's activations, transposed for tiles.
#[cfg(target_arch = "x86_64")]
pub struct Tiling<'a> {
    tiles: Tiles,
    /// `[tiles of 16 tokens][blocks]`.
    x: &'a [u32],
    blocks: usize,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Tiling<'a> {
    /// Transposes x `[n, in_features]`, if this CPU has tiles and the width is whole blocks.
    pub fn new(cpu: &Cpu, x: &[f32], in_features: usize, to: &'a mut Aligned<u32>) -> Option<Self> {
        let (_, tiles) = cpu.level.tiles()?;
        if !in_features.is_multiple_of(LORA_BLOCK) {
            return None;
        }
        let (blocks, n) = (in_features / LORA_BLOCK, x.len() / in_features);
        let (count, each) = (n.div_ceil(TOKENS), blocks * TRANSPOSED);
        to.reserve(count * each);
        let parts = Parts::new(to);
        cpu.pool.run(count, &|tile| {
            let x = &x[tile * TOKENS * in_features..n.min((tile + 1) * TOKENS) * in_features];
            // SAFETY: tasks have disjoint tiles.
            tiles.transpose(x, in_features, unsafe { parts.part(tile * each, each) });
        });
        Some(Self { tiles, x: to, blocks })
    }

    /// Whether tiles take this chunk of A.
    pub fn shrinks(chunk: &Chunk) -> bool {
        let whole = |columns: u32| (columns as usize).is_multiple_of(LORA_BLOCK);
        chunk.rows as usize == TILE_ROWS && whole(chunk.begin) && whole(chunk.len)
    }

    /// Shrinks with one chunk or two of the same columns.
    pub fn shrink(
        &self,
        arena: &Arena<'_>,
        unit: &Unit<'_>,
        first: &Chunk,
        second: Option<&Chunk>,
        s: &Parts<'_, f32>,
    ) {
        let chunks = [Some(first), second];
        let bytes = chunks.map(|chunk| chunk.map_or(&[][..], |chunk| weights(arena, unit.slot, chunk)));
        let count = 1 + usize::from(second.is_some());
        let (tokens, len) = (unit.tokens.len(), first.len as usize);
        let mut sums = [[[0f32; TOKENS]; TILE_ROWS]; 2];
        for tile in unit.tokens.start / TOKENS..unit.tokens.end.div_ceil(TOKENS) {
            let x = &self.x[(tile * self.blocks + first.begin as usize / LORA_BLOCK) * TRANSPOSED..];
            self.tiles.shrink(&bytes[..count], len, x, &mut sums);
            let (begin, end) =
                (unit.tokens.start.max(tile * TOKENS), unit.tokens.end.min((tile + 1) * TOKENS));
            for (chunk, sums) in chunks.iter().flatten().zip(&sums) {
                let at = unit.s_begin + chunk.rank_begin as usize * tokens;
                // SAFETY: tasks of a phase have disjoint (unit, tile).
                let s = unsafe {
                    s.part(at + (begin - unit.tokens.start) * TILE_ROWS, (end - begin) * TILE_ROWS)
                };
                for (t, s) in (begin - tile * TOKENS..).zip(s.chunks_exact_mut(TILE_ROWS)) {
                    for (s, sums) in s.iter_mut().zip(sums) {
                        *s = if chunk.begin > 0 { *s + sums[t] } else { sums[t] };
                    }
                }
            }
        }
    }

    /// Expands whole tiles of tokens; returns how many tokens that were: the others are left.
    pub fn expand(
        &self,
        tiles: &[ExpandTile<'_>],
        tokens: usize,
        columns: usize,
        y: &Parts<'_, f32>,
        y_begin: usize,
        y_stride: usize,
    ) -> usize {
        let fits = columns.is_multiple_of(16) && tiles.iter().all(|tile| tile.rows == TILE_ROWS);
        let whole = tokens / TOKENS * TOKENS;
        if !fits || whole == 0 {
            return 0;
        }
        let none: (&[u8], usize) = (&[], 0);
        let (mut b, mut s) = ([none; super::TILES_MAX], [&[][..]; super::TILES_MAX]);
        for ((b, s), tile) in b.iter_mut().zip(&mut s).zip(tiles) {
            (*b, *s) = ((tile.weights, tile.stride), tile.coefficients);
        }
        let y = y.pointer(y_begin, (whole - 1) * y_stride + columns);
        // SAFETY: tasks of a phase have disjoint (unit, columns).
        unsafe { self.tiles.expand(&b[..tiles.len()], &s[..tiles.len()], whole, columns, y, y_stride) }
        whole
    }
}

/// Nothing: only x86 has tiles.
#[cfg(not(target_arch = "x86_64"))]
pub struct Tiling<'a>(std::convert::Infallible, &'a ());

#[cfg(not(target_arch = "x86_64"))]
impl<'a> Tiling<'a> {
    pub fn new(_: &Cpu, _: &[f32], _: usize, _: &'a mut Aligned<u32>) -> Option<Self> {
        None
    }

    pub fn shrinks(_: &Chunk) -> bool {
        false
    }

    pub fn shrink(&self, _: &Arena<'_>, _: &Unit<'_>, _: &Chunk, _: Option<&Chunk>, _: &Parts<'_, f32>) {
        match self.0 {}
    }

    pub fn expand(
        &self,
        _: &[ExpandTile<'_>],
        _: usize,
        _: usize,
        _: &Parts<'_, f32>,
        _: usize,
        _: usize,
    ) -> usize {
        match self.0 {}
    }
}
