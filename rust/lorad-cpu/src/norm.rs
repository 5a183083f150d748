//! RMSNorm, with the residual add before it.

use crate::cpu::{Cpu, Level};
use crate::error::{length, require};
use crate::OpError;

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
    for (out, x) in out.chunks_exact_mut(hidden).zip(x.chunks_exact(hidden)) {
        let factor = factor(cpu.level, x, eps);
        match cpu.level {
            Level::Portable => {
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = x * factor * weight;
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.scale(out, x, weight, factor),
        }
    }
    Ok(())
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
    let rows =
        out.chunks_exact_mut(hidden).zip(residual.chunks_exact_mut(hidden)).zip(x.chunks_exact(hidden));
    for ((out, residual), x) in rows {
        match cpu.level {
            Level::Portable => residual.iter_mut().zip(x).for_each(|(residual, x)| *residual += x),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.add(residual, x),
        }
        rms_norm(cpu, out, residual, weight, eps)?;
    }
    Ok(())
}
