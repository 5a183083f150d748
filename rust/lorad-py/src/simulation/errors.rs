//! What a simulation raises: `ScenarioError` before it runs, `PromiseBroken` when it doesn't hold.

use lorad_sched::ConfigError;
use lorad_sim::shrink::Shrunk;
use lorad_sim::SimError;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// A plain Python class with fields that are None, built as `Refused` is.
pub fn exception<'py>(
    py: Python<'py>,
    made: &PyOnceLock<Py<PyType>>,
    name: &str,
    doc: &str,
    base: Bound<'py, PyType>,
    fields: &[&str],
) -> PyResult<Bound<'py, PyType>> {
    let made = made.get_or_try_init(py, || {
        let dict = PyDict::new(py);
        dict.set_item("__module__", "lorad._core")?;
        dict.set_item("__doc__", doc)?;
        for field in fields {
            dict.set_item(*field, py.None())?;
        }
        let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, [base])?, dict))?;
        Ok::<_, PyErr>(made.cast_into::<PyType>()?.unbind())
    })?;
    Ok(made.bind(py).clone())
}

/// `class ScenarioError(ValueError)`.
pub fn scenario_error_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let doc = "A scenario or trace that can't be run. Fields: code, line, field, limit, value.";
    let fields = ["code", "line", "field", "limit", "value"];
    exception(py, &TYPE, "ScenarioError", doc, py.get_type::<PyValueError>(), &fields)
}

/// `class PromiseBroken(Exception)`.
pub fn promise_broken_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let doc =
        "An invariant, a wait bound or the caller's watch. Fields: kind, step, at_us, trace, script, runs.";
    let fields = ["kind", "step", "at_us", "trace", "script", "runs"];
    exception(py, &TYPE, "PromiseBroken", doc, py.get_type::<PyException>(), &fields)
}

/// The exception for a scenario that can't be run.
pub fn scenario_error(py: Python<'_>, error: &SimError) -> PyErr {
    let build = || {
        let raised = scenario_error_type(py)?.call1((error.to_string(),))?;
        let code = match error {
            SimError::Config(error) => {
                let (code, field, limit, value) = match *error {
                    ConfigError::TooSmall { field, limit, value } => {
                        ("config_too_small", field, limit, value)
                    }
                    ConfigError::TooLarge { field, limit, value } => {
                        ("config_too_large", field, limit, value)
                    }
                };
                raised.setattr("field", field)?;
                raised.setattr("limit", limit)?;
                raised.setattr("value", value)?;
                code
            }
            SimError::TooLarge { field, limit, value } => {
                raised.setattr("field", *field)?;
                raised.setattr("limit", *limit)?;
                raised.setattr("value", *value)?;
                "scenario_too_large"
            }
            SimError::Unknown { line, field } => {
                raised.setattr("line", *line)?;
                raised.setattr("field", field)?;
                "scenario_key"
            }
            SimError::Value { line, field, value, wants } => {
                raised.setattr("line", *line)?;
                raised.setattr("field", field)?;
                raised.setattr("limit", wants)?;
                raised.setattr("value", value)?;
                "scenario_value"
            }
            SimError::Text { line, what: _ } => {
                raised.setattr("line", *line)?;
                "scenario_text"
            }
            SimError::Layout(_) => "adapter_layout",
            SimError::Fleet(error) => error.code(),
            SimError::Failed(_) | SimError::NoFailure => "not_the_same_again",
        };
        raised.setattr("code", code)?;
        Ok::<_, PyErr>(PyErr::from_value(raised))
    };
    build().unwrap_or_else(|error| error)
}

/// The exception for a broken promise, with the shortest way to it.
pub fn promise_broken(py: Python<'_>, shrunk: &Shrunk) -> PyErr {
    let build = || {
        let raised = promise_broken_type(py)?.call1((shrunk.failure.what.clone(),))?;
        raised.setattr("kind", shrunk.failure.kind.name())?;
        raised.setattr("step", shrunk.failure.step)?;
        raised.setattr("at_us", shrunk.failure.at_us)?;
        raised.setattr("trace", shrunk.trace.to_string())?;
        raised.setattr("script", &shrunk.script)?;
        raised.setattr("runs", shrunk.runs)?;
        Ok::<_, PyErr>(PyErr::from_value(raised))
    };
    build().unwrap_or_else(|error| error)
}
