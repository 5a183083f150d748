//! Reports as plain data.

use lorad_sim::report::{Class, Percentiles};
use lorad_sim::Report;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// `name`, the numbers by their names, `all`, `tenants`, `adapters`, `refusals`, `dump`.
pub fn report_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let (dict, refusals, numbers) = (PyDict::new(py), PyDict::new(py), PyDict::new(py));
    for (name, number) in report.numbers.named() {
        numbers.set_item(name, number)?;
    }
    for (code, count) in &report.refusals {
        refusals.set_item(code, count)?;
    }
    dict.set_item("name", &report.name)?;
    dict.set_item("numbers", numbers)?;
    dict.set_item("all", class_dict(py, &report.all)?)?;
    dict.set_item("tenants", classes(py, &report.tenants)?)?;
    dict.set_item("adapters", classes(py, &report.adapters)?)?;
    dict.set_item("refusals", refusals)?;
    dict.set_item("dump", &report.dump)?;
    Ok(dict)
}

fn classes<'py>(py: Python<'py>, classes: &[Class]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for class in classes {
        list.append(class_dict(py, class)?)?;
    }
    Ok(list)
}

fn class_dict<'py>(py: Python<'py>, class: &Class) -> PyResult<Bound<'py, PyDict>> {
    let Class { name, requests, refused, finished, aborted, failed, tokens, wait_us, ttft_us, total_us } =
        class;
    let dict = PyDict::new(py);
    dict.set_item("name", name)?;
    let counts = [
        ("requests", requests),
        ("refused", refused),
        ("finished", finished),
        ("aborted", aborted),
        ("failed", failed),
        ("tokens", tokens),
    ];
    for (name, count) in counts {
        dict.set_item(name, count)?;
    }
    for (name, times) in [("wait_us", wait_us), ("ttft_us", ttft_us), ("total_us", total_us)] {
        dict.set_item(name, times_dict(py, times)?)?;
    }
    Ok(dict)
}

fn times_dict<'py>(py: Python<'py>, times: &Percentiles) -> PyResult<Bound<'py, PyDict>> {
    let Percentiles { count, p50, p90, p99, max, mean } = *times;
    let dict = PyDict::new(py);
    let figures = [("count", count), ("p50", p50), ("p90", p90), ("p99", p99), ("max", max), ("mean", mean)];
    for (name, figure) in figures {
        dict.set_item(name, figure)?;
    }
    Ok(dict)
}
