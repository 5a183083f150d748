//! CPU operators of lorad: batched LoRA, paged attention, quantised matrix products and what surrounds them.
//!
//! Every operator takes a [`Cpu`] (thread pool and instruction level) and plain slices; activations are f32. Each has a
//! scalar twin, which is its definition in Rust, and vector twins in [`simd`]. What a row gets doesn't depend on the
//! other rows of the call nor on the number of threads: sums run in an order fixed by the row's own data. Tiles (AMX) are
//! the exception, where they are asked for: how many rows there are decides whether a LoRA takes them.
//!
//! `unsafe` lives in [`simd`] (intrinsics), [`pool`] (a borrowed closure crosses threads) and [`shared`] (parts of one
//! buffer are handed to several threads); an operator that takes such a part says why nobody else has it.
#![deny(unsafe_code)]

pub mod activation;
pub mod aligned;
pub mod attention;
pub mod cpu;
pub mod dense;
pub mod edits;
pub mod embed;
pub mod error;
pub mod fetch;
pub mod kv;
pub mod lora;
pub mod norm;
pub mod number;
pub mod pool;
pub mod quant;
pub mod rope;
pub mod sample;
pub mod shared;
pub mod simd;
pub mod table;

pub use cpu::{Cpu, Level};
pub use error::OpError;
pub use lorad_blocks::layout::Element;
