//! The page pool of lorad.
//!
//! One arena of equal pages serves the KV cache and the adapters. [`pool`] says who owns each page; [`layout`] says how
//! an adapter's rank tiles lie in its pages.
#![forbid(unsafe_code)]

pub mod layout;
pub mod pool;
