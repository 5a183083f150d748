//! Sixteen lanes: twins for CPUs with AVX-512.

mod panel;
mod vnni;

pub use panel::WidePanel;

/// Proof that this CPU has AVX-512 with its byte, 256-bit and integer-dot-product (VNNI) instructions.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The proof, where it holds.
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        found.then_some(Self(()))
    }
}
