//! Numbers from a seed, and the two levels that twins are compared on.
#![allow(dead_code)] // each test takes a part
#![allow(clippy::unwrap_used)] // what a test is made of must be there

pub mod adapters;

use lorad_cpu::number::f32_to_f16;
use lorad_cpu::quant::pack::Kind;
use lorad_cpu::{Cpu, Level};

/// Splitmix64.
pub struct Seeded(pub u64);

impl Seeded {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// About normal, from -3 to 3.
    pub fn float(&mut self) -> f32 {
        (0..6).map(|_| self.below(1001) as f32 / 1000.0 - 0.5).sum()
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// The definition, on one thread.
pub fn definition() -> Cpu {
    Cpu::new(Level::Portable, 1)
}

/// Each better level of this CPU, on three threads.
pub fn vector_levels() -> Vec<Cpu> {
    let better = Level::all().into_iter().filter(|level| !matches!(level, Level::Portable));
    better.map(|level| Cpu::new(level, 3)).collect()
}

/// What `run` gives by definition, then on each better level, which is named.
pub fn twins<T>(mut run: impl FnMut(&Cpu) -> T) -> (T, Vec<(Cpu, T)>) {
    let found = vector_levels().into_iter().map(|cpu| {
        let found = run(&cpu);
        (cpu, found)
    });
    let found = found.collect();
    (run(&definition()), found)
}

pub fn close(got: &[f32], wanted: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), wanted.len());
    let size = wanted.iter().filter(|x| x.is_finite()).fold(1e-30f32, |size, x| size.max(x.abs()));
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(
            got == wanted || (got - wanted).abs() <= tolerance * size || (got.is_nan() && wanted.is_nan()),
            "{what}: element {index} is {got}, wanted {wanted}"
        );
    }
}

/// Where the f16 scalars of a file's block lie, and how large they may be.
pub fn halves(kind: Kind) -> &'static [(usize, f32)] {
    match kind {
        Kind::Q4_0 | Kind::Q5_0 | Kind::Q8_0 => &[(0, 0.1)],
        Kind::Q4_1 | Kind::Q5_1 => &[(0, 0.1), (2, 1.0)],
        Kind::Q4K | Kind::Q5K => &[(0, 0.01), (2, 0.05)],
        Kind::Q6K => &[(208, 0.005)],
    }
}

/// Bytes from a seed, but for the f16 scalars, which are finite, of either sign, now and then zero.
pub fn random_file(seeded: &mut Seeded, kind: Kind, rows: usize, cols: usize) -> Vec<u8> {
    let blocks = rows * cols / kind.file_columns();
    let mut data: Vec<u8> = (0..blocks * kind.file_bytes()).map(|_| seeded.next() as u8).collect();
    for block in data.chunks_exact_mut(kind.file_bytes()) {
        for (at, size) in halves(kind) {
            let scalar = if seeded.below(9) == 0 { 0.0 } else { seeded.float() * size };
            block[*at..][..2].copy_from_slice(&f32_to_f16(scalar).to_le_bytes());
        }
    }
    data
}
