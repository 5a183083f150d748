//! The simulated fleet for Python: `simulate_fleet`.

use lorad_sim::fleet::{requests, run, FleetScenario};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::simulation::errors::scenario_error;

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fleet_requests, module)?)?;
    module.add_function(wrap_pyfunction!(simulate_fleet, module)?)
}

/// When each request of a fleet's scenario comes, µs, and for which adapter.
#[pyfunction]
fn fleet_requests(py: Python<'_>, text: &str) -> PyResult<Vec<(u64, usize)>> {
    let scenario = FleetScenario::parse(text).map_err(|error| scenario_error(py, &error))?;
    Ok(py.detach(|| requests(&scenario)))
}

/// Runs a fleet's scenario, `key=value` pairs.
#[pyfunction]
fn simulate_fleet<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyDict>> {
    let scenario = FleetScenario::parse(text).map_err(|error| scenario_error(py, &error))?;
    let report = py.detach(|| run(&scenario)).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let dict = PyDict::new(py);
    dict.set_item("routing", scenario.routing.to_string())?;
    dict.set_item("cold_loads", report.cold_loads)?;
    dict.set_item("preloads", report.preloads)?;
    dict.set_item("late", report.late)?;
    dict.set_item("moves", report.moves)?;
    dict.set_item("kib_max", report.kib_max.clone())?;
    dict.set_item("served", report.served.clone())?;
    for (name, percent) in [("ttft_p50_us", 50), ("ttft_p99_us", 99)] {
        dict.set_item(name, report.ttft_us(percent))?;
    }
    Ok(dict)
}
