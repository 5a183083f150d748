//! Events for Python, as (kind, id of request or adapter, value).

use lorad_sched::{Event, FailReason, FinishReason};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

/// Events as a list of tuples.
pub fn event_list<'py>(
    py: Python<'py>,
    events: impl IntoIterator<Item = Event>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for event in events {
        list.append(event_tuple(py, event)?)?;
    }
    Ok(list)
}

fn event_tuple(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyTuple>> {
    match event {
        Event::Token { request, token } => (intern!(py, "token"), request, token).into_pyobject(py),
        Event::Admitted { request, line } => (intern!(py, "admitted"), request, line).into_pyobject(py),
        Event::Preempted { request } => (intern!(py, "preempted"), request, 0).into_pyobject(py),
        Event::Finished { request, reason } => {
            (intern!(py, "finished"), request, reason_name(py, reason)).into_pyobject(py)
        }
        Event::AdapterWanted { adapter } => {
            (intern!(py, "adapter_wanted"), adapter.number(), 0).into_pyobject(py)
        }
        Event::AdapterDropped { adapter } => {
            (intern!(py, "adapter_dropped"), adapter.number(), 0).into_pyobject(py)
        }
        Event::AdapterLoading { adapter, slot } => {
            (intern!(py, "adapter_loading"), adapter.number(), slot).into_pyobject(py)
        }
        Event::AdapterHot { adapter, slot } => {
            (intern!(py, "adapter_hot"), adapter.number(), slot).into_pyobject(py)
        }
        Event::AdapterEvicted { adapter } => {
            (intern!(py, "adapter_evicted"), adapter.number(), 0).into_pyobject(py)
        }
        Event::AdapterFailed { adapter } => {
            (intern!(py, "adapter_failed"), adapter.number(), 0).into_pyobject(py)
        }
        Event::AdapterGone { adapter } => {
            (intern!(py, "adapter_gone"), adapter.number(), 0).into_pyobject(py)
        }
    }
}

fn reason_name(py: Python<'_>, reason: FinishReason) -> &Bound<'_, PyString> {
    match reason {
        FinishReason::Stop => intern!(py, "stop"),
        FinishReason::Length => intern!(py, "length"),
        FinishReason::Aborted => intern!(py, "aborted"),
        FinishReason::Failed { why } => match why {
            FailReason::PageIn => intern!(py, "failed_page_in"),
            FailReason::Row => intern!(py, "failed_row"),
            FailReason::Plan => intern!(py, "failed_plan"),
            FailReason::Fetch => intern!(py, "failed_fetch"),
            FailReason::Deadline => intern!(py, "failed_deadline"),
        },
    }
}
