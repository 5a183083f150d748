//! Blocks as a GGUF file has them (ggml-common.h), taken apart.

use super::kernel::BLOCK;
use super::pack::Kind;

/// Columns of the largest block.
const COLUMNS: usize = 256;
/// Bytes of the sub-scales and sub-minima of Q4_K and Q5_K: 6 bits each.
const SUB_BYTES: usize = 12;

/// One block of a file: one byte a weight, and the scalars.
pub struct FileBlock {
    /// Quants, unsigned (Q8_0: signed); as many as the kind has columns.
    pub q: [u8; COLUMNS],
    /// f16, as bytes: d, then what the minima are or are multiplied with.
    pub halves: [[u8; 2]; 2],
    /// K-quants, for each 32 columns: sub-scale and sub-minimum; Q6_K: the sub-scales (signed) of 16 and 16.
    pub sub: [[u8; 2]; COLUMNS / BLOCK],
}

impl Default for FileBlock {
    fn default() -> Self {
        Self { q: [0; COLUMNS], halves: [[0; 2]; 2], sub: [[0; 2]; COLUMNS / BLOCK] }
    }
}

impl FileBlock {
    /// Takes `bytes` apart, [`Kind::file_bytes`] of them.
    pub fn read(&mut self, kind: Kind, bytes: &[u8]) {
        if kind == Kind::Q6K {
            return self.read_q6_k(bytes);
        }
        let (halves, rest) = bytes.split_at(kind.halves() * 2);
        self.read_halves(halves);
        match kind {
            Kind::Q8_0 => self.q[..BLOCK].copy_from_slice(rest),
            Kind::Q4_0 | Kind::Q4_1 => nibbles(rest, &mut self.q[..BLOCK]),
            Kind::Q5_0 | Kind::Q5_1 => {
                let (fifth, low) = rest.split_at(BLOCK / 8);
                nibbles(low, &mut self.q[..BLOCK]);
                for (column, q) in self.q[..BLOCK].iter_mut().enumerate() {
                    *q |= (fifth[column / 8] >> (column % 8) & 1) << 4;
                }
            }
            Kind::Q4K => {
                let (sub, low) = rest.split_at(SUB_BYTES);
                self.read_sub(sub);
                self.read_runs(low, BLOCK);
            }
            Kind::Q5K => {
                let (sub, rest) = rest.split_at(SUB_BYTES);
                let (fifth, low) = rest.split_at(BLOCK);
                self.read_sub(sub);
                self.read_runs(low, BLOCK);
                // Bit b of byte c belongs to column c of the b-th 32.
                for (bit, q) in self.q.chunks_exact_mut(BLOCK).enumerate() {
                    for (q, fifth) in q.iter_mut().zip(fifth) {
                        *q |= (fifth >> bit & 1) << 4;
                    }
                }
            }
            Kind::Q6K => unreachable!("d is its last"),
        }
    }

    fn read_halves(&mut self, bytes: &[u8]) {
        for (half, two) in self.halves.iter_mut().zip(bytes.chunks_exact(2)) {
            half.copy_from_slice(two);
        }
    }

    fn read_q6_k(&mut self, bytes: &[u8]) {
        let (low, rest) = bytes.split_at(COLUMNS / 2);
        let (high, rest) = rest.split_at(COLUMNS / 4);
        let (sub, d) = rest.split_at(COLUMNS / 16);
        self.read_halves(d);
        for (to, two) in self.sub.iter_mut().zip(sub.chunks_exact(2)) {
            to.copy_from_slice(two);
        }
        self.read_runs(low, BLOCK * 2);
        // Of each 128 columns, bits 2b and 2b + 1 of byte c belong to column c of the b-th 32.
        for (q, high) in self.q.chunks_exact_mut(BLOCK * 4).zip(high.chunks_exact(BLOCK)) {
            for (pair, q) in q.chunks_exact_mut(BLOCK).enumerate() {
                for (q, high) in q.iter_mut().zip(high) {
                    *q |= (high >> (pair * 2) & 3) << 4;
                }
            }
        }
    }

    /// Low four bits of K-quants: `run` columns in the low halves of as many bytes, the next in their high halves.
    fn read_runs(&mut self, low: &[u8], run: usize) {
        for (low, q) in low.chunks_exact(run).zip(self.q.chunks_exact_mut(run * 2)) {
            nibbles(low, q);
        }
    }

    /// Eight sub-scales and eight sub-minima: the first four of each have their 6 bits together.
    fn read_sub(&mut self, bytes: &[u8]) {
        for i in 0..4 {
            let (scale, min, low) = (bytes[i], bytes[4 + i], bytes[8 + i]);
            self.sub[i] = [scale & 63, min & 63];
            self.sub[4 + i] = [low & 15 | scale >> 6 << 4, low >> 4 | min >> 6 << 4];
        }
    }
}

/// Low halves of all bytes, then high halves.
fn nibbles(bytes: &[u8], q: &mut [u8]) {
    let (low, high) = q.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}
