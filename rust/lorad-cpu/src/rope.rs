//! Rotary embedding of q and k, and writing k and v into pages.
#![allow(unsafe_code)] // tasks write disjoint rows and page slots

use crate::cpu::{Cpu, Level};
use crate::error::{length, require};
use crate::kv::{KvGeometry, PageTable};
use crate::norm::rms_norm_row;
use crate::number::Number;
use crate::shared::{Arena, Parts};
use crate::{with_number, OpError};

/// Tokens of a task.
const TASK_TOKENS: usize = 16;

/// cos and sin, f32 `[positions, head_dim / 2]` each.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a> {
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
}

/// RMS norms of each head of q and k before the rotation, `[head_dim]` each.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// Weight for the heads of q.
    pub q: &'a [f32],
    /// Weight for the heads of k.
    pub k: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// Norms (if the model has them) and rotates q and k of `qkv` f32 `[n, (heads + 2 · kv_heads) · head_dim]` in place, in Hugging Face's half-split
/// convention, and writes k and v of token i to slot `position[i]` of line `line[i]`.
pub fn rope_write(
    cpu: &Cpu,
    qkv: &mut [f32],
    angles: Angles<'_>,
    norms: Option<HeadNorms<'_>>,
    position: &[i32],
    line: &[i32],
    table: PageTable<'_>,
    arena: &Arena<'_>,
    geometry: KvGeometry,
    heads: usize,
    layer: usize,
) -> Result<(), OpError> {
    geometry.check(arena, layer)?;
    let KvGeometry { kv_heads, head_dim, page_tokens, .. } = geometry;
    require(head_dim % 2 == 0, "head_dim must be even", head_dim)?;
    if let Some(norms) = norms {
        length("q_norm", head_dim, norms.q.len())?;
        length("k_norm", head_dim, norms.k.len())?;
    }
    let half = head_dim / 2;
    let n = position.len();
    let width = (heads + 2 * kv_heads) * head_dim;
    length("token_line", n, line.len())?;
    length("qkv", n * width, qkv.len())?;
    length("sin", angles.cos.len(), angles.sin.len())?;
    let positions = angles.cos.len() / half;
    length("cos", positions * half, angles.cos.len())?;
    let mut targets = Vec::with_capacity(n);
    for (&position, &line) in position.iter().zip(line) {
        let position = crate::error::index("token_pos", position, positions)?;
        targets.push((table.page_of(line, position / page_tokens, arena)?, position % page_tokens));
    }
    // Two tokens in one slot would be written by two threads at once.
    let mut sorted = targets.clone();
    sorted.sort_unstable();
    let twice = sorted.windows(2).position(|pair| pair[0] == pair[1]);
    require(twice.is_none(), "two tokens have the same place in the pages: token", twice.unwrap_or(0))?;

    let rows = Parts::new(qkv);
    let tasks = n.div_ceil(TASK_TOKENS);
    cpu.pool.run(tasks, &|task| {
        let mut narrow = vec![0u8; head_dim * 4];
        for token in task * TASK_TOKENS..n.min((task + 1) * TASK_TOKENS) {
            // SAFETY: tasks have disjoint tokens.
            let row = unsafe { rows.part(token * width, width) };
            let at = position[token] as usize * half;
            let (cos, sin) = (&angles.cos[at..at + half], &angles.sin[at..at + half]);
            let (rotated, value) = row.split_at_mut((heads + kv_heads) * head_dim);
            for (index, head) in rotated.chunks_exact_mut(head_dim).enumerate() {
                if let Some(norms) = norms {
                    let weight = if index < heads { norms.q } else { norms.k };
                    rms_norm_row(cpu.level, head, weight, norms.eps);
                }
                rotate(cpu.level, head, cos, sin);
            }
            let (page, slot) = targets[token];
            for head in 0..kv_heads {
                let offset = geometry.key_offset(layer, head);
                let key = &rotated[(heads + head) * head_dim..][..head_dim];
                let value = &value[head * head_dim..][..head_dim];
                let bytes = geometry.block_bytes();
                with_number!(geometry.element, N => {
                    narrow_row::<N>(cpu.level, &mut narrow, key);
                    // SAFETY: the page belongs to this row; another task may write other slots of it, so the K block is
                    // reached through a pointer and only this slot's elements are touched.
                    unsafe {
                        let to = arena.pointer(page, offset, bytes).add(slot * N::SIZE);
                        for (d, from) in narrow.chunks_exact(N::SIZE).take(head_dim).enumerate() {
                            let to = to.add(d * page_tokens * N::SIZE);
                            std::ptr::copy_nonoverlapping(from.as_ptr(), to, N::SIZE);
                        }
                    }
                    let row_bytes = head_dim * N::SIZE;
                    // SAFETY: as above; a slot's V row is contiguous and this token's alone.
                    let to = unsafe {
                        arena.write(page, offset + geometry.value_bytes() + slot * row_bytes, row_bytes)
                    };
                    narrow_row::<N>(cpu.level, to, value);
                });
            }
        }
    });
    Ok(())
}

/// `[a, b] -> [a cos − b sin, b cos + a sin]` for the halves of a head.
fn rotate(level: Level, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    match level {
        Level::Portable => rotate_scalar(head, cos, sin),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.rotate(head, cos, sin),
    }
}

/// See [`rotate`].
#[inline(always)]
pub(crate) fn rotate_scalar(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(target_arch = "x86_64")]
fn narrow_row<N: crate::simd::Wide>(level: Level, to: &mut [u8], from: &[f32]) {
    match level {
        Level::Portable => narrow_scalar::<N>(to, from),
        Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.narrow::<N>(to, from),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn narrow_row<N: Number>(_level: Level, to: &mut [u8], from: &[f32]) {
    narrow_scalar::<N>(to, from);
}

fn narrow_scalar<N: Number>(to: &mut [u8], from: &[f32]) {
    for (i, value) in from.iter().enumerate() {
        N::put(to, i, *value);
    }
}
