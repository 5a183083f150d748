//! The simulated fleet for Python: `simulate_fleet`.

use lorad_sim::fleet::{requests, run, run_cores, CoresScenario, FleetScenario};
use lorad_sim::SimError;
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

/// Runs a fleet's scenario, `key=value` pairs; `cores`: its replicas are real cores.
#[pyfunction]
#[pyo3(signature = (text, *, cores = false))]
fn simulate_fleet<'py>(py: Python<'py>, text: &str, cores: bool) -> PyResult<Bound<'py, PyDict>> {
    let refused = |error: SimError| scenario_error(py, &error);
    let (routing, report) = if cores {
        let scenario = CoresScenario::parse(text).map_err(refused)?;
        (scenario.routing, py.detach(|| run_cores(&scenario)).map_err(refused)?)
    } else {
        let scenario = FleetScenario::parse(text).map_err(refused)?;
        let report = py.detach(|| run(&scenario));
        (scenario.routing, report.map_err(|error| refused(error.into()))?)
    };
    let dict = PyDict::new(py);
    dict.set_item("routing", routing.to_string())?;
    for (name, count) in [
        ("cold_loads", report.cold_loads),
        ("preloads", report.preloads),
        ("late", report.late),
        ("moves", report.moves),
        ("retried", report.retried),
        ("lost", report.cut + report.refused),
        ("ttft_p50_us", report.ttft_us(50)),
        ("ttft_p99_us", report.ttft_us(99)),
    ] {
        dict.set_item(name, count)?;
    }
    dict.set_item("kib_max", report.kib_max)?;
    dict.set_item("served", report.served)?;
    Ok(dict)
}
