//! Dumps as plain data for Python: `snapshot`.

use lorad_sched::snapshot::{
    Adapter, AdapterState, Cached, Group, Listed, Prefix, Queue, Request, RequestState, Snapshot, Tenant,
};
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
    // taken apart so that a new kind of line doesn't compile before it's told
    let Snapshot {
        time,
        pages,
        rows,
        tenants,
        adapters,
        requests,
        queues,
        listed,
        urgent,
        wanted,
        prefix,
        clears,
        others,
    } = snapshot;
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
        "tenants": list(py, tenants, tenant)?,
        "adapters": list(py, adapters, adapter)?,
        "requests": list(py, requests, request)?,
        "queues": list(py, queues, queue)?,
        "listed": list(py, listed, place)?,
        "urgent": list(py, urgent, group)?,
        "wanted": wanted,
        "prefix": prefix.map(|prefix| prefix_dict(py, prefix)).transpose()?,
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
    let adapter = group.adapter.map(|adapter| adapter.number());
    Ok(dict!(py, "tenant": group.tenant, "adapter": adapter, "priority": group.priority.name()))
}

fn tenant(py: Python<'_>, tenant: Tenant) -> PyResult<Bound<'_, PyDict>> {
    Ok(dict!(
        py,
        "id": tenant.tenant,
        "weight": tenant.weight,
        "service": tenant.service,
        "running": tenant.running,
        "waiting": tenant.waiting,
        "pages": tenant.pages,
        "clock": tenant.clock,
        "standing": tenant.standing.name(),
    ))
}

fn adapter(py: Python<'_>, adapter: Adapter) -> PyResult<Bound<'_, PyDict>> {
    let dict = dict!(
        py,
        "id": adapter.adapter.number(),
        "tag": adapter.tag,
        "state": adapter.state.name(),
        "slot": adapter.state.slot(),
        "pages": adapter.state.pages(),
        "draining": adapter.draining,
        "pinned": adapter.pinned,
        "running": adapter.running,
        "waiting": adapter.waiting,
    );
    match adapter.state {
        AdapterState::Remote { asked } => dict.set_item("asked", asked)?,
        AdapterState::Loading { since, layers, layers_max, dropped, .. } => {
            dict.set_item("since", since)?;
            dict.set_item("layers", (layers, layers_max))?;
            dict.set_item("dropped", dropped)?;
        }
        AdapterState::Hot { last_use, .. } => dict.set_item("last_use", last_use)?,
        AdapterState::Cold | AdapterState::Failed { .. } => {}
    }
    Ok(dict)
}

fn request(py: Python<'_>, request: Request) -> PyResult<Bound<'_, PyDict>> {
    let dict = dict!(py, "id": request.request, "group": group(py, request.group)?);
    match request.state {
        RequestState::Running { line, computed, length, planned, answered, max_tokens, pages, cached } => {
            dict.set_item("state", "running")?;
            dict.set_item("line", line)?;
            dict.set_item("computed", computed)?;
            dict.set_item("length", length)?;
            dict.set_item("planned", planned)?;
            dict.set_item("answered", answered)?;
            dict.set_item("max_tokens", max_tokens)?;
            dict.set_item("pages", pages)?;
            dict.set_item("cached", cached)?;
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
    let (waited, bound) = queue.waits.unzip();
    Ok(dict!(
        py,
        "group": group(py, queue.group)?,
        "waiting": waiting,
        "waited": waited,
        "bound": bound,
    ))
}

fn place(py: Python<'_>, listed: Listed) -> PyResult<Bound<'_, PyDict>> {
    Ok(dict!(py, "place": listed.place, "groups": list(py, listed.groups, group)?))
}

fn prefix_dict(py: Python<'_>, prefix: Prefix) -> PyResult<Bound<'_, PyDict>> {
    Ok(dict!(
        py,
        "pages": prefix.pages,
        "pages_max": prefix.pages_max,
        "evictable": prefix.evictable,
        "order": prefix.order,
        "next": prefix.next,
        "cached": list(py, prefix.cached, cached)?,
    ))
}

fn cached(py: Python<'_>, cached: Cached) -> PyResult<Bound<'_, PyDict>> {
    Ok(dict!(
        py,
        "page": cached.page,
        "generation": cached.domain.generation,
        "tenant": cached.domain.tenant,
        "doomed": cached.doomed,
        "above": cached.above,
        "col": cached.col,
        "tokens": cached.tokens,
        "holders": cached.holders,
        "heat": cached.heat,
        "used": cached.used,
    ))
}
