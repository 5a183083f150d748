//! RMSNorm, with the residual add before it.
#![allow(unsafe_code)] // tasks write disjoint rows

use crate::cpu::{Cpu, Level};
use crate::error::{length, require};
use crate::shared::Parts;
use crate::OpError;

/// Elements below which one thread does all.
const PARALLEL: usize = 8 << 10;

/// Σ x².
pub fn sum_of_squares_scalar(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum()
}

/// `1 / sqrt(mean(x²) + eps)`.
fn factor(level: Level, x: &[f32], eps: f32) -> f32 {
    let sum = match level {
        Level::Portable => sum_of_squares_scalar(x),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.sum_of_squares(x),
    };
    1.0 / (sum / x.len() as f32 + eps).sqrt()
}

fn check(out: usize, x: usize, hidden: usize) -> Result<(), OpError> {
    require(hidden > 0, "weight must not be empty", hidden)?;
    length("x", x / hidden * hidden, x)?;
    length("out", x, out)
}

/// `out [n, hidden] = x · weight / sqrt(mean(x²) + eps)`, `weight [hidden]`.
pub fn rms_norm(cpu: &Cpu, out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) -> Result<(), OpError> {
    let hidden = weight.len();
    check(out.len(), x.len(), hidden)?;
    let out = Parts::new(out);
    each_row(cpu, x.len() / hidden, hidden, &|row| {
        // SAFETY: rows are disjoint and each is done once.
        let out = unsafe { out.part(row * hidden, hidden) };
        norm_to(cpu.level, out, &x[row * hidden..][..hidden], weight, eps);
    });
    Ok(())
}

fn norm_to(level: Level, out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    let factor = factor(level, x, eps);
    match level {
        Level::Portable => {
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = x * factor * weight;
            }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.scale(out, x, weight, factor),
    }
}

/// Does `row` for each of `rows` rows, by several threads where that pays.
fn each_row(cpu: &Cpu, rows: usize, hidden: usize, row: &(dyn Fn(usize) + Sync)) {
    let tasks = if rows * hidden < PARALLEL { 1 } else { rows.min(cpu.pool.threads() * 4) };
    cpu.pool.run(tasks, &|task| (rows * task / tasks..rows * (task + 1) / tasks).for_each(row));
}

/// [`rms_norm`] where out is x.
pub fn rms_norm_in_place(cpu: &Cpu, x: &mut [f32], weight: &[f32], eps: f32) -> Result<(), OpError> {
    let hidden = weight.len();
    check(x.len(), x.len(), hidden)?;
    for x in x.chunks_exact_mut(hidden) {
        rms_norm_row(cpu.level, x, weight, eps);
    }
    Ok(())
}

/// [`rms_norm`] of one row in place, inside a task: `x` and `weight` have the same length.
pub(crate) fn rms_norm_row(level: Level, x: &mut [f32], weight: &[f32], eps: f32) {
    let factor = factor(level, x, eps);
    match level {
        Level::Portable => x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * factor * weight),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.scale_in_place(x, weight, factor),
    }
}

/// `residual += x`, then `out = rms_norm(residual)`; all `[n, hidden]`.
pub fn add_rms_norm(
    cpu: &Cpu,
    out: &mut [f32],
    residual: &mut [f32],
    x: &[f32],
    weight: &[f32],
    eps: f32,
) -> Result<(), OpError> {
    let hidden = weight.len();
    check(out.len(), x.len(), hidden)?;
    length("residual", x.len(), residual.len())?;
    let (out, residual) = (Parts::new(out), Parts::new(residual));
    each_row(cpu, x.len() / hidden, hidden, &|row| {
        // SAFETY: rows are disjoint and each is done once.
        let (out, residual) =
            unsafe { (out.part(row * hidden, hidden), residual.part(row * hidden, hidden)) };
        let x = &x[row * hidden..][..hidden];
        match cpu.level {
            Level::Portable => residual.iter_mut().zip(x).for_each(|(residual, x)| *residual += x),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.add(residual, x),
        }
        norm_to(cpu.level, out, residual, weight, eps);
    });
    Ok(())
}
