//! The gated activation.
#![allow(unsafe_code)] // tasks write disjoint rows

use crate::cpu::{Cpu, Level};
use crate::error::{length, require};
use crate::shared::Parts;
use crate::OpError;

/// Elements below which one thread does all.
const PARALLEL: usize = 8 << 10;

/// `out [n, width] = silu(gate_up[:, :width]) · gate_up[:, width:]`, `gate_up [n, 2 · width]`.
pub fn silu_mul(cpu: &Cpu, out: &mut [f32], gate_up: &[f32], width: usize) -> Result<(), OpError> {
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
            let (gate, up) = gate_up[row * width * 2..][..width * 2].split_at(width);
            match cpu.level {
                Level::Portable => {
                    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                        *out = gate / (1.0 + (-gate).exp()) * up;
                    }
                }
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(avx2) => avx2.silu_mul(out, gate, up),
            }
        }
    });
    Ok(())
}
