//! One chunk's work: its scalar definition, and the choice of a twin.

use crate::cpu::Level;
use crate::fetch::Fetch;
use crate::number::Number;
use crate::shared::Parts;
use crate::{with_number, Element};

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

/// All rank tiles of B for some columns of y, and how they meet.
#[derive(Clone, Copy, Debug)]
pub struct ExpandChunk<'a> {
    /// By rank: what they add is summed first, y is passed once.
    pub tiles: &'a [ExpandTile<'a>],
    /// Columns wanted.
    pub columns: usize,
    /// Rows of the coefficients and of y.
    pub tokens: usize,
    /// Elements between rows of y.
    pub y_stride: usize,
}

/// `s[t, j] (+)= Σ_i x[t, i] · weights[j, i]`.
pub fn shrink_scalar<N: Number>(chunk: &ShrinkChunk<'_>, x: &[f32], s: &mut [f32]) {
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
pub unsafe fn expand_scalar<N: Number>(chunk: &ExpandChunk<'_>, y: &Parts<'_, f32>, y_begin: usize) {
    for t in 0..chunk.tokens {
        // SAFETY: the caller's promise.
        let y = unsafe { y.part(y_begin + t * chunk.y_stride, chunk.columns) };
        for (c, y) in y.iter_mut().enumerate() {
            let mut sum = 0.0;
            for tile in chunk.tiles {
                for j in 0..tile.rows {
                    let weight = N::get(&tile.weights[j * tile.stride * N::SIZE..], c);
                    sum += tile.coefficients[t * tile.rows + j] * weight;
                }
            }
            *y += sum;
        }
    }
}

/// [`shrink_scalar`] by the level's twin.
pub(super) fn shrink(level: Level, element: Element, chunk: &ShrinkChunk<'_>, x: &[f32], s: &mut [f32]) {
    with_number!(element, N => match level {
        Level::Portable => shrink_scalar::<N>(chunk, x, s),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) => avx2.shrink::<N>(chunk, x, s),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_, avx512) => avx512.shrink::<N>(chunk, x, s),
    });
}

/// [`expand_scalar`] by the level's twin, which fetches something else meanwhile.
///
/// # Safety
/// As for [`expand_scalar`].
pub(super) unsafe fn expand(
    level: Level,
    element: Element,
    chunk: &ExpandChunk<'_>,
    y: &Parts<'_, f32>,
    y_begin: usize,
    fetch: &mut Fetch,
) {
    with_number!(element, N => match level {
        // SAFETY: the caller's promise.
        Level::Portable => unsafe { expand_scalar::<N>(chunk, y, y_begin) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2(avx2) => unsafe { avx2.expand::<N>(chunk, y, y_begin, fetch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512(_, avx512) => unsafe { avx512.expand::<N>(chunk, y, y_begin, fetch) },
    });
}
