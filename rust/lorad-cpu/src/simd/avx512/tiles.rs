//! Products of bf16 by tiles (AMX): 16 tokens by 16 rows by 32 columns in one instruction, sums in f32.
//!
//! Weights are widened to f32 as the file has them and rounded to bf16, so are activations: both lose 2^-9 of an element at
//! most, less than 8-bit activations do, whose step is 1/127 of the largest of 32. The sums of a row are made in one order,
//! but not in that of the integer products.
//!
//! Adapters' parts are further products on the same sums, see [`crate::lora`].
//!
//! The compiler has no stable intrinsics for tiles, hence assembly. It never uses tile registers itself, so nothing need be
//! said of those: tmm0 to tmm3 are sums, tmm4 and tmm5 activations, tmm6 and tmm7 weights.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::lora::split;
use super::panel::{Meaning, WidePanel, WIDE, WIDE_BLOCK};
use crate::aligned::Aligned;
use crate::lora::Extra;
use crate::quant::kernel::BLOCK;

/// One instruction on tiles; a stride of a store is in elements of 4 bytes.
macro_rules! tile {
    (zero $tile:literal) => {
        asm!(concat!("tilezero tmm", $tile), options(nostack, nomem, preserves_flags))
    };
    (load $tile:literal, $from:expr, $row_bytes:expr) => {
        asm!(concat!("tileloadd tmm", $tile, ", [{from} + {line}]"),
            from = in(reg) $from, line = in(reg) $row_bytes, options(nostack, readonly, preserves_flags))
    };
    (multiply $sums:literal, $x:literal, $w:literal) => {
        asm!(concat!("tdpbf16ps tmm", $sums, ", tmm", $x, ", tmm", $w),
            options(nostack, nomem, preserves_flags))
    };
    (store $tile:literal, $to:expr, $stride:expr) => {
        asm!(concat!("tilestored [{to} + {stride}], tmm", $tile),
            to = in(reg) $to, stride = in(reg) $stride * 4, options(nostack, preserves_flags))
    };
}
pub(super) use tile;

/// Rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Elements of a tile: 16 rows of 32 bf16.
pub(super) const TILE: usize = TILE_ROWS * BLOCK;

/// Proof that the CPU multiplies tiles of bf16 and that the system lets this process use them.
#[derive(Clone, Copy, Debug)]
pub struct Tiles(());

impl Tiles {
    /// The proof, where it holds.
    pub fn detect() -> Option<Self> {
        // Leaf 7, edx: AMX-BF16 is bit 22, AMX-TILE bit 24.
        let edx = __cpuid_count(7, 0).edx;
        let found = edx >> 22 & 1 == 1 && edx >> 24 & 1 == 1 && is_x86_feature_detected!("avx512bf16");
        (found && permitted()).then_some(Self(()))
    }

    /// Rounds x `[tokens, blocks · 32]` to tiles `[tokens / 16, blocks]` of `[16 tokens][32]`; tokens beyond the last are 0.
    /// `second` takes what that leaves, rounded too.
    pub fn round(self, x: &[f32], blocks: usize, first: &mut [u16], second: Option<&mut [u16]>) {
        let cols = blocks * BLOCK;
        let tokens = x.len() / cols;
        let length = tokens.next_multiple_of(TILE_ROWS) * cols;
        assert!(x.len() == tokens * cols && first.len() == length);
        let last = tokens / TILE_ROWS * TILE_ROWS * cols;
        first[if tokens.is_multiple_of(TILE_ROWS) { length } else { last }..].fill(0);
        match second {
            // SAFETY: `self` proves the features; the lengths fit.
            None => unsafe { round(x, tokens, blocks, first.as_mut_ptr()) },
            Some(second) => {
                assert!(second.len() == length);
                second[last..].fill(0);
                // SAFETY: as above.
                unsafe { halves(x, tokens, blocks, first.as_mut_ptr(), second.as_mut_ptr()) }
            }
        }
    }

    /// Multiplies tokens, rounded by [`Tiles::round`], with the rows of a panel, and adds what is `extra`; y's row t is
    /// `y_stride` after the last.
    ///
    /// # Safety
    /// `y` is good for the panel's rows of each of the tokens; this thread has called [`Tiles::enter`] and not yet
    /// [`Tiles::leave`].
    pub unsafe fn multiply(
        self,
        panel: &TilePanel,
        x: &[u16],
        extra: Option<&Extra<'_>>,
        tokens: Range<usize>,
        y: *mut f32,
        y_stride: usize,
    ) {
        let TilePanel { blocks, rows, .. } = *panel;
        assert!(tokens.start.is_multiple_of(TILE_ROWS) && rows > 0);
        assert!(x.len() >= tokens.end.next_multiple_of(TILE_ROWS) * blocks * BLOCK);
        // SAFETY: `self` proves the features; the asserts bound x, the panel is whole, the caller owns y.
        unsafe {
            let mut t = tokens.start;
            while t < tokens.end {
                let y = y.add((t - tokens.start) * y_stride);
                let to = Target { y, stride: y_stride, tokens: tokens.end - t, rows, tile: t / TILE_ROWS };
                let x = x.as_ptr().add(t * blocks * BLOCK);
                t += match (to.tokens > TILE_ROWS, rows > WIDE) {
                    (true, true) => product::<2, 2>(panel, x, extra, &to),
                    (true, false) => product::<2, 1>(panel, x, extra, &to),
                    (false, true) => product::<1, 2>(panel, x, extra, &to),
                    (false, false) => product::<1, 1>(panel, x, extra, &to),
                } * TILE_ROWS;
            }
        }
    }

    /// Prepares this thread for [`Tiles::multiply`]: what loading the shapes costs some products cost too.
    pub fn enter(self) {
        // SAFETY: `self` proves that there are tiles.
        unsafe { SHAPES.load() }
    }

    /// Ends that: a thread that has tiles in use is slower to switch.
    pub fn leave(self) {
        // SAFETY: `self` proves that there are tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }

    /// Adds what is `extra` to `rows` columns of y, up to 32, for tokens in tiles that it names; y begins at the first of
    /// `tokens`.
    ///
    /// # Safety
    /// `y` is good for `rows` columns of each of the tokens.
    pub unsafe fn add(
        self,
        extra: &Extra<'_>,
        rows: usize,
        tokens: Range<usize>,
        y: *mut f32,
        y_stride: usize,
    ) {
        assert!((1..=2 * WIDE).contains(&rows) && tokens.start.is_multiple_of(TILE_ROWS));
        // SAFETY: `self` proves the features; the caller owns y.
        unsafe {
            SHAPES.load();
            for first in tokens.clone().step_by(TILE_ROWS) {
                let tile = first / TILE_ROWS;
                if extra.of(tile).next().is_some() {
                    let (y, tokens) = (y.add((first - tokens.start) * y_stride), tokens.end - first);
                    let to = Target { y, stride: y_stride, tokens: tokens.min(TILE_ROWS), rows, tile };
                    load_sums(&to);
                    add::<1, 2>(extra, tile);
                    store_sums::<1, 2>(&to);
                }
            }
            asm!("tilerelease", options(nostack, nomem, preserves_flags));
        }
    }
}

/// Asks Linux for the tiles' state (arch_prctl(2), since 5.16): without that their first use kills the process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: the call reads no memory of ours; rcx and r11 are what a system call changes.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Up to 32 rows of weights as tiles `[groups of 16 rows][blocks]` of `[16 pairs of columns][16 rows][2]`.
#[derive(Default)]
pub struct TilePanel {
    tiles: Aligned<u16>,
    blocks: usize,
    rows: usize,
}

impl TilePanel {
    /// Makes room for other weights.
    pub(super) fn reserve(&mut self, rows: usize, blocks: usize) -> &mut [u16] {
        (self.blocks, self.rows) = (blocks, rows);
        self.tiles.reserve(rows.div_ceil(WIDE) * blocks * TILE);
        &mut self.tiles
    }

    /// Rounds the weights of a panel.
    pub fn fill(&mut self, _proof: Tiles, panel: &WidePanel) {
        let (blocks, tiles) = (panel.blocks(), self.reserve(panel.rows(), panel.blocks()));
        for number in 0..panel.groups() {
            let group = panel.group(number);
            let to = tiles[number * blocks * TILE..].as_mut_ptr();
            // SAFETY: the proof; a group has all blocks, so have the tiles.
            unsafe {
                match panel.meaning() {
                    Meaning::Small => weights::<{ Meaning::Small as u8 }>(&group, blocks, to),
                    Meaning::Signed => weights::<{ Meaning::Signed as u8 }>(&group, blocks, to),
                    Meaning::Halves => weights::<{ Meaning::Halves as u8 }>(&group, blocks, to),
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn round(x: &[f32], tokens: usize, blocks: usize, tiles: *mut u16) {
    for token in 0..tokens {
        for block in 0..blocks {
            // SAFETY: the wrapper's asserts.
            unsafe {
                let from = x.as_ptr().add((token * blocks + block) * BLOCK);
                let tile = token / TILE_ROWS * blocks + block;
                let to = tiles.add(tile * TILE + token % TILE_ROWS * BLOCK);
                let both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(WIDE)), _mm512_loadu_ps(from));
                to.cast::<__m512bh>().write_unaligned(both);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn halves(x: &[f32], tokens: usize, blocks: usize, first: *mut u16, second: *mut u16) {
    for token in 0..tokens {
        for half in 0..blocks * 2 {
            // SAFETY: the wrapper's asserts.
            unsafe {
                let from = x.as_ptr().add((token * blocks * 2 + half) * WIDE);
                let tile = token / TILE_ROWS * blocks + half / 2;
                let at = tile * TILE + token % TILE_ROWS * BLOCK + half % 2 * WIDE;
                let (upper, lower) = split(_mm512_loadu_ps(from));
                _mm256_storeu_si256(first.add(at).cast(), upper);
                _mm256_storeu_si256(second.add(at).cast(), lower);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn weights<const MEANING: u8>(group: &super::panel::Group, blocks: usize, to: *mut u16) {
    const SMALL: u8 = Meaning::Small as u8;
    let parts = if MEANING == Meaning::Halves as u8 { 2 } else { 1 };
    // SAFETY: the wrapper's.
    unsafe {
        // Lanes of four rows by four columns: which row's scale each takes.
        let first = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        let row_of = |four: i32| _mm512_add_epi32(first, _mm512_set1_epi32(four * 4));
        // Of 16 rows by two pairs of columns: the first pairs, the second ones.
        let pairs = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        let odd = _mm512_add_epi32(pairs, _mm512_set1_epi32(1));
        for part in 0..blocks * parts {
            let scale = _mm512_loadu_ps(group.scale.add(part * WIDE));
            let scales = [0, 1, 2, 3].map(|four| _mm512_permutexvar_ps(row_of(four), scale));
            let min = if MEANING == SMALL { _mm512_loadu_ps(group.min.add(part * WIDE)) } else { scale };
            let minima = [0, 1, 2, 3].map(|four| _mm512_permutexvar_ps(row_of(four), min));
            for columns in 0..BLOCK / 4 / parts {
                let columns = part * (BLOCK / 4 / parts) + columns;
                let mut wide = [_mm512_setzero_ps(); 4];
                for (four, wide) in wide.iter_mut().enumerate() {
                    let q = _mm_loadu_si128(group.q.add(columns * WIDE * 4 + four * 16).cast());
                    *wide = if MEANING == SMALL {
                        let q = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(q));
                        _mm512_fmadd_ps(q, scales[four], minima[four])
                    } else {
                        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), scales[four])
                    };
                }
                let low = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(wide[1], wide[0]));
                let high = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(wide[3], wide[2]));
                let to = to.add(columns * 2 * WIDE * 2);
                _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi32(low, pairs, high));
                _mm512_storeu_si512(to.add(WIDE * 2).cast(), _mm512_permutex2var_epi32(low, odd, high));
            }
        }
    }
    const { assert!(WIDE_BLOCK == BLOCK / 4 * WIDE * 4) };
}

/// What `ldtilecfg` loads (Intel SDM, "TILECFG").
#[repr(C, align(64))]
pub(super) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

pub(super) static SHAPES: Shapes = Shapes::new();

impl Shapes {
    /// All eight tiles whole.
    const fn new() -> Self {
        let mut shapes =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut tile = 0;
        while tile < 8 {
            (shapes.row_bytes[tile], shapes.rows[tile]) = (64, 16);
            tile += 1;
        }
        shapes
    }

    pub(super) unsafe fn load(&self) {
        // SAFETY: the caller knows that there are tiles.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) self, options(nostack, readonly, preserves_flags)) }
    }
}

/// Where sums go.
struct Target {
    y: *mut f32,
    stride: usize,
    tokens: usize,
    rows: usize,
    /// Number of the first tile of tokens.
    tile: usize,
}

/// Elements between tokens where not all of a tile exists.
const SPARE: usize = 2 * WIDE;

/// T tiles of tokens by G of rows; returns T.
#[inline(always)]
unsafe fn product<const T: usize, const G: usize>(
    panel: &TilePanel,
    x: *const u16,
    extra: Option<&Extra<'_>>,
    to: &Target,
) -> usize {
    let (w, blocks) = (panel.tiles.as_ptr(), panel.blocks);
    // SAFETY: the wrapper's asserts.
    unsafe {
        tile!(zero 0);
        tile!(zero 1);
        tile!(zero 2);
        tile!(zero 3);
        for block in 0..blocks {
            tile!(load 4, x.add(block * TILE), 64usize);
            tile!(load 6, w.add(block * TILE), 64usize);
            tile!(multiply 0, 4, 6);
            if G == 2 {
                tile!(load 7, w.add((blocks + block) * TILE), 64usize);
                tile!(multiply 1, 4, 7);
            }
            if T == 2 {
                tile!(load 5, x.add((blocks + block) * TILE), 64usize);
                tile!(multiply 2, 5, 6);
                if G == 2 {
                    tile!(multiply 3, 5, 7);
                }
            }
        }
        if let Some(extra) = extra {
            add::<T, G>(extra, to.tile);
        }
        store_sums::<T, G>(to);
    }
    T
}

/// Adds what is extra for T tiles of tokens from `tile` on.
#[inline(always)]
unsafe fn add<const T: usize, const G: usize>(extra: &Extra<'_>, tile: usize) {
    // SAFETY: tiles of s and B are whole.
    unsafe {
        for (s, b) in extra.of(tile) {
            tile!(load 4, s, 64usize);
            tile!(load 6, b, 64usize);
            tile!(multiply 0, 4, 6);
            if G == 2 {
                tile!(load 7, b.add(TILE), 64usize);
                tile!(multiply 1, 4, 7);
            }
        }
        if T == 2 {
            for (s, b) in extra.of(tile + 1) {
                tile!(load 5, s, 64usize);
                tile!(load 6, b, 64usize);
                tile!(multiply 2, 5, 6);
                if G == 2 {
                    tile!(load 7, b.add(TILE), 64usize);
                    tile!(multiply 3, 5, 7);
                }
            }
        }
    }
}

/// Loads the sums of one tile of tokens.
#[inline(always)]
unsafe fn load_sums(to: &Target) {
    // SAFETY: the caller's; what doesn't exist isn't read.
    unsafe {
        if to.tokens >= TILE_ROWS && to.rows == 2 * WIDE {
            tile!(load 0, to.y, to.stride * 4);
            tile!(load 1, to.y.add(WIDE), to.stride * 4);
            return;
        }
        let mut sums = [0f32; TILE_ROWS * SPARE];
        let at = sums.as_mut_ptr();
        for token in 0..to.tokens.min(TILE_ROWS) {
            std::ptr::copy_nonoverlapping(to.y.add(token * to.stride), at.add(token * SPARE), to.rows);
        }
        tile!(load 0, at, SPARE * 4);
        tile!(load 1, at.add(WIDE), SPARE * 4);
    }
}

/// Stores the sums of T tiles of tokens by G of rows, as far as they exist.
#[inline(always)]
unsafe fn store_sums<const T: usize, const G: usize>(to: &Target) {
    // SAFETY: the caller's.
    unsafe {
        if to.tokens >= T * TILE_ROWS && to.rows == G * WIDE {
            let (first, second) = (to.y, to.y.add((G - 1) * WIDE));
            tile!(store 0, first, to.stride);
            if G == 2 {
                tile!(store 1, second, to.stride);
            }
            if T == 2 {
                tile!(store 2, first.add(TILE_ROWS * to.stride), to.stride);
                if G == 2 {
                    tile!(store 3, second.add(TILE_ROWS * to.stride), to.stride);
                }
            }
            return;
        }
        // Tokens or rows that don't exist mustn't be written.
        let mut sums = [0f32; 2 * TILE_ROWS * SPARE];
        let at = sums.as_mut_ptr();
        tile!(store 0, at, SPARE);
        tile!(store 1, at.add(WIDE), SPARE);
        tile!(store 2, at.add(TILE_ROWS * SPARE), SPARE);
        tile!(store 3, at.add(TILE_ROWS * SPARE + WIDE), SPARE);
        for token in 0..to.tokens.min(T * TILE_ROWS) {
            let from = at.add(token * SPARE);
            std::ptr::copy_nonoverlapping(from, to.y.add(token * to.stride), to.rows.min(G * WIDE));
        }
    }
}
