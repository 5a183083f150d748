//! Each operator's vector twin against its scalar definition, from seeds, on shapes that don't divide. Outputs begin as
//! NaN, so what isn't written is seen. A row alone must equal the same row in company, bit for bit.

mod common;

use common::adapters::{stored, ELEMENTS};
use common::{close, definition, twins, Seeded};
use lorad_blocks::layout::Element;
use lorad_cpu::activation::{gate_mul, Gate};
use lorad_cpu::attention::{paged_attention, Rows, ALL_KEYS};
use lorad_cpu::dense::DenseMatrix;
use lorad_cpu::edits::Edits;
use lorad_cpu::kv::{KvGeometry, PageTable};
use lorad_cpu::quant::pack::Kind;
use lorad_cpu::quant::{Along, QuantMatrix};
use lorad_cpu::rope::{rope_write, Angles, HeadNorms};
use lorad_cpu::sample::{sample, Chosen, Parameters};
use lorad_cpu::shared::Arena;
use lorad_cpu::table::AdapterTable;
use lorad_cpu::{embed, norm, Cpu, OpError};

#[test]
fn dense_matrix_twins() {
    for seed in 0..60 {
        let mut seeded = Seeded(seed);
        let (rows, cols) = (seeded.pick(&[1, 7, 8, 17, 33, 130]), seeded.pick(&[1, 5, 8, 64, 257, 1500]));
        let n = seeded.pick(&[0, 1, 2, 3, 5, 6, 7, 13, 40, 130]);
        let element = ELEMENTS[seeded.below(3)];
        let matrix =
            DenseMatrix::new(element, &stored(element, &seeded.floats(rows * cols)), rows, cols).unwrap();
        let mut x = seeded.floats(n * cols);
        if n > 2 {
            x[cols] = f32::NAN; // poisons its own row
        }
        let run = |cpu: &Cpu, x: &[f32]| {
            let mut y = vec![f32::NAN; x.len() / cols * rows];
            matrix.matmul(cpu, &mut y, x).unwrap();
            y
        };
        let (wanted, found) = twins(|cpu| run(cpu, &x));
        for (cpu, got) in &found {
            let what = format!("{}, seed {seed}: {rows} x {cols}, {n}, {element:?}", cpu.level.name());
            close(got, &wanted, 1e-5, &what);
            for t in 0..n {
                let alone = run(cpu, &x[t * cols..][..cols]);
                let same = alone.iter().zip(&got[t * rows..]).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{what}: row {t} differs alone");
            }
        }
        let ids: Vec<i32> = (0..9).map(|_| seeded.below(rows) as i32).collect();
        let mut found = vec![0.0; ids.len() * cols];
        matrix.widen_rows(&mut found, &ids).unwrap();
        for (id, found) in ids.iter().zip(found.chunks_exact(cols)) {
            let mut unit = vec![0.0; cols];
            unit[cols / 2] = 1.0;
            assert_eq!(run(&definition(), &unit)[*id as usize], found[cols / 2]);
        }
    }
    assert!(DenseMatrix::new(Element::F16, &[0; 7], 2, 2).is_err());
    assert!(DenseMatrix::new(Element::F32, &[], 0, 4).is_err());
    let matrix = DenseMatrix::new(Element::F32, &[0; 16], 2, 2).unwrap();
    assert!(matrix.widen_rows(&mut [0.0; 2], &[2]).is_err());
    assert!(matrix.matmul(&definition(), &mut [0.0; 3], &[0.0; 4]).is_err());
}

#[test]
fn attention_and_rope_twins() {
    for seed in 0..60 {
        let mut seeded = Seeded(seed);
        // Windows within a page, over pages, over blocks, and the whole.
        let window = seeded.pick(&[ALL_KEYS, ALL_KEYS, 1, 3, 17, 64, 100, 150, 1000]);
        let geometry = KvGeometry {
            layers: 2,
            kv_heads: 1 + seeded.below(3),
            page_tokens: seeded.pick(&[4, 8, 16, 24, 64, 72]),
            head_dim: seeded.pick(&[8, 16, 40, 64, 104, 6]),
            element: ELEMENTS[seeded.below(3)],
        };
        let heads = geometry.kv_heads * seeded.pick(&[1, 2, 3, 5, 13]);
        let used = geometry.layers * 2 * geometry.kv_heads * geometry.block_bytes();
        let page_bytes = used.next_multiple_of(64);
        let rows = 1 + seeded.below(4);
        let columns = 200usize.div_ceil(geometry.page_tokens);
        let pages: Vec<i32> = (0..(rows * columns) as i32).rev().collect();
        let (cos, sin) =
            (seeded.floats(200 * geometry.head_dim / 2), seeded.floats(200 * geometry.head_dim / 2));
        let (q_norm, k_norm) = (seeded.floats(geometry.head_dim), seeded.floats(geometry.head_dim));
        let norms = (seed % 2 == 1).then_some(HeadNorms { q: &q_norm, k: &k_norm, eps: 1e-5 });
        let (mut line, mut start, mut offset) = (vec![], vec![], vec![0]);
        for row in 0..rows {
            line.push(row as i32);
            let tokens = seeded.pick(&[1, 1, 5, 70]);
            start.push(seeded.below(200 - tokens) as i32);
            offset.push(offset[row] + tokens as i32);
        }
        let n = offset[rows] as usize;
        let width = (heads + 2 * geometry.kv_heads) * geometry.head_dim;
        let out_width = heads * geometry.head_dim;
        let history: Vec<Vec<f32>> =
            start.iter().map(|start| seeded.floats(*start as usize * width)).collect();
        let step = seeded.floats(n * width);
        let (wanted, found) = twins(|cpu| {
            let mut bytes = vec![0xff; rows * columns * page_bytes]; // NaN in every type
            let arena = Arena::new(&mut bytes, page_bytes).unwrap();
            let table = PageTable::new(&pages, columns).unwrap();
            let write = |qkv: &mut [f32], row: i32, from: i32| {
                let count = (qkv.len() / width) as i32;
                let position: Vec<i32> = (from..from + count).collect();
                let line = vec![row; count as usize];
                let angles = Angles { cos: &cos, sin: &sin };
                rope_write(cpu, qkv, angles, norms, &position, &line, table, &arena, geometry, heads, 1)
                    .unwrap();
            };
            let mut step = step.clone();
            for row in 0..rows {
                write(&mut history[row].clone(), row as i32, 0);
                let (begin, end) = (offset[row] as usize * width, offset[row + 1] as usize * width);
                write(&mut step[begin..end], row as i32, start[row]);
            }
            let attend = |q: &[f32], rows: Rows<'_>| {
                let mut out = vec![f32::NAN; q.len() / width * out_width];
                paged_attention(
                    cpu, &mut out, q, width, &arena, geometry, 1, table, rows, heads, 0.3, window,
                )
                .unwrap();
                out
            };
            let out = attend(&step, Rows { line: &line, start: &start, offset: &offset });
            for row in 0..rows {
                for token in offset[row]..offset[row + 1] {
                    let q = &step[token as usize * width..][..width];
                    let seen = [start[row] + token - offset[row]];
                    let alone = attend(q, Rows { line: &line[row..=row], start: &seen, offset: &[0, 1] });
                    assert_eq!(
                        alone,
                        out[token as usize * out_width..][..out_width],
                        "seed {seed} token {token}"
                    );
                }
            }
            out
        });
        for (cpu, got) in &found {
            close(got, &wanted, 2e-5, &format!("{}, seed {seed}", cpu.level.name()));
        }
    }
}

#[test]
fn dense_twins() {
    for seed in 0..40 {
        let mut seeded = Seeded(seed);
        let (n, width) = (seeded.below(40), 1 + seeded.below(300));
        let (x, more, weight) = (seeded.floats(n * width), seeded.floats(n * width), seeded.floats(width));
        let gate_up = seeded.floats(n * width * 2);
        let ids: Vec<i32> = (0..n).map(|_| seeded.below(9) as i32).collect();
        let element = ELEMENTS[seeded.below(3)];
        let table = stored(element, &seeded.floats(9 * width));
        let (wanted, found) = twins(|cpu| {
            let nan = || vec![f32::NAN; n * width];
            let (mut normed, mut in_place, mut added, mut total) = (nan(), x.clone(), nan(), more.clone());
            norm::rms_norm(cpu, &mut normed, &x, &weight, 1e-5).unwrap();
            norm::rms_norm_in_place(cpu, &mut in_place, &weight, 1e-5).unwrap();
            assert_eq!(normed, in_place);
            norm::add_rms_norm(cpu, &mut added, &mut total, &x, &weight, 1e-5).unwrap();
            let (mut silu, mut gelu, mut rows) = (nan(), nan(), nan());
            gate_mul(cpu, Gate::Silu, &mut silu, &gate_up, width).unwrap();
            gate_mul(cpu, Gate::GeluTanh, &mut gelu, &gate_up, width).unwrap();
            embed::embed(cpu, &mut rows, &table, element, width, &ids).unwrap();
            [normed, added, total, silu, gelu, rows]
        });
        for (cpu, got) in &found {
            for (got, wanted) in got.iter().zip(&wanted) {
                close(got, wanted, 2e-6, &format!("{}, seed {seed}", cpu.level.name()));
            }
        }
    }
}

#[test]
fn sampling_twins() {
    let (mut same, mut all) = (0, 0);
    for seed in 0..40 {
        let mut seeded = Seeded(seed);
        let (rows, vocab) = (12, 2 + seeded.below(3000));
        let mut logits = seeded.floats(rows * vocab);
        logits[vocab + seeded.below(vocab)] = f32::NAN;
        logits[2 * vocab..3 * vocab - 1].fill(f32::NEG_INFINITY);
        let mut each = |from: &[f32]| -> Vec<f32> { (0..rows).map(|_| seeded.pick(from)).collect() };
        let (temperature, top_p, min_p) =
            (each(&[0.0, 0.5, 1.0, 3.0]), each(&[0.3, 0.9, 1.0]), each(&[0.0, 0.1]));
        let top_k: Vec<i32> = (0..rows).map(|_| seeded.pick(&[0, 1, 5, 50, 1500])).collect();
        let seeds: Vec<u64> = (0..rows).map(|_| seeded.next()).collect();
        let counter: Vec<u32> = (0..rows as u32).collect();
        // From the fourth row on each has a token edited, and every other one a mask of the even tokens.
        let offset: Vec<i32> = (0..=rows as i32).map(|row| (row - 3).max(0)).collect();
        let token: Vec<i32> = (3..rows).map(|_| seeded.below(vocab) as i32).collect();
        let change = [1.5, 1.3, 0.25].repeat(token.len());
        let mask_row: Vec<i32> =
            (0..rows as i32).map(|row| if row > 3 && row % 2 == 0 { 0 } else { -1 }).collect();
        let mask = vec![0x5555_5555; vocab.div_ceil(32)];
        let (wanted, found) = twins(|cpu| {
            let (mut tokens, mut logprobs) = (vec![-9; rows], vec![0.0; rows]);
            let (mut best_tokens, mut best_logprobs) = (vec![-9; rows * 2], vec![0.0; rows * 2]);
            let parameters = Parameters {
                temperature: &temperature,
                top_k: &top_k,
                top_p: &top_p,
                min_p: &min_p,
                seed: &seeds,
                counter: &counter,
            };
            let edits =
                Edits { offset: &offset, token: &token, change: &change, mask_row: &mask_row, mask: &mask };
            let chosen = Chosen {
                tokens: &mut tokens,
                logprobs: &mut logprobs,
                best_tokens: &mut best_tokens,
                best_logprobs: &mut best_logprobs,
            };
            sample(cpu, &logits, vocab, parameters, edits, chosen).unwrap();
            (tokens, best_tokens, best_logprobs)
        });
        for (_, best) in found {
            assert_eq!(best.1, wanted.1);
            close(&best.2, &wanted.2, 1e-5, "best log-probabilities");
            assert!(best.0[1] == -1 && best.0[2] == vocab as i32 - 1);
            assert!((4..rows).step_by(2).all(|row| best.0[row] % 2 == 0));
            // Rounding may move a draw that falls on a border.
            same += best.0.iter().zip(&wanted.0).filter(|(a, b)| a == b).count();
            all += rows;
        }
    }
    assert!(same + 2 >= all, "{same} of {all}");
}

#[test]
fn refusals_name_the_fault() {
    let cpu = &definition();
    let matrix = QuantMatrix::new(Kind::Q8_0, &[0; 34], 1, 32).unwrap();
    let short = OpError::Length { what: "y", expected: 2, got: 1 };
    assert_eq!(matrix.matmul(cpu, &mut [0.0], &[0.0; 64], &Along::default()), Err(short));
    assert!(QuantMatrix::new(Kind::Q8_0, &[0; 33], 1, 32).is_err());
    assert!(QuantMatrix::new(Kind::Q8_0, &[], usize::MAX, 32).is_err());
    assert!(embed::gather_rows(&mut [0.0], &[1.0, 2.0], 1, &[2]).is_err());
    assert!(embed::gather_rows(&mut [0.0], &[1.0, 2.0], 1, &[-1]).is_err());
    let mut bytes = vec![0; 128];
    let arena = Arena::new(&mut bytes, 64).unwrap();
    let geometry =
        KvGeometry { layers: usize::MAX, kv_heads: 2, page_tokens: 8, head_dim: 8, element: Element::F32 };
    assert!(geometry.check(&arena, 0).is_err());
    assert!(PageTable::new(&[0; 5], 2).is_err());
    assert!(AdapterTable::new(0, 64, 1, 1).is_err());
    let change = [0.0, 1.0, 0.0];
    for (offset, token, taken) in [
        ([0, 1].as_slice(), 5, true),
        (&[0, 1], 8, false),
        (&[0, 1], -1, false),
        (&[1, 1], 5, false),
        (&[0, 2], 5, false),
        (&[1, 0], 5, false),
        (&[0, 0], 5, false),
        (&[0], 5, false),
    ] {
        let edits = Edits { offset, token: &[token], change: &change, ..Edits::default() };
        assert_eq!(edits.check(1, 8).is_ok(), taken, "{offset:?} {token}");
    }
    for (row, mask, taken) in [
        (-1, [].as_slice(), true),
        (0, &[-1, 1], true),
        (1, &[-1, 1], false),
        (-2, &[-1, 1], false),
        (0, &[], false),
        (0, &[1], false),
    ] {
        let edits = Edits { mask_row: &[row], mask, ..Edits::default() };
        assert_eq!(edits.check(1, 33).is_ok(), taken, "{row} {mask:?}");
    }
}
