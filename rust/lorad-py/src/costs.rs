//! The cost model for Python: `default_costs`, `plan_ns`, `page_in_ns`.

use lorad_sched::{Costs, PlanRow};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(default_costs, module)?)?;
    module.add_function(wrap_pyfunction!(plan_ns, module)?)?;
    module.add_function(wrap_pyfunction!(page_in_ns, module)?)
}

/// Sets the parts that `given` names.
pub fn set_costs(costs: &mut Costs, given: &Bound<'_, PyDict>) -> PyResult<()> {
    for (name, value) in given {
        let name: String = name.extract()?;
        match costs.fields_mut().into_iter().find(|(known, _)| *known == name) {
            Some((_, field)) => *field = value.extract()?,
            None => return Err(PyTypeError::new_err(format!("there is no cost named {name}"))),
        }
    }
    Ok(())
}

fn costs_of(given: &Bound<'_, PyDict>) -> PyResult<Costs> {
    let mut costs = Costs::default();
    set_costs(&mut costs, given)?;
    Ok(costs)
}

/// The parts of the cost model by name, as a core has them that is told no others.
#[pyfunction]
fn default_costs(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let (mut costs, dict) = (Costs::default(), PyDict::new(py));
    for (name, value) in costs.fields_mut() {
        dict.set_item(name, *value)?;
    }
    Ok(dict)
}

/// Start, count, sampled, slot (-1: the base) and the adapter's pages.
type Row = (u32, u32, bool, i32, u32);

/// Nanoseconds of a step with these rows, those of an adapter adjacent, with which page-ins of so many pages begin.
#[pyfunction]
#[pyo3(signature = (costs, rows, page_in_pages = 0))]
fn plan_ns(costs: &Bound<'_, PyDict>, rows: Vec<Row>, page_in_pages: u32) -> PyResult<u64> {
    let rows = rows.into_iter().map(|(start, count, sample, slot, adapter_pages)| {
        let adapter = u32::try_from(slot).ok();
        PlanRow { start, count, sample, adapter, adapter_pages }
    });
    Ok(costs_of(costs)?.plan_ns(rows, page_in_pages))
}

/// Nanoseconds of a page-in of so many pages.
#[pyfunction]
fn page_in_ns(costs: &Bound<'_, PyDict>, pages: u32) -> PyResult<u64> {
    Ok(costs_of(costs)?.page_in_ns(pages))
}
