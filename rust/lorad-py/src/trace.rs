//! Traces for Python: `Replay`, `redact_trace`, `Unreadable`.

use lorad_sched::trace::{self, Input, Outcome, Played, TraceError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::buffers::ViewMut;
use crate::events::event_list;

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Replay>()?;
    module.add_function(wrap_pyfunction!(redact_trace, module)?)?;
    module.add("Unreadable", unreadable_type(module.py())?)?;
    Ok(())
}

/// `class Unreadable(ValueError)` with `code` and `line`, built as `Refused` is.
fn unreadable_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static TYPE: pyo3::sync::PyOnceLock<Py<PyType>> = pyo3::sync::PyOnceLock::new();
    let made = TYPE.get_or_try_init(py, || {
        let fields = PyDict::new(py);
        fields.set_item("__module__", "lorad._core")?;
        fields.set_item("__doc__", "A line of a trace or dump that can't be taken. Fields: code, line.")?;
        fields.set_item("code", py.None())?;
        fields.set_item("line", py.None())?;
        let bases = PyTuple::new(py, [py.get_type::<PyValueError>()])?;
        let made = py.get_type::<PyType>().call1(("Unreadable", bases, fields))?;
        Ok::<_, PyErr>(made.cast_into::<PyType>()?.unbind())
    })?;
    Ok(made.bind(py).clone())
}

/// The exception for a line that can't be taken.
pub fn unreadable(py: Python<'_>, text: String, code: &str, line: u64) -> PyErr {
    let build = || {
        let error = unreadable_type(py)?.call1((text,))?;
        error.setattr("code", code)?;
        error.setattr("line", line)?;
        Ok::<_, PyErr>(PyErr::from_value(error))
    };
    build().unwrap_or_else(|error| error)
}

fn from_trace(py: Python<'_>, error: TraceError) -> PyErr {
    unreadable(py, error.to_string(), error.mistake.code(), error.line)
}

/// The trace with other token ids, that plays the same; `key` has 16 bytes.
#[pyfunction]
fn redact_trace(py: Python<'_>, text: String, key: [u8; 16]) -> PyResult<String> {
    let number = u128::from_le_bytes(key);
    let key = trace::Key([number as u64, (number >> 64) as u64]);
    py.detach(|| trace::redact(&text, &key)).map_err(|error| from_trace(py, error))
}

/// A fresh core that gets the lines of a trace, one at a time.
#[pyclass(module = "lorad._core")]
pub struct Replay {
    replay: trace::Replay<String>,
}

impl Replay {
    /// The recorded core's limits.
    pub fn limits(&self) -> &lorad_sched::Config {
        self.replay.core().config()
    }
}

#[pymethods]
impl Replay {
    #[new]
    fn new(py: Python<'_>, text: String) -> PyResult<Self> {
        let replay = trace::Replay::new(text).map_err(|error| from_trace(py, error))?;
        Ok(Self { replay })
    }

    /// Gives the core the next input: what was called and what came of it, or None at the end.
    fn step<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        match self.replay.step().map_err(|error| from_trace(py, error))? {
            Some(played) => {
                let dict = played_dict(py, played)?;
                dict.set_item("events", event_list(py, self.replay.events().iter().copied())?)?;
                Ok(Some(dict))
            }
            None => Ok(None),
        }
    }

    /// Lines taken.
    #[getter]
    fn line(&self) -> u64 {
        self.replay.line()
    }

    /// Did the log end because it reached its limit?
    #[getter]
    fn cut(&self) -> bool {
        self.replay.is_cut()
    }

    /// The last plan as text; None before the first.
    fn plan_text(&self) -> Option<String> {
        self.replay.plan().map(|plan| plan.to_string())
    }

    /// Copies the last plan into an array of the core's plan length.
    fn read_plan(&self, plan: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut view = ViewMut::<i32>::new(plan, "plan")?;
        let (into, from) = (view.as_mut_slice(), self.replay.plan_array());
        if into.len() != from.len() {
            let (needed, given) = (from.len(), into.len());
            return Err(PyValueError::new_err(format!(
                "plan: {needed} elements needed, the array has {given}"
            )));
        }
        into.copy_from_slice(from);
        Ok(())
    }

    /// The whole state as stable text.
    fn dump(&self) -> String {
        self.replay.core().dump()
    }

    /// The last events as text, a line each with its time and plan.
    fn recent(&self) -> String {
        self.replay.core().recent().to_string()
    }

    /// Compares everything with everything; None, or what doesn't agree.
    fn check(&self) -> Option<String> {
        self.replay.core().check().err()
    }
}

fn played_dict<'py>(py: Python<'py>, played: Played) -> PyResult<Bound<'py, PyDict>> {
    let diverged = played.diverged().map(|mistake| mistake.to_string());
    let Played { line, input, outcome, made: _, recorded: _ } = played;
    let dict = PyDict::new(py);
    dict.set_item("line", line)?;
    dict.set_item("call", input.name())?;
    dict.set_item("arguments", arguments(py, input)?)?;
    let (outcome, value, refusal) = match outcome {
        Outcome::Done => ("done", None, None),
        Outcome::Registered { adapter } => ("registered", Some(adapter.number().into()), None),
        Outcome::Planned { plan } => ("planned", Some(plan), None),
        Outcome::Idle => ("idle", None, None),
        Outcome::Rejected { why } => ("refused", None, Some(why.to_string())),
    };
    dict.set_item("outcome", outcome)?;
    dict.set_item("value", value)?;
    dict.set_item("refusal", refusal)?;
    dict.set_item("diverged", diverged)?;
    Ok(dict)
}

/// The arguments of a call by the names that they have in `Core`'s methods.
fn arguments(py: Python<'_>, input: Input) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    if let Some(now) = input.now() {
        dict.set_item("now", now)?;
    }
    match input {
        Input::Register { spec } => {
            dict.set_item("tag", spec.tag)?;
            dict.set_item("pages", spec.pages)?;
            dict.set_item("layers", spec.layers)?;
            dict.set_item("tenant", spec.tenant)?;
            dict.set_item("weight", spec.weight)?;
            dict.set_item("remote", spec.remote)?;
        }
        Input::SetTenant { tenant, spec } => {
            dict.set_item("tenant", tenant)?;
            dict.set_item("weight", spec.weight)?;
            dict.set_item("pages_max", spec.pages_max)?;
            dict.set_item("adapters_max", spec.adapters_max)?;
            dict.set_item("running_max", spec.running_max)?;
            dict.set_item("waiting_max", spec.waiting_max)?;
        }
        Input::Pin { now: _, adapter, pinned } => {
            dict.set_item("adapter", adapter.number())?;
            dict.set_item("pinned", pinned)?;
        }
        Input::Add { now: _, spec } => {
            dict.set_item("id", spec.id)?;
            dict.set_item("adapter", spec.adapter.map(|adapter| adapter.number()))?;
            dict.set_item("prompt", spec.prompt)?;
            dict.set_item("max_tokens", spec.max_tokens)?;
            dict.set_item("stop_tokens", spec.stop_tokens)?;
            dict.set_item("tenant", spec.tenant)?;
            dict.set_item("priority", spec.priority.name())?;
            dict.set_item("deadline", spec.deadline)?;
            dict.set_item("after", spec.after)?;
        }
        Input::Abort { now: _, request } => dict.set_item("id", request)?,
        Input::Step { .. } => {}
        Input::Commit { now: _, plan, sampled } => {
            dict.set_item("n", plan)?;
            dict.set_item("tokens", sampled)?;
        }
        Input::CommitFailed { now: _, plan } => dict.set_item("n", plan)?,
        Input::PageInReached { now: _, adapter, layers } => {
            dict.set_item("adapter", adapter.number())?;
            dict.set_item("layers", layers)?;
        }
        Input::Prewarm { now: _, adapter }
        | Input::Unregister { now: _, adapter }
        | Input::PageInDone { now: _, adapter }
        | Input::PageInFailed { now: _, adapter }
        | Input::PageInDropped { now: _, adapter }
        | Input::Arrived { now: _, adapter }
        | Input::FetchFailed { now: _, adapter } => dict.set_item("adapter", adapter.number())?,
    }
    Ok(dict)
}
