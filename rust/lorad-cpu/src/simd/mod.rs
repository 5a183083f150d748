//! Vector twins of the operators. Nothing here decides anything: shapes are checked by the operator, a wrapper asserts
//! what keeps the pointers in bounds, and each kernel does the arithmetic of its scalar twin, eight or sixteen lanes at a time.
#![allow(unsafe_code)] // intrinsics

/// Proof that this CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The proof, where it holds.
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Some(Self(()));
        }
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod composed;
#[cfg(target_arch = "x86_64")]
mod dense;
#[cfg(target_arch = "x86_64")]
mod forms;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod lora;
#[cfg(target_arch = "x86_64")]
mod matmul;
#[cfg(target_arch = "x86_64")]
mod quant;
#[cfg(target_arch = "x86_64")]
mod wide;

#[cfg(target_arch = "x86_64")]
pub use avx512::{Avx512, TilePanel, Tiles, WidePanel, TILE_ROWS};
#[cfg(target_arch = "x86_64")]
pub use wide::Wide;
