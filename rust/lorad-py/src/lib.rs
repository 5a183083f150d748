//! The Python module `lorad._core`: conversion, error map and buffers. A decision in here belongs in a crate below.

mod buffers;
mod core;
mod costs;
mod cpu;
mod events;
mod fleet;
mod router;
mod simulation;
mod snapshot;
mod trace;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    core::register(module)?;
    costs::register(module)?;
    cpu::register(module)?;
    trace::register(module)?;
    simulation::register(module)?;
    fleet::register(module)?;
    router::register(module)?;
    snapshot::register(module)?;
    Ok(())
}
