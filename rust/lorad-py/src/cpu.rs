//! The operators of `lorad-cpu` for Python: numpy arrays in, nothing copied.

mod adapter;
mod dense;
mod ops;
mod quant;

use std::sync::{Arc, PoisonError, RwLock};

use lorad_blocks::layout::{Element, LayoutError};
use lorad_cpu::{Cpu, Level, OpError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads, module)?)?;
    module.add_function(wrap_pyfunction!(cpu_features, module)?)?;
    module.add_function(wrap_pyfunction!(cpu_levels, module)?)?;
    adapter::register(module)?;
    dense::register(module)?;
    ops::register(module)?;
    quant::register(module)
}

/// Multiply-adds from which a call frees the interpreter lock: about 50 µs of one core. Shorter calls keep it, since
/// taking it back may wait for another Python thread's whole turn.
const LONG: usize = 1 << 20;

static CPU: RwLock<Option<Arc<Cpu>>> = RwLock::new(None);

/// Level by the environment, threads by [`set_threads`], else all cores that this process may use.
fn cpu() -> PyResult<Arc<Cpu>> {
    if let Some(cpu) = &*CPU.read().unwrap_or_else(PoisonError::into_inner) {
        return Ok(Arc::clone(cpu));
    }
    set_threads(std::thread::available_parallelism().map_or(1, usize::from))?;
    cpu()
}

/// The one door: runs `work`, of about `cost` multiply-adds, without the interpreter lock if it's long.
fn call<T: Send>(
    py: Python<'_>,
    cost: usize,
    work: impl FnOnce(&Cpu) -> Result<T, OpError> + Send,
) -> PyResult<T> {
    let cpu = cpu()?;
    let result = if cost < LONG { work(&cpu) } else { py.detach(|| work(&cpu)) };
    result.map_err(from_op)
}

fn from_op(error: OpError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn from_layout(error: LayoutError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn element(name: &str) -> PyResult<Element> {
    Element::from_name(name)
        .ok_or_else(|| PyValueError::new_err(format!("element: f32, f16 or bf16 expected, got {name:?}")))
}

/// Sets how many threads compute, the caller's included.
#[pyfunction]
fn set_threads(threads: usize) -> PyResult<()> {
    if threads == 0 || threads > 1024 {
        return Err(PyValueError::new_err(format!("threads: 1 to 1024, got {threads}")));
    }
    let level = Level::from_environment().map_err(from_op)?;
    let mut current = CPU.write().unwrap_or_else(PoisonError::into_inner);
    if current.as_ref().is_none_or(|cpu| cpu.pool.threads() != threads) {
        *current = Some(Arc::new(Cpu::new(level, threads)));
    }
    Ok(())
}

/// How many threads compute.
#[pyfunction]
fn threads() -> PyResult<usize> {
    Ok(cpu()?.pool.threads())
}

/// Instruction sets of this CPU, and the level in use.
#[pyfunction]
fn cpu_features(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    for (name, present) in lorad_cpu::cpu::features() {
        found.set_item(name, present)?;
    }
    found.set_item("level", cpu()?.level.name())?;
    Ok(found)
}

/// The paths through the operators that this CPU has, the best last.
#[pyfunction]
fn cpu_levels() -> Vec<&'static str> {
    lorad_cpu::Level::all().into_iter().map(lorad_cpu::Level::name).collect()
}
