//! Integer dot products by tiles (AMX): 16 tokens by 16 rows by a block's columns in one instruction.
//!
//! The compiler has no stable intrinsics for tiles, hence assembly. It never uses tile registers itself, so that nothing
//! need be said of those. A tile's sums go through the first cache into vectors, where the block's scales are applied:
//! that, not the product, is most of the work, and half of what `vpdpbusd` takes with its products in the same units.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::panel::{Meaning, WidePanel, WIDE, WIDE_BLOCK};
use super::vnni::store_rows;
use crate::quant::kernel::{Rounded, BLOCK};

/// Rows of a tile: tokens that are multiplied at once.
pub const TILE_TOKENS: usize = 16;
/// Tokens of the last tile are a multiple of this; x has rows up to that.
pub const TOKEN_STEP: usize = 4;

const SMALL: u8 = Meaning::Small as u8;
const SIGNED: u8 = Meaning::Signed as u8;
const HALVES: u8 = Meaning::Halves as u8;

/// Whether the CPU has tiles of bytes and the system gives them to this process.
pub fn detect() -> bool {
    // Leaf 7: AMX-TILE is bit 24 and AMX-INT8 bit 25 of edx.
    let leaf = __cpuid_count(7, 0);
    leaf.edx >> 24 & 3 == 3 && permitted()
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

/// What `ldtilecfg` loads (Intel SDM, "TILECFG").
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// tmm0 and tmm1: sums; tmm2 and tmm4: activations; tmm3 and tmm5: weights.
    fn new(tokens: usize, columns: usize) -> Self {
        let mut shapes =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, bytes, rows) in [
            (0, WIDE * 4, tokens),
            (1, WIDE * 4, tokens),
            (2, columns, tokens),
            (4, columns, tokens),
            (3, WIDE * 4, columns / 4),
            (5, WIDE * 4, columns / 4),
        ] {
            (shapes.row_bytes[tile], shapes.rows[tile]) = (bytes as u16, rows as u8);
        }
        shapes
    }

    unsafe fn load(&self) {
        // SAFETY: the caller knows that there are tiles.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) self, options(nostack, readonly, preserves_flags)) }
    }
}

/// Sums of a tile on their way to vectors.
#[repr(C, align(64))]
struct Sums([i32; TILE_TOKENS * WIDE]);

/// As the wrapper's in [`super::vnni`]; rows of x up to the next multiple of [`TOKEN_STEP`] are read too.
///
/// # Safety
/// There are tiles and AVX-512; the wrapper's asserts hold.
pub unsafe fn multiply(
    panel: &WidePanel,
    x: &Rounded<'_>,
    tokens: Range<usize>,
    y: *mut f32,
    y_stride: usize,
) {
    let padded = tokens.end.next_multiple_of(TOKEN_STEP);
    assert!(tokens.start % TOKEN_STEP == 0 && x.q.len() >= padded * x.blocks * BLOCK);
    assert!(x.scale.len() >= padded * x.blocks && x.sum.len() >= padded * x.blocks);
    // SAFETY: the caller's promise.
    unsafe {
        match panel.meaning() {
            Meaning::Small => multiply_as::<SMALL>(panel, x, tokens, y, y_stride),
            Meaning::Signed => multiply_as::<SIGNED>(panel, x, tokens, y, y_stride),
            Meaning::Halves => multiply_as::<HALVES>(panel, x, tokens, y, y_stride),
        }
    }
}

unsafe fn multiply_as<const MEANING: u8>(
    panel: &WidePanel,
    x: &Rounded<'_>,
    tokens: Range<usize>,
    y: *mut f32,
    y_stride: usize,
) {
    let columns = if MEANING == HALVES { BLOCK / 2 } else { BLOCK };
    let (mut t, mut shaped) = (tokens.start, 0);
    // SAFETY: the caller's promise.
    unsafe {
        while t < tokens.end {
            let many = TILE_TOKENS.min(tokens.end - t);
            let rows = many.next_multiple_of(TOKEN_STEP);
            if rows != shaped {
                Shapes::new(rows, columns).load();
                shaped = rows;
            }
            let y = y.add((t - tokens.start) * y_stride);
            for group in 0..panel.groups() {
                let y = y.add(group * WIDE);
                match rows {
                    4 => tile::<4, MEANING>(panel, group, x, t, many, y, y_stride),
                    8 => tile::<8, MEANING>(panel, group, x, t, many, y, y_stride),
                    12 => tile::<12, MEANING>(panel, group, x, t, many, y, y_stride),
                    _ => tile::<16, MEANING>(panel, group, x, t, many, y, y_stride),
                }
            }
            t += many;
        }
        // A thread with tiles in use is slower to switch.
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
}

/// T tokens, of which the first `many` are written, by sixteen rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile<const T: usize, const MEANING: u8>(
    panel: &WidePanel,
    group: usize,
    x: &Rounded<'_>,
    token: usize,
    many: usize,
    y: *mut f32,
    y_stride: usize,
) {
    let blocks = x.blocks;
    let parts = if MEANING == HALVES { 2 } else { 1 };
    let group = panel.group(group);
    let mut sums = [const { Sums([0; TILE_TOKENS * WIDE]) }; 2];
    // SAFETY: the wrapper's asserts.
    unsafe {
        let xq = x.q.as_ptr().add(token * blocks * BLOCK);
        let (xs, xm) = (x.scale.as_ptr().add(token * blocks), x.sum.as_ptr().add(token * blocks));
        let mut acc = [_mm512_setzero_ps(); T];
        // A part's product is begun before the last one's sums are used.
        product::<0>(xq, blocks * BLOCK, group.q, &mut sums[0]);
        for part in 0..blocks * parts {
            let next = part + 1;
            if next < blocks * parts {
                let (xq, q) = (xq.add(next * (BLOCK / parts)), group.q.add(next * (WIDE_BLOCK / parts)));
                match next % 2 {
                    0 => product::<0>(xq, blocks * BLOCK, q, &mut sums[0]),
                    _ => product::<1>(xq, blocks * BLOCK, q, &mut sums[1]),
                }
            }
            let (sums, block) = (sums[part % 2].0.as_ptr(), part / parts);
            let scale = _mm512_loadu_ps(group.scale.add(part * WIDE));
            let min = if MEANING == SMALL { _mm512_loadu_ps(group.min.add(block * WIDE)) } else { scale };
            for (t, acc) in acc.iter_mut().enumerate() {
                let dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums.add(t * WIDE).cast()));
                let both = _mm512_mul_ps(scale, _mm512_set1_ps(*xs.add(t * blocks + block)));
                *acc = _mm512_fmadd_ps(dot, both, *acc);
                if MEANING == SMALL {
                    *acc = _mm512_fmadd_ps(min, _mm512_set1_ps(*xm.add(t * blocks + block)), *acc);
                }
            }
        }
        for (t, acc) in acc.iter().enumerate().take(many) {
            store_rows(y.add(t * y_stride), *acc, group.rows);
        }
    }
}

/// The tile's dot products of activations, whose rows are `stride` bytes apart, with a part of a block, in one of two sets of tiles.
#[inline(always)]
unsafe fn product<const SET: u8>(xq: *const i8, stride: usize, q: *const u8, sums: &mut Sums) {
    // SAFETY: shapes are loaded; the caller's asserts bound x and the panel; `sums` holds all rows.
    unsafe {
        if SET == 0 {
            asm!(
                "tileloadd tmm2, [{x} + {stride}]",
                "tileloadd tmm3, [{q} + {line}]",
                "tilezero tmm0",
                "tdpbssd tmm0, tmm2, tmm3",
                "tilestored [{sums} + {line}], tmm0",
                x = in(reg) xq, stride = in(reg) stride, q = in(reg) q, line = in(reg) WIDE * 4,
                sums = in(reg) sums, options(nostack, preserves_flags)
            );
        } else {
            asm!(
                "tileloadd tmm4, [{x} + {stride}]",
                "tileloadd tmm5, [{q} + {line}]",
                "tilezero tmm1",
                "tdpbssd tmm1, tmm4, tmm5",
                "tilestored [{sums} + {line}], tmm1",
                x = in(reg) xq, stride = in(reg) stride, q = in(reg) q, line = in(reg) WIDE * 4,
                sums = in(reg) sums, options(nostack, preserves_flags)
            );
        }
    }
}
