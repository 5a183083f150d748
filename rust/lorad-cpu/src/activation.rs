//! The gated activation.
#![allow(unsafe_code)] // tasks write disjoint rows

use crate::cpu::{Cpu, Level};
use crate::error::{length, require};
use crate::shared::Parts;
use crate::OpError;

/// Elements below which one thread does all.
const PARALLEL: usize = 8 << 10;

/// What the gate goes through before it multiplies. Both are z / (1 + exp(−s(z))).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// s(z) = z (SwiGLU).
    Silu,
    /// s(z) = 2 √(2/π) (z + 0.044715 z³), which is the tanh form of GELU: ½ (1 + tanh(s/2)) = 1 / (1 + exp(−s)).
    GeluTanh,
}

/// 2 √(2/π).
pub(crate) const GELU_SLOPE: f32 = 1.595_769_2;
/// The cubic part of GELU's tanh form.
pub(crate) const GELU_CUBE: f32 = 0.044_715;

/// One element of [`gate_mul`].
pub(crate) fn gate_scalar(gate: Gate, z: f32) -> f32 {
    let s = match gate {
        Gate::Silu => z,
        Gate::GeluTanh => GELU_SLOPE * (GELU_CUBE * z * z * z + z),
    };
    z / (1.0 + (-s).exp())
}

/// `out [n, width] = gate(gate_up[:, :width]) · gate_up[:, width:]`, `gate_up [n, 2 · width]`.
pub fn gate_mul(
    cpu: &Cpu,
    gate: Gate,
    out: &mut [f32],
    gate_up: &[f32],
    width: usize,
) -> Result<(), OpError> {
    require(width > 0, "width must be positive", width)?;
    let n = out.len() / width;
    length("out", n * width, out.len())?;
    length("gate_up", n * width * 2, gate_up.len())?;
    let tasks = if out.len() < PARALLEL { 1 } else { n.min(cpu.pool.threads() * 4) };
    let out = Parts::new(out);
    cpu.pool.run(tasks, &|task| {
        for row in n * task / tasks..n * (task + 1) / tasks {
            // SAFETY: tasks have disjoint rows.
            let out = unsafe { out.part(row * width, width) };
            let (z, up) = gate_up[row * width * 2..][..width * 2].split_at(width);
            gate_row(cpu.level, gate, out, z, up);
        }
    });
    Ok(())
}

/// `out = gate(z) · up`, all of one length.
pub(crate) fn gate_row(level: Level, gate: Gate, out: &mut [f32], z: &[f32], up: &[f32]) {
    match level {
        Level::Portable => {
            for ((out, z), up) in out.iter_mut().zip(z).zip(up) {
                *out = gate_scalar(gate, *z) * up;
            }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) => avx2.gate_mul(gate, out, z, up),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_, avx512) => avx512.gate_mul(gate, out, z, up),
    }
}
