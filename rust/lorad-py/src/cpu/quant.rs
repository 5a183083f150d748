//! Quantised weights.

use lorad_cpu::quant::pack::Kind;
use lorad_cpu::quant::{Along, QuantMatrix as Matrix, GATED_ROWS};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyFrozenSet;

use super::adapter::{Delta, DeltaViews};
use super::ops::gate;
use super::{call, from_op};
use crate::buffers::{apart, View, ViewMut};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("QUANT_KINDS", PyFrozenSet::new(module.py(), Kind::ALL.map(Kind::name))?)?;
    module.add("GATED_ROWS", GATED_ROWS)?;
    module.add_class::<QuantMatrix>()
}

/// A block-quantised `[rows, cols]` weight.
#[pyclass(module = "lorad._core", frozen)]
pub struct QuantMatrix(Matrix);

#[pymethods]
impl QuantMatrix {
    #[new]
    #[pyo3(signature = (kind, data, rows, cols, *, fine=false))]
    fn new(
        py: Python<'_>,
        kind: &str,
        data: &Bound<'_, PyAny>,
        rows: usize,
        cols: usize,
        fine: bool,
    ) -> PyResult<Self> {
        let kind = Kind::from_name(kind).ok_or_else(|| {
            PyValueError::new_err(format!("kind: one of QUANT_KINDS expected, got {kind:?}"))
        })?;
        let data = View::<u8>::new(data, "data")?;
        let data = data.as_slice();
        let made = py.detach(|| Matrix::new(kind, data, rows, cols)).map_err(from_op)?;
        Ok(Self(if fine { made.fine() } else { made }))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind().name()
    }

    #[getter]
    fn rows(&self) -> usize {
        self.0.rows()
    }

    #[getter]
    fn cols(&self) -> usize {
        self.0.cols()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    #[pyo3(signature = (y, x, *, tiles=false, delta=None, gate=None))]
    fn matmul(
        &self,
        py: Python<'_>,
        y: &Bound<'_, PyAny>,
        x: &Bound<'_, PyAny>,
        tiles: bool,
        delta: Option<Delta<'_>>,
        gate: Option<&str>,
    ) -> PyResult<Vec<usize>> {
        let (mut y, x) = (ViewMut::<f32>::new(y, "y")?, View::<f32>::new(x, "x")?);
        apart((&y, "y"), (&x, "x"))?;
        let gate = gate.map(self::gate).transpose()?;
        let (rows, cols) = (self.0.rows(), self.0.cols());
        let mut views = delta.map(DeltaViews::new).transpose()?;
        let (y, x) = (y.as_mut_slice(), x.as_slice());
        // Integer products come three to a float one; each weight is read at the price of four.
        let mut cost = (x.len() / 3).saturating_add(4 * cols).saturating_mul(rows);
        cost = cost.saturating_add(views.as_ref().map_or(0, |views| views.cost(x.len() / cols, rows, cols)));
        let delta = views.as_mut().map(DeltaViews::view);
        call(py, cost, |cpu| {
            let mut run = |along: &Along<'_>| match tiles {
                true => self.0.matmul_tiles(cpu, y, x, along),
                false => self.0.matmul(cpu, y, x, along),
            };
            match delta {
                None => run(&Along { adapters: None, gate }),
                Some(delta) => delta
                    .with(|adapters, modules| run(&Along { adapters: Some((*adapters, *modules)), gate })),
            }
        })
    }

    fn dequantize(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut out = ViewMut::<f32>::new(out, "out")?;
        let out = out.as_mut_slice();
        call(py, out.len() * 4, |_| self.0.dequantize(out))
    }

    fn dequantize_rows(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (mut out, ids) = (ViewMut::<f32>::new(out, "out")?, View::<i32>::new(ids, "ids")?);
        let (out, ids) = (out.as_mut_slice(), ids.as_slice());
        call(py, out.len() * 4, |_| self.0.dequantize_rows(out, ids))
    }
}
