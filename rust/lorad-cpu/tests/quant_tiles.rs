//! Products by tiles of bf16 against the dequantised weights, on shapes that don't divide; only where the CPU has tiles.

mod common;

use common::{close, random_file, Seeded};
use lorad_cpu::quant::pack::Kind;
use lorad_cpu::quant::{Along, QuantMatrix};
use lorad_cpu::{Cpu, Level, OpError};

/// A threaded CPU with tiles.
fn tiled() -> Option<Cpu> {
    Level::from_name("amx").ok().map(|level| Cpu::new(level, 3))
}

#[test]
fn tiles_against_dequantised_weights() {
    let Some(cpu) = tiled() else { return };
    for seed in 0..60 {
        let mut seeded = Seeded(seed);
        let kind = Kind::ALL[seed as usize % Kind::ALL.len()];
        let (rows, blocks) = (1 + seeded.below(70), 1 + seeded.below(if kind.is_k() { 3 } else { 9 }));
        let cols = blocks * kind.file_columns();
        let matrix = QuantMatrix::new(kind, &random_file(&mut seeded, kind, rows, cols), rows, cols).unwrap();
        let mut weights = vec![0.0; rows * cols];
        matrix.dequantize(&mut weights).unwrap();
        let n = seeded.pick(&[1, 5, 15, 16, 17, 31, 32, 33, 48, 50, 300]);
        let x = seeded.floats(n * cols);
        let mut y = vec![f32::NAN; n * rows];
        matrix.matmul_tiles(&cpu, &mut y, &x, &Along::default()).unwrap();
        let dot =
            |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
        let wanted: Vec<f32> =
            x.chunks_exact(cols).flat_map(|x| weights.chunks_exact(cols).map(|w| dot(x, w) as f32)).collect();
        // Two roundings of 2^-9 a product, of either sign.
        close(&y, &wanted, 8e-3, &format!("{kind:?} [{rows}, {cols}] of {n}"));
        // A row's sums don't depend on the rows beside it.
        for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact(rows)).take(3) {
            let mut alone = vec![f32::NAN; rows];
            matrix.matmul_tiles(&cpu, &mut alone, x, &Along::default()).unwrap();
            assert_eq!(alone, y);
        }
    }
}

#[test]
fn a_bad_activation_poisons_its_row_only() {
    let Some(cpu) = tiled() else { return };
    let mut seeded = Seeded(3);
    let matrix = QuantMatrix::new(Kind::Q4_1, &random_file(&mut seeded, Kind::Q4_1, 17, 64), 17, 64).unwrap();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = seeded.floats(20 * 64);
        x[7 * 64 + seeded.below(64)] = bad;
        let mut y = vec![0.0; 20 * 17];
        matrix.matmul_tiles(&cpu, &mut y, &x, &Along::default()).unwrap();
        for (index, y) in y.iter().enumerate() {
            assert!(y.is_finite() || index / 17 == 7, "{bad}: element {index}");
        }
        assert!(y[7 * 17..8 * 17].iter().any(|y| !y.is_finite()), "{bad}");
    }
}

#[test]
fn other_levels_say_so() {
    let matrix = QuantMatrix::new(Kind::Q8_0, &[0; 34], 1, 32).unwrap();
    let cpu = Cpu::new(Level::Portable, 1);
    let wanted = OpError::Name { what: "level with tiles", got: "portable".to_owned() };
    assert_eq!(matrix.matmul_tiles(&cpu, &mut [0.0], &[0.0; 32], &Along::default()), Err(wanted));
}
