//! Dumps as plain data for Python: `snapshot`.

use lorad_sched::snapshot::{Adapter, AdapterState, Group, Listed, Queue, Request, RequestState, Snapshot};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::trace::unreadable;

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(snapshot, module)?)
}

macro_rules! dict {
    ($py:ident, $($name:literal: $value:expr),+ $(,)?) => {{
        let dict = PyDict::new($py);
        $(dict.set_item($name, $value)?;)+
        dict
    }};
}

/// What a dump says, as plain data; `lorad.debug.Snapshot` has the fields.
#[pyfunction]
fn snapshot<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyDict>> {
    let snapshot =
        Snapshot::parse(text).map_err(|error| unreadable(py, error.to_string(), "not_a_dump", error.line))?;
    let Snapshot { time, pages, rows, adapters, requests, queues, listed, urgent, clears, others } = snapshot;
    Ok(dict!(
        py,
        "now": time.now,
        "plans": time.plans,
        "in_flight": time.in_flight,
        "pages_total": pages.total,
        "pages": dict_of(py, pages.owners)?,
        "running": rows.running,
        "rows_max": rows.rows_max,
        "waiting": rows.waiting,
        "waiting_max": rows.waiting_max,
        "adapters": list(py, adapters, adapter)?,
        "requests": list(py, requests, request)?,
        "queues": list(py, queues, queue)?,
        "listed": list(py, listed, place)?,
        "urgent": list(py, urgent, group)?,
        "clears": clears,
        "others": list(py, others, |py, (line, text)| Ok(dict!(py, "line": line + 1, "text": text)))?,
    ))
}

fn list<'py, T>(
    py: Python<'py>,
    all: impl IntoIterator<Item = T>,
    each: impl Fn(Python<'py>, T) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for one in all {
        list.append(each(py, one)?)?;
    }
    Ok(list)
}

fn dict_of(py: Python<'_>, pairs: Vec<(String, u32)>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in pairs {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

fn group(py: Python<'_>, group: Group) -> PyResult<Bound<'_, PyDict>> {
    Ok(dict!(py, "adapter": group.adapter().map(|adapter| adapter.number())))
}

fn adapter(py: Python<'_>, adapter: Adapter) -> PyResult<Bound<'_, PyDict>> {
    let (since, last_use) = match adapter.state {
        AdapterState::Loading { since, .. } => (Some(since), None),
        AdapterState::Hot { last_use, .. } => (None, Some(last_use)),
        AdapterState::Cold | AdapterState::Failed { .. } => (None, None),
    };
    Ok(dict!(
        py,
        "id": adapter.adapter.number(),
        "tag": adapter.tag,
        "state": adapter.state.name(),
        "slot": adapter.state.slot(),
        "since": since,
        "last_use": last_use,
        "pages": adapter.state.pages(),
        "draining": adapter.draining,
        "running": adapter.running,
        "waiting": adapter.waiting,
    ))
}

fn request(py: Python<'_>, request: Request) -> PyResult<Bound<'_, PyDict>> {
    let dict = dict!(py, "id": request.request, "group": group(py, request.group)?);
    match request.state {
        RequestState::Running { line, computed, length, planned, answered, max_tokens, tenant, pages } => {
            dict.set_item("state", "running")?;
            dict.set_item("line", line)?;
            dict.set_item("computed", computed)?;
            dict.set_item("length", length)?;
            dict.set_item("planned", planned)?;
            dict.set_item("answered", answered)?;
            dict.set_item("max_tokens", max_tokens)?;
            dict.set_item("tenant", tenant)?;
            dict.set_item("pages", pages)?;
        }
        RequestState::Ending { line, pages } => {
            dict.set_item("state", "ending")?;
            dict.set_item("line", line)?;
            dict.set_item("pages", pages)?;
        }
    }
    Ok(dict)
}

fn queue(py: Python<'_>, queue: Queue) -> PyResult<Bound<'_, PyDict>> {
    let waiting = list(py, queue.waiting, |py, one| {
        let (answered, max_tokens) = one.preempted.unzip();
        Ok(dict!(py, "id": one.request, "answered": answered, "max_tokens": max_tokens))
    })?;
    let (since, passed_over) = (queue.since, queue.passed_over);
    Ok(dict!(
        py,
        "group": group(py, queue.group)?,
        "waiting": waiting,
        "since": since,
        "passed_over": passed_over,
    ))
}

fn place(py: Python<'_>, listed: Listed) -> PyResult<Bound<'_, PyDict>> {
    Ok(dict!(py, "place": listed.place, "groups": list(py, listed.groups, group)?))
}
