//! Quantised products of every kind: the vector twin against the scalar definition, that against the dequantised
//! weights, on shapes that don't divide. Outputs begin as NaN, so what isn't written is seen. A row alone must equal the
//! same row in company, bit for bit: few tokens are multiplied from packed blocks, many from widened ones.

mod common;

use common::{close, halves, random_file, twins, Seeded};
use lorad_cpu::number::f32_to_f16;
use lorad_cpu::quant::pack::Kind;
use lorad_cpu::quant::{Along, QuantMatrix};
use lorad_cpu::OpError;

/// Every quant and sub-scale at its most, all scalars `scalar`.
fn full_file(kind: Kind, rows: usize, cols: usize, scalar: f32) -> Vec<u8> {
    let mut data = vec![0xff; rows * cols / kind.file_columns() * kind.file_bytes()];
    for block in data.chunks_exact_mut(kind.file_bytes()) {
        match kind {
            Kind::Q8_0 => block.fill(0x7f),
            Kind::Q6K => block[192..208].fill(0x7f),
            _ => {}
        }
        for (at, _) in halves(kind) {
            block[*at..][..2].copy_from_slice(&f32_to_f16(scalar).to_le_bytes());
        }
    }
    data
}

/// `y [n, rows]` by definition and on each better level, which holds for each row alone too. Integer sums are exact and
/// all vector levels add up the same blocks in the same order, so that they agree bit for bit.
fn products(matrix: &QuantMatrix, x: &[f32]) -> [Vec<f32>; 2] {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let (portable, levels) = twins(|cpu| {
        let mut y = vec![f32::NAN; x.len() / cols * rows];
        assert_eq!(matrix.matmul(cpu, &mut y, x, &Along::default()), Ok(vec![]));
        for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact(rows)) {
            let mut alone = vec![f32::NAN; rows];
            assert_eq!(matrix.matmul(cpu, &mut alone, x, &Along::default()), Ok(vec![]));
            assert!(same(&alone, y), "{}: {alone:?} alone, {y:?} in company", cpu.level.name());
        }
        y
    });
    let best = levels.first().map_or(portable.clone(), |(_, y)| y.clone());
    for (cpu, y) in &levels {
        assert!(same(y, &best), "{}: {y:?}, wanted {best:?}", cpu.level.name());
    }
    [portable, best]
}

fn same(got: &[f32], wanted: &[f32]) -> bool {
    let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    got.len() == wanted.len() && got.iter().zip(wanted).all(equal)
}

#[test]
fn twins_of_all_shapes() {
    for kind in Kind::ALL {
        for rows in [1, 7, 8, 17, 33] {
            for blocks in [1, 2, 5] {
                let mut seeded = Seeded((rows * 8 + blocks) as u64);
                let cols = kind.file_columns() * blocks;
                let matrix =
                    QuantMatrix::new(kind, &random_file(&mut seeded, kind, rows, cols), rows, cols).unwrap();
                for n in (1..=13).chain([16, 19, 37]) {
                    let [portable, best] = products(&matrix, &seeded.floats(n * cols));
                    close(&best, &portable, 1e-5, &format!("{kind:?} [{rows}, {cols}] of {n}"));
                }
            }
        }
    }
}

#[test]
fn twins_of_random_shapes() {
    for seed in 0..80 {
        let mut seeded = Seeded(seed);
        let kind = Kind::ALL[seed as usize % Kind::ALL.len()];
        let (rows, blocks) = (1 + seeded.below(70), 1 + seeded.below(if kind.is_k() { 3 } else { 9 }));
        let cols = blocks * kind.file_columns();
        let matrix = QuantMatrix::new(kind, &random_file(&mut seeded, kind, rows, cols), rows, cols).unwrap();
        let n = seeded.pick(&[1, 2, 3, 4, 5, 7, 12, 17, 33, 70, 200]);
        let mut x = seeded.floats(n * cols);
        x[seeded.below(n * cols)] *= 1000.0;
        let [portable, best] = products(&matrix, &x);
        close(&best, &portable, 1e-5, &format!("seed {seed}"));
    }
}

#[test]
fn two_terms_keep_what_stands_beside_large_ones() {
    for seed in 0..48 {
        let mut seeded = Seeded(seed);
        let kind = Kind::ALL[seed as usize % Kind::ALL.len()];
        let (rows, cols) = (1 + seeded.below(70), kind.file_columns() * (1 + seeded.below(4)));
        let file = random_file(&mut seeded, kind, rows, cols);
        let matrix = QuantMatrix::new(kind, &file, rows, cols).unwrap();
        let mut weight = vec![f32::NAN; rows * cols];
        matrix.dequantize(&mut weight).unwrap();
        let n = seeded.pick(&[1, 2, 3, 5, 17, 70]);
        let mut x = seeded.floats(n * cols);
        x.iter_mut().step_by(32).for_each(|x| *x *= 30.0);
        let dot =
            |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
        let wanted: Vec<f32> = x
            .chunks_exact(cols)
            .flat_map(|x| weight.chunks_exact(cols).map(|w| dot(x, w) as f32).collect::<Vec<_>>())
            .collect();
        let off = |y: &[f32]| y.iter().zip(&wanted).map(|(y, wanted)| (y - wanted).abs()).sum::<f32>();
        let one = products(&matrix, &x);
        let two = products(&matrix.fine(), &x);
        for (one, two) in one.iter().zip(&two) {
            // The second term's step is a 254th of the first one's.
            assert!(off(two) < off(one) / 50.0, "seed {seed}, {kind:?}: {} of {}", off(two), off(one));
        }
        close(&two[1], &two[0], 1e-5, &format!("seed {seed}, {kind:?}"));
    }
}

#[test]
fn nothing_saturates() {
    for kind in Kind::ALL {
        let cols = kind.file_columns();
        let mut data = full_file(kind, 9, cols, 0.5);
        let negative = full_file(kind, 9, cols, -0.5);
        data[kind.file_bytes()..2 * kind.file_bytes()].copy_from_slice(&negative[..kind.file_bytes()]);
        let lowest = &mut data[2 * kind.file_bytes()..3 * kind.file_bytes()];
        match kind {
            Kind::Q8_0 => lowest[2..].fill(0x80),
            Kind::Q6K => lowest[..192].fill(0),
            _ => {}
        }
        let matrix = QuantMatrix::new(kind, &data, 9, cols).unwrap();
        let mut weight = vec![f32::NAN; 9 * cols];
        matrix.dequantize(&mut weight).unwrap();
        // Rounding leaves these as they are: 127 steps.
        for n in [2, 8] {
            let x: Vec<f32> = (0..n * cols).map(|i| if i < n / 2 * cols { 127.0 } else { -127.0 }).collect();
            let wanted: Vec<f32> = x
                .chunks_exact(cols)
                .flat_map(|x| weight.chunks_exact(cols).map(|w| w.iter().sum::<f32>() * x[0]))
                .collect();
            for y in products(&matrix, &x) {
                close(&y, &wanted, 1e-5, &format!("{kind:?}"));
            }
        }
    }
}

#[test]
fn a_bad_activation_poisons_its_row_only() {
    for kind in Kind::ALL {
        let mut seeded = Seeded(3);
        let cols = kind.file_columns() * 2;
        let matrix = QuantMatrix::new(kind, &random_file(&mut seeded, kind, 17, cols), 17, cols).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for n in [1, 3, 6] {
                let (mut x, row) = (seeded.floats(n * cols), n / 2);
                x[row * cols + seeded.below(cols)] = bad;
                for y in products(&matrix, &x) {
                    for (index, y) in y.iter().enumerate() {
                        assert_eq!(y.is_nan(), index / 17 == row, "{kind:?} {bad} of {n}: element {index}");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_by_index_are_those_of_the_whole() {
    for kind in Kind::ALL {
        let mut seeded = Seeded(4);
        let cols = kind.file_columns() * 2;
        let matrix = QuantMatrix::new(kind, &random_file(&mut seeded, kind, 19, cols), 19, cols).unwrap();
        let (mut whole, mut some) = (vec![f32::NAN; 19 * cols], vec![f32::NAN; 3 * cols]);
        matrix.dequantize(&mut whole).unwrap();
        matrix.dequantize_rows(&mut some, &[18, 0, 9]).unwrap();
        let wanted: Vec<f32> =
            [18, 0, 9].iter().flat_map(|row| whole[row * cols..][..cols].to_vec()).collect();
        assert_eq!(some, wanted);
    }
}

#[test]
fn shapes_that_no_file_has_are_refused() {
    for kind in Kind::ALL {
        let columns = kind.file_columns();
        let what = if columns == 256 {
            "cols must be a positive multiple of 256"
        } else {
            "cols must be a positive multiple of 32"
        };
        for cols in [0, columns - 1, columns / 2, columns + 16] {
            let refused = QuantMatrix::new(kind, &vec![0; kind.file_bytes()], 1, cols).err();
            assert_eq!(refused, Some(OpError::Dimension { what, got: cols }));
        }
        for bytes in [kind.file_bytes() - 1, kind.file_bytes() + 1, 0] {
            let short = OpError::Length { what: "data", expected: kind.file_bytes(), got: bytes };
            assert_eq!(QuantMatrix::new(kind, &vec![0; bytes], 1, columns).err(), Some(short));
        }
        assert!(QuantMatrix::new(kind, &[], usize::MAX, columns).is_err());
    }
}

#[test]
fn bytes_a_weight() {
    let wanted = [18.0, 20.0, 22.0, 24.0, 34.0, 18.5, 22.5, 26.25];
    for (kind, wanted) in Kind::ALL.into_iter().zip(wanted) {
        let data = vec![0; 16 * kind.file_bytes()];
        let matrix = QuantMatrix::new(kind, &data, 16, kind.file_columns()).unwrap();
        let weights = (16 * kind.file_columns()) as f32;
        assert_eq!(matrix.bytes() as f32 / weights, wanted / 32.0, "{kind:?}");
    }
}
