//! The embeddable scheduler of lorad.
#![forbid(unsafe_code)]
