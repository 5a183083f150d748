//! What LoRA by tiles needs beside products: weights of A transposed, those of B interleaved, s in two halves.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::tiles::{tile, Tiles, SHAPES};
use crate::lora::{RANKS, TILE, TILE_COLUMNS, TOKENS};

/// Dwords of a tile.
const DWORDS: usize = TILE / 2;
/// Rank rows of a chunk at most.
const ROWS: usize = lorad_blocks::layout::TILE_ROWS;
/// Tiles of tokens that share those of A.
const AT_ONCE: usize = 4;

impl Tiles {
    /// Writes rank rows of A `[rows, len]` in bf16 to tiles `[blocks of 32 columns]` of `[pairs of columns][16 rank rows][2]`,
    /// from rank row `rank`, 0 or 8, on. Rows beyond `rows` are 0 then.
    pub fn transpose(self, a: &[u8], rows: usize, rank: usize, to: &mut [u32]) {
        let len = a.len() / 2 / rows;
        assert!((1..=ROWS).contains(&rows) && a.len() == rows * len * 2 && len.is_multiple_of(TILE_COLUMNS));
        assert!((rank == 0 || rank == ROWS) && to.len() >= len / TILE_COLUMNS * DWORDS);
        // SAFETY: `self` proves the features; the asserts bound all accesses.
        unsafe { transpose(a.as_ptr(), rows, len, to.as_mut_ptr().add(rank)) }
    }

    /// `sums[tile][t][j] (+)= Σ_i x[tile][t, i] · a[j, i]`: tiles of x one after the other, `add`ed or set.
    pub fn shrink(self, a: &[u32], blocks: usize, x: &[u16], sums: &mut [[f32; TOKENS * RANKS]], add: bool) {
        assert!((1..=AT_ONCE).contains(&sums.len()));
        assert!(a.len() >= blocks * DWORDS && x.len() >= sums.len() * blocks * TILE);
        // SAFETY: `self` proves the features, the asserts bound what is read, the sums are whole tiles.
        unsafe {
            SHAPES.load();
            match sums.len() {
                1 => shrink::<1>(a.as_ptr(), blocks, x.as_ptr(), sums, add),
                2 => shrink::<2>(a.as_ptr(), blocks, x.as_ptr(), sums, add),
                3 => shrink::<3>(a.as_ptr(), blocks, x.as_ptr(), sums, add),
                _ => shrink::<AT_ONCE>(a.as_ptr(), blocks, x.as_ptr(), sums, add),
            }
            asm!("tilerelease", options(nostack, nomem, preserves_flags));
        }
    }

    /// scale · sums as a tile of s; rows of other tokens than `mine` are 0.
    pub fn halve(self, sums: &[f32; TOKENS * RANKS], scale: f32, mine: Range<usize>, s: &mut [u16]) {
        assert!(s.len() == TILE && mine.end <= TOKENS);
        s.fill(0);
        for t in mine {
            // SAFETY: `self` proves the features; token t has 16 sums and 32 halves.
            unsafe { halve(sums.as_ptr().add(t * RANKS), scale, s.as_mut_ptr().add(t * 2 * RANKS)) }
        }
    }

    /// 16 rank rows of 16 columns as a tile `[pairs of rank rows, twice][16 columns][2]`: for both halves of s.
    pub fn interleave(self, rows: &[[u16; 16]; RANKS], to: &mut [u16]) {
        assert!(to.len() == TILE);
        // SAFETY: `self` proves the features; a tile has 16 lines.
        unsafe { interleave(rows, to.as_mut_ptr()) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn transpose(a: *const u8, rows: usize, len: usize, to: *mut u32) {
    // SAFETY: the wrapper's asserts.
    unsafe {
        // 128-bit parts of two vectors by turns.
        let low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
        let high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
        for block in 0..len / TILE_COLUMNS {
            let mut row = [_mm512_setzero_si512(); ROWS];
            for (j, row) in row.iter_mut().enumerate().take(rows) {
                *row = _mm512_loadu_si512(a.add((j * len + block * TILE_COLUMNS) * 2).cast());
            }
            let mut pairs = row;
            for i in (0..ROWS).step_by(2) {
                pairs[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
                pairs[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
            }
            let mut fours = pairs;
            for i in (0..ROWS).step_by(4) {
                fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
                fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
                fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
                fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
            }
            // fours[4 g + c] holds, in 128-bit part l, pair of columns 4 l + c of rows 4 g to 4 g + 3.
            let to = to.add(block * DWORDS);
            for c in 0..4 {
                for (l, order) in [(0, low), (2, high)] {
                    let two = _mm512_permutex2var_epi64(fours[c], order, fours[4 + c]);
                    let to = to.add((4 * l + c) * RANKS);
                    _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(two));
                    _mm256_storeu_si256(to.add(4 * RANKS).cast(), _mm512_extracti64x4_epi64::<1>(two));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn shrink<const T: usize>(
    a: *const u32,
    blocks: usize,
    x: *const u16,
    sums: &mut [[f32; TOKENS * RANKS]],
    add: bool,
) {
    // SAFETY: the wrapper's asserts.
    unsafe {
        tile!(zero 0);
        tile!(zero 1);
        tile!(zero 2);
        tile!(zero 3);
        if add {
            tile!(load 0, sums[0].as_ptr(), 64usize);
            if T > 1 {
                tile!(load 1, sums[1].as_ptr(), 64usize);
            }
            if T > 2 {
                tile!(load 2, sums[2].as_ptr(), 64usize);
            }
            if T > 3 {
                tile!(load 3, sums[3].as_ptr(), 64usize);
            }
        }
        for block in 0..blocks {
            let x = |tile: usize| x.add((tile * blocks + block) * TILE);
            tile!(load 7, a.add(block * DWORDS), 64usize);
            tile!(load 4, x(0), 64usize);
            tile!(multiply 0, 4, 7);
            if T > 1 {
                tile!(load 5, x(1), 64usize);
                tile!(multiply 1, 5, 7);
            }
            if T > 2 {
                tile!(load 6, x(2), 64usize);
                tile!(multiply 2, 6, 7);
            }
            if T > 3 {
                tile!(load 4, x(3), 64usize);
                tile!(multiply 3, 4, 7);
            }
        }
        tile!(store 0, sums[0].as_mut_ptr(), RANKS);
        if T > 1 {
            tile!(store 1, sums[1].as_mut_ptr(), RANKS);
        }
        if T > 2 {
            tile!(store 2, sums[2].as_mut_ptr(), RANKS);
        }
        if T > 3 {
            tile!(store 3, sums[3].as_mut_ptr(), RANKS);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn halve(sums: *const f32, scale: f32, s: *mut u16) {
    // SAFETY: 16 sums, 32 halves.
    unsafe {
        let value = _mm512_mul_ps(_mm512_loadu_ps(sums), _mm512_set1_ps(scale));
        let (upper, lower) = split(value);
        _mm256_storeu_si256(s.cast(), upper);
        _mm256_storeu_si256(s.add(RANKS).cast(), lower);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn interleave(rows: &[[u16; 16]; RANKS], to: *mut u16) {
    // SAFETY: the wrapper's assert.
    unsafe {
        for (two, rows) in rows.chunks_exact(2).enumerate() {
            let even = _mm512_cvtepu16_epi32(_mm256_loadu_si256(rows[0].as_ptr().cast()));
            let odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256(rows[1].as_ptr().cast()));
            let both = _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd));
            _mm512_storeu_si512(to.add(two * 32).cast(), both);
            _mm512_storeu_si512(to.add((RANKS / 2 + two) * 32).cast(), both);
        }
    }
}

/// Two bf16 that add up to each element.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
#[inline]
pub(super) unsafe fn split(value: __m512) -> (__m256i, __m256i) {
    // SAFETY: 16 bf16 either way.
    unsafe {
        let upper = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value));
        let wide = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(upper)));
        let rest = _mm512_cvtneps_pbh(_mm512_sub_ps(value, wide));
        (upper, std::mem::transmute::<__m256bh, __m256i>(rest))
    }
}
