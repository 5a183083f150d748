//! Products of quantised weights by tiles of bf16, for many tokens on CPUs that have such.

use super::QuantMatrix;
use crate::cpu::Cpu;
use crate::OpError;

#[cfg(target_arch = "x86_64")]
mod product;

impl QuantMatrix {
    /// [`QuantMatrix::matmul`] with weights and activations rounded to bf16, sums in f32.
    pub fn matmul_tiles(&self, cpu: &Cpu, y: &mut [f32], x: &[f32]) -> Result<(), OpError> {
        #[cfg(target_arch = "x86_64")]
        if let Some(levels) = cpu.level.tiles() {
            return self.multiply_tiles(cpu, levels, y, x);
        }
        let _ = (y, x);
        Err(OpError::Name { what: "level with tiles", got: cpu.level.name().to_owned() })
    }
}
