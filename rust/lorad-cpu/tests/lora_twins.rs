//! LoRA, by itself and along with products: vector twins against the definition, few adapters and many, groups of one token
//! and of many, modules that some lack. A row alone must equal the same row in company, bit for bit.

#![allow(clippy::unwrap_used)] // what a case is made of must be there

mod common;

use common::adapters::{Random, LAYER};
use common::{close, random_file, twins, vector_levels, Seeded};
use lorad_cpu::activation::{gate_mul, Gate};
use lorad_cpu::lora::{lora, Adapters, Modules};
use lorad_cpu::quant::pack::Kind;
use lorad_cpu::quant::{Along, QuantMatrix};
use lorad_cpu::{Cpu, OpError};

#[test]
fn lora_twins() {
    for seed in 0..120 {
        let mut seeded = Seeded(seed);
        // Wholes of what tiles take among others.
        let inputs = seeded.pick(&[1, 7, 8, 40, 67, 129, 64, 96, 320]);
        let outputs = [seeded.pick(&[1, 9, 64, 48]), seeded.pick(&[3, 8, 131, 160])];
        let adapters = 1 + seeded.below(12);
        let mut random = Random::new(&mut seeded, inputs, outputs, adapters);
        let width = outputs[0] + outputs[1] + 3;
        let offsets = [1, outputs[0] + 2];
        let modules = Modules { layer: LAYER, numbers: &[0, 1], offsets: &offsets };
        let n = random.tokens();
        let (x, y) = (seeded.floats(n * inputs), seeded.floats(n * width));
        let run = |cpu: &Cpu, x: &[f32], y: &mut [f32], adapters: &Adapters<'_>| {
            lora(cpu, y, width, x, inputs, adapters, &modules)
        };
        let (wanted, found) = twins(|cpu| {
            let mut y = y.clone();
            assert_eq!(random.with(true, |all| run(cpu, &x, &mut y, all)), Ok(vec![adapters]));
            y
        });
        for (cpu, got) in &found {
            let what = format!("{}, seed {seed}", cpu.level.name());
            close(got, &wanted, 2e-6, &what);
            let mut fast = y.clone();
            assert_eq!(random.with(false, |all| run(cpu, &x, &mut fast, all)), Ok(vec![adapters]));
            close(&fast, &wanted, 2e-5, &format!("{what}, not exact"));
            for group in 0..adapters {
                for token in random.begin[group] as usize..random.end[group] as usize {
                    let mut alone = y[token * width..][..width].to_vec();
                    let x = &x[token * inputs..][..inputs];
                    random.with_one(group, |one| run(cpu, x, &mut alone, one)).unwrap();
                    assert_eq!(alone, got[token * width..][..width], "{what} token {token}");
                }
            }
        }
    }
}

/// A weight, adapters for it in two modules, and activations.
struct Case {
    matrix: QuantMatrix,
    random: Random,
    x: Vec<f32>,
    offsets: [usize; 2],
    gate: Option<Gate>,
    what: String,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut seeded = Seeded(seed);
        let kind = Kind::ALL[seed as usize % Kind::ALL.len()];
        let cols = kind.file_columns() * (1 + seeded.below(if kind.is_k() { 2 } else { 6 }));
        let gate = seeded.pick(&[None, Some(Gate::Silu), Some(Gate::GeluTanh)]);
        let rows = if gate.is_some() { 64 * (1 + seeded.below(3)) } else { 1 + seeded.below(150) };
        // With a gate the modules are its halves, else anything.
        let first = if gate.is_some() { rows / 2 } else { seeded.below(rows.max(2) - 1).max(1) };
        let outputs = [first, (rows - first).max(1)];
        let matrix = QuantMatrix::new(kind, &random_file(&mut seeded, kind, rows, cols), rows, cols).unwrap();
        let matrix = if seeded.below(3) == 0 { matrix.fine() } else { matrix };
        let adapters = seeded.pick(&[1, 2, 5, 7, 12]);
        let random = Random::new(&mut seeded, cols, outputs, adapters);
        let x = seeded.floats(random.tokens() * cols);
        let what = format!("seed {seed}: {kind:?} [{rows}, {cols}], {adapters} adapters, {gate:?}");
        Self { matrix, random, x, offsets: [0, first.min(rows - 1)], gate, what }
    }

    /// Rows of the weight that adapters can add to: a weight of one row has one module.
    fn modules(&self) -> Modules<'_> {
        let count = if self.matrix.rows() == 1 { 1 } else { 2 };
        Modules { layer: LAYER, numbers: &[0, 1][..count], offsets: &self.offsets[..count] }
    }

    /// The product alone, then what adapters add, then the gate.
    fn apart(&mut self, cpu: &Cpu, tiles: bool) -> Vec<f32> {
        let (rows, cols) = (self.matrix.rows(), self.matrix.cols());
        let mut both = vec![f32::NAN; self.x.len() / cols * rows];
        product(&self.matrix, cpu, tiles, &mut both, &self.x, &Along::default()).unwrap();
        let (random, x) = (&mut self.random, &self.x);
        let count = if rows == 1 { 1 } else { 2 };
        let modules = Modules { layer: LAYER, numbers: &[0, 1][..count], offsets: &self.offsets[..count] };
        random.with(!tiles, |all| lora(cpu, &mut both, rows, x, cols, all, &modules)).unwrap();
        let Some(gate) = self.gate else { return both };
        let mut y = vec![f32::NAN; both.len() / 2];
        gate_mul(cpu, gate, &mut y, &both, rows / 2).unwrap();
        y
    }

    /// All in one.
    fn along(&mut self, cpu: &Cpu, tiles: bool, exact: bool) -> Result<(Vec<f32>, Vec<usize>), OpError> {
        let count = self.modules().numbers.len();
        let Self { matrix, random, x, offsets, gate, .. } = self;
        let width = if gate.is_some() { matrix.rows() / 2 } else { matrix.rows() };
        let mut y = vec![f32::NAN; x.len() / matrix.cols() * width];
        let modules = Modules { layer: LAYER, numbers: &[0, 1][..count], offsets: &offsets[..count] };
        let wrong = random.with(exact, |all| {
            product(matrix, cpu, tiles, &mut y, x, &Along { adapters: Some((*all, modules)), gate: *gate })
        })?;
        Ok((y, wrong))
    }
}

fn product(
    matrix: &QuantMatrix,
    cpu: &Cpu,
    tiles: bool,
    y: &mut [f32],
    x: &[f32],
    along: &Along<'_>,
) -> Result<Vec<usize>, OpError> {
    if tiles {
        matrix.matmul_tiles(cpu, y, x, along)
    } else {
        matrix.matmul(cpu, y, x, along)
    }
}

#[test]
fn along_with_integers_is_the_same_bit_for_bit() {
    let definition = common::definition();
    for seed in 0..150 {
        let mut case = Case::new(seed);
        for cpu in vector_levels().iter().chain([&definition]) {
            let wanted = case.apart(cpu, false);
            let (got, wrong) = case.along(cpu, false, true).unwrap();
            assert_eq!(wrong, [case.random.adapters()]);
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let differs = got.iter().zip(&wanted).position(|pair| !same(pair));
            assert_eq!(differs, None, "{}, {}", case.what, cpu.level.name());
        }
    }
}

#[test]
fn along_with_tiles_is_near() {
    for cpu in vector_levels().iter().filter(|cpu| cpu.level.name() == "amx") {
        for seed in 0..150 {
            let mut case = Case::new(seed);
            // Beside a product by tiles x is rounded to bf16 for adapters too; beside integers it's split in two.
            for (tiles, tolerance) in [(true, 1e-2), (false, 2e-5)] {
                let wanted = case.apart(cpu, tiles);
                let (got, _) = case.along(cpu, tiles, false).unwrap();
                close(&got, &wanted, tolerance, &format!("{}, tiles {tiles}", case.what));
            }
        }
    }
}
