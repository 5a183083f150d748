//! The page pool of lorad.
//!
//! One arena of equal pages serves the KV cache and the adapters. [`pool`] says who owns each page; [`layout`] says how
//! an adapter's rank tiles lie in its pages; [`prefix`] finds pages whose KV a new sequence can use; [`heat`] says what
//! is worth keeping; [`fixed`] computes what floating point would differ in between platforms.
#![forbid(unsafe_code)]

pub mod fixed;
pub mod heat;
pub mod layout;
pub mod pool;
pub mod prefix;
