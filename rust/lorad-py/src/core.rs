use pyo3::prelude::*;

/// Adds this file's names to the module.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
