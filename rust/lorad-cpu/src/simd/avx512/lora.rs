//! LoRA by tiles, for adapters in bf16 and many tokens.
//!
//! Weights are bf16 as they are. Activations (and between shrink and expand s) are split into two bf16, the second being
//! what the first leaves: together they hold 17 bits, so that products are nearly those of f32; sums are f32.
//!
//! Shrink multiplies rank rows, straight from the page, with transposed activations: `[pairs of columns][tokens][2]`, made
//! once a call for all adapters and modules. Expand multiplies s, halves side by side, with two rank tiles of B whose rows
//! are interleaved, on top of y.

use std::arch::asm;
use std::arch::x86_64::*;

use lorad_blocks::layout::TILE_ROWS as RANK_ROWS;

use super::tiles::{tile, Shapes, Tiles, TILE_ROWS};

/// Columns of a block: what a tile takes at once.
pub const BLOCK: usize = 32;
/// Dwords of a tile.
const TILE: usize = 256;
/// Dwords of a block of 16 tokens: both halves.
pub const TRANSPOSED: usize = 2 * TILE;
/// Rank tiles that a product of expand takes: with both halves of s they fill a tile's 32 columns.
const PAIR: usize = 2;

/// tmm0 and tmm1: sums of 8 rank rows by 16 tokens; tmm2 and tmm3: rank rows; tmm4 and tmm5: activations, or tmm4: B;
/// tmm6: y; tmm7: s.
static SHAPES: Shapes = Shapes::new([8, 8, 8, 8, 16, 16, 16, 16]);

impl Tiles {
    /// Transposes the halves of 16 tokens' x, `[count, in_features]` with `count` up to 16, `in_features` a multiple of
    /// [`BLOCK`], to `[blocks]` of [`TRANSPOSED`] dwords. Tokens that don't exist are 0.
    pub fn transpose(self, x: &[f32], in_features: usize, to: &mut [u32]) {
        let blocks = in_features / BLOCK;
        assert!(in_features == blocks * BLOCK && x.len() <= TILE_ROWS * in_features);
        assert!(x.len().is_multiple_of(in_features) && to.len() == blocks * TRANSPOSED);
        // SAFETY: `self` proves the features; the lengths fit.
        unsafe { transpose(x, in_features, to.as_mut_ptr()) }
    }

    /// `sums[chunk][j][t] = Σ_i x[t, i] · a[chunk][j, i]` for one or two chunks of 8 rank rows `[8, len]` in bf16 and 16
    /// transposed tokens, from the chunks' first column on.
    pub fn shrink(self, a: &[&[u8]], len: usize, x: &[u32], sums: &mut [[[f32; 16]; RANK_ROWS]; PAIR]) {
        let blocks = len / BLOCK;
        assert!((1..=PAIR).contains(&a.len()) && len == blocks * BLOCK && x.len() >= blocks * TRANSPOSED);
        assert!(a.iter().all(|a| a.len() >= RANK_ROWS * len * 2));
        // SAFETY: `self` proves the features; the asserts bound what is read.
        unsafe {
            SHAPES.load();
            let (a, second) = (a[0].as_ptr(), a.get(1).map_or(std::ptr::null(), |a| a.as_ptr()));
            tile!(zero 0);
            tile!(zero 1);
            for block in 0..blocks {
                let (x, at) = (x.as_ptr().add(block * TRANSPOSED), block * BLOCK * 2);
                tile!(load 4, x, 64usize);
                tile!(load 5, x.add(TILE), 64usize);
                tile!(load 2, a.add(at), len * 2);
                tile!(multiply 0, 2, 4);
                tile!(multiply 0, 2, 5);
                if !second.is_null() {
                    tile!(load 3, second.add(at), len * 2);
                    tile!(multiply 1, 3, 4);
                    tile!(multiply 1, 3, 5);
                }
            }
            tile!(store 0, sums[0].as_mut_ptr(), 16usize);
            tile!(store 1, sums[1].as_mut_ptr(), 16usize);
            asm!("tilerelease", options(nostack, nomem, preserves_flags));
        }
    }

    /// `y[t, c] += Σ_j s[t, j] · b[j, c]` for whole tiles of 16 tokens and 16 columns; `b` are rank tiles of 8 rows in
    /// bf16, `b_stride` elements apart, `s` `[tokens, 8]` for each.
    ///
    /// # Safety
    /// `y`, whose rows are `y_stride` apart, is this call's.
    pub unsafe fn expand(
        self,
        b: &[(&[u8], usize)],
        s: &[&[f32]],
        tokens: usize,
        columns: usize,
        y: *mut f32,
        y_stride: usize,
    ) {
        assert!(tokens.is_multiple_of(TILE_ROWS) && columns.is_multiple_of(16) && b.len() == s.len());
        for ((weights, stride), s) in b.iter().zip(s) {
            assert!(
                weights.len() >= ((RANK_ROWS - 1) * stride + columns) * 2 && s.len() >= tokens * RANK_ROWS
            );
        }
        // SAFETY: `self` proves the features, the asserts bound what is read, the caller owns y.
        unsafe { expand(b, s, tokens, columns, y, y_stride) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn expand(
    b: &[(&[u8], usize)],
    s: &[&[f32]],
    tokens: usize,
    columns: usize,
    y: *mut f32,
    y_stride: usize,
) {
    /// Rank tiles, tokens: as many as a call has.
    const PAIRS_MAX: usize = 4;
    const TOKEN_TILES_MAX: usize = 4;
    let (pairs, token_tiles) = (b.len().div_ceil(PAIR), tokens / TILE_ROWS);
    assert!(pairs <= PAIRS_MAX && token_tiles <= TOKEN_TILES_MAX);
    #[repr(C, align(64))]
    struct Halves([[u32; TILE]; PAIRS_MAX * TOKEN_TILES_MAX]);
    #[repr(C, align(64))]
    struct Interleaved([[u32; TILE]; PAIRS_MAX]);
    let (mut halves, mut rows) =
        (Halves([[0; TILE]; PAIRS_MAX * TOKEN_TILES_MAX]), Interleaved([[0; TILE]; PAIRS_MAX]));
    // SAFETY: the wrapper's asserts.
    unsafe {
        for pair in 0..pairs {
            let first = s[pair * PAIR];
            for t in 0..tokens {
                let low = _mm256_loadu_ps(first.as_ptr().add(t * RANK_ROWS));
                let high = s
                    .get(pair * PAIR + 1)
                    .map_or(_mm256_setzero_ps(), |s| _mm256_loadu_ps(s.as_ptr().add(t * RANK_ROWS)));
                let both = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high);
                let (upper, lower) = split(both);
                let to = halves.0[pair * token_tiles + t / TILE_ROWS].as_mut_ptr().add(t % TILE_ROWS * 16);
                _mm256_store_si256(to.cast(), upper);
                _mm256_store_si256(to.add(8).cast(), lower);
            }
        }
        SHAPES.load();
        for column in (0..columns).step_by(16) {
            for pair in 0..pairs {
                for half in 0..PAIR.min(b.len() - pair * PAIR) {
                    let (weights, stride) = b[pair * PAIR + half];
                    let from = weights.as_ptr().add(column * 2);
                    for two in 0..RANK_ROWS / 2 {
                        let even = _mm256_loadu_si256(from.add(two * 2 * stride * 2).cast());
                        let odd = _mm256_loadu_si256(from.add((two * 2 + 1) * stride * 2).cast());
                        let odd = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(odd));
                        let both = _mm512_or_si512(_mm512_cvtepu16_epi32(even), odd);
                        // For both halves of s.
                        let to = rows.0[pair].as_mut_ptr().add((half * RANK_ROWS / 2 + two) * 16);
                        _mm512_store_si512(to.cast(), both);
                        _mm512_store_si512(to.add(TILE / 2).cast(), both);
                    }
                }
            }
            for token_tile in 0..token_tiles {
                let y = y.add(token_tile * TILE_ROWS * y_stride + column);
                tile!(load 6, y, y_stride * 4);
                for pair in 0..pairs {
                    tile!(load 7, halves.0[pair * token_tiles + token_tile].as_ptr(), 64usize);
                    tile!(load 4, rows.0[pair].as_ptr(), 64usize);
                    tile!(multiply 6, 7, 4);
                }
                tile!(store 6, y, y_stride);
            }
        }
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
}

/// Two bf16 that add up to each element.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
#[inline]
unsafe fn split(value: __m512) -> (__m256i, __m256i) {
    // SAFETY: 16 bf16 either way.
    unsafe {
        let upper = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value));
        let wide = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(upper)));
        let rest = _mm512_cvtneps_pbh(_mm512_sub_ps(value, wide));
        (upper, std::mem::transmute::<__m256bh, __m256i>(rest))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn transpose(x: &[f32], in_features: usize, to: *mut u32) {
    let tokens = x.len() / in_features;
    for block in 0..in_features / BLOCK {
        // SAFETY: the wrapper's asserts.
        unsafe {
            let (mut upper, mut lower) = ([_mm512_setzero_si512(); 16], [_mm512_setzero_si512(); 16]);
            for t in 0..tokens {
                let from = x.as_ptr().add(t * in_features + block * BLOCK);
                let (first, second) = (split(_mm512_loadu_ps(from)), split(_mm512_loadu_ps(from.add(16))));
                let join = |low, high| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                (upper[t], lower[t]) = (join(first.0, second.0), join(first.1, second.1));
            }
            let to = to.add(block * TRANSPOSED);
            store_transposed(upper, to);
            store_transposed(lower, to.add(TILE));
        }
    }
}

/// Writes 16 by 16 dwords, rows becoming columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
#[inline]
unsafe fn store_transposed(rows: [__m512i; 16], to: *mut u32) {
    // SAFETY: `to` takes 256 dwords.
    unsafe {
        let mut pairs = rows;
        for i in (0..16).step_by(2) {
            pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        let mut fours = pairs;
        for i in (0..16).step_by(4) {
            fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
            fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
            fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
            fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
        }
        // fours[4 g + c] holds, in 128-bit lane l, column 4 l + c of rows 4 g to 4 g + 3.
        for c in 0..4 {
            let (a, b) = (fours[c], fours[4 + c]);
            let (d, e) = (fours[8 + c], fours[12 + c]);
            let low = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(d, e));
            let high = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(d, e));
            let lanes = [
                _mm512_shuffle_i32x4::<0x88>(low.0, low.1),
                _mm512_shuffle_i32x4::<0x88>(high.0, high.1),
                _mm512_shuffle_i32x4::<0xdd>(low.0, low.1),
                _mm512_shuffle_i32x4::<0xdd>(high.0, high.1),
            ];
            for (lane, value) in lanes.into_iter().enumerate() {
                _mm512_storeu_si512(to.add((lane * 4 + c) * 16).cast(), value);
            }
        }
    }
}
