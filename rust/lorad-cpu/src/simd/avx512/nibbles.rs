//! Weights of four bits, from packed blocks to tiles of bf16 at once. With a few tokens making tiles costs more than
//! multiplying them: a table of 16 floats, indexed by what a shift leaves, saves masks and conversions.

use std::arch::x86_64::*;

use super::panel::WIDE;
use super::tiles::{TilePanel, Tiles, TILE};
use crate::fetch::Fetch;
use crate::quant::kernel::LANES;
use crate::quant::pack::Kind;
use crate::simd::forms::{min, scale, Source, Q4_0, Q4_1, Q4_K};

impl TilePanel {
    /// Whether [`TilePanel::fill_nibbles`] takes a kind.
    pub fn takes(kind: Kind) -> bool {
        matches!(kind, Kind::Q4_0 | Kind::Q4_1 | Kind::Q4K)
    }

    /// Widens and rounds `rows` rows of packed groups of eight; each block of a group is a step of `fetch`.
    pub fn fill_nibbles(
        &mut self,
        _proof: Tiles,
        kind: Kind,
        packed: &[u8],
        rows: usize,
        blocks: usize,
        fetch: &mut Fetch,
    ) {
        let groups = rows.div_ceil(LANES);
        assert!(Self::takes(kind) && rows > 0 && blocks > 0);
        assert!(packed.len() >= kind.packed_at(groups * blocks - 1) + kind.packed_bytes());
        let tiles = self.reserve(rows, blocks);
        for tile in 0..rows.div_ceil(WIDE) {
            // A group that doesn't exist is as good as the other: nobody looks at its rows.
            let first = tile * 2;
            let both = [first, (first + 1).min(groups - 1)].map(|group| group * blocks);
            let to = tiles[tile * blocks * TILE..].as_mut_ptr();
            // SAFETY: the proof; the assert bounds what is read, the reserved length what is written.
            unsafe {
                match kind {
                    Kind::Q4_0 => widen::<Q4_0>(packed.as_ptr(), both, blocks, to, fetch),
                    Kind::Q4_1 => widen::<Q4_1>(packed.as_ptr(), both, blocks, to, fetch),
                    _ => widen::<Q4_K>(packed.as_ptr(), both, blocks, to, fetch),
                }
            }
        }
    }
}

/// Two groups of eight rows, from these blocks of the packed ones on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn widen<const FORM: u8>(
    packed: *const u8,
    both: [usize; 2],
    blocks: usize,
    to: *mut u16,
    fetch: &mut Fetch,
) {
    let none = std::ptr::null();
    let source = Source { q: packed, scale: none, min: none, blocks, first: 0, rows: LANES };
    let table = _mm512_set_ps(15., 14., 13., 12., 11., 10., 9., 8., 7., 6., 5., 4., 3., 2., 1., 0.);
    let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    // Four bytes of a row are columns c to c + 3 in their lower halves and c + 16 to c + 19 in their upper ones. What brings
    // two neighbours to the lowest bits of two lanes, of whose others the table takes no notice, by pairs of columns.
    let shifts = [0, 16, 4, 20].map(|first: i64| _mm512_set1_epi64((first + 8) << 32 | first));
    for block in 0..blocks {
        fetch.step();
        fetch.step();
        // SAFETY: the caller's asserts.
        unsafe {
            let scales = both.map(|first| scale::<FORM>(&source, first + block, 0));
            let minima = [0, 1].map(|group| min::<FORM>(&source, both[group] + block, scales[group]));
            let spread = |eight: __m256| _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(eight));
            let (scales, minima) = (scales.map(spread), minima.map(spread));
            let q = both.map(|first| packed.add(const { kind(FORM) }.packed_at(first + block)));
            let to = to.add(block * TILE);
            for i in 0..4 {
                let q = q.map(|q| {
                    let four = _mm256_loadu_si256(q.add(i * LANES * 4).cast());
                    _mm512_permutexvar_epi32(twice, _mm512_castsi256_si512(four))
                });
                for (pair, shift) in shifts.iter().enumerate() {
                    let wide = [0, 1].map(|group| {
                        let index = _mm512_srlv_epi32(q[group], *shift);
                        _mm512_fmadd_ps(_mm512_permutexvar_ps(index, table), scales[group], minima[group])
                    });
                    let row = pair / 2 * 8 + i * 2 + pair % 2;
                    to.add(row * 2 * WIDE)
                        .cast::<__m512bh>()
                        .write_unaligned(_mm512_cvtne2ps_pbh(wide[1], wide[0]));
                }
            }
        }
    }
}

const fn kind(form: u8) -> Kind {
    Kind::ALL[form as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Avx512, WidePanel};

    /// The tiles of rows that exist: of a pair of columns sixteen rows of two elements.
    fn of_rows(panel: &mut TilePanel, rows: usize, blocks: usize) -> Vec<u16> {
        let tiles = &panel.reserve(rows, blocks)[..rows.div_ceil(WIDE) * blocks * TILE];
        let row_of = |at: usize| at / (blocks * TILE) * WIDE + at % (2 * WIDE) / 2;
        tiles.iter().enumerate().filter(|(at, _)| row_of(*at) < rows).map(|(_, value)| *value).collect()
    }

    #[test]
    fn as_by_way_of_bytes() {
        let Some(proof) = Tiles::detect() else { return };
        let Some(avx512) = Avx512::detect() else { return };
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for kind in Kind::ALL.into_iter().filter(|kind| TilePanel::takes(*kind)) {
            for (rows, blocks) in [(32usize, 8usize), (16, 16), (24, 8), (9, 8), (1, 24), (30, 8)] {
                let groups = rows.div_ceil(LANES);
                let length = kind.packed_at(groups * blocks - 1) + kind.packed_bytes();
                let packed: Vec<u8> = (0..length).map(|_| byte()).collect();
                let (mut wide, mut by_bytes, mut at_once) =
                    (WidePanel::default(), TilePanel::default(), TilePanel::default());
                wide.fill(avx512, kind, &packed, rows, blocks, &mut Fetch::default());
                by_bytes.fill(proof, &wide);
                at_once.fill_nibbles(proof, kind, &packed, rows, blocks, &mut Fetch::default());
                let (wanted, got) =
                    (of_rows(&mut by_bytes, rows, blocks), of_rows(&mut at_once, rows, blocks));
                assert_eq!(wanted.len(), rows * blocks * 32);
                assert!(wanted.iter().any(|value| *value != 0));
                assert_eq!(got, wanted, "{kind:?} [{rows}, {blocks} blocks]");
            }
        }
    }
}
