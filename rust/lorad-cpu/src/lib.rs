//! CPU operators of lorad.
