//! Quantised weights.

use lorad_cpu::quant::pack::Kind;
use lorad_cpu::quant::QuantMatrix as Matrix;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyFrozenSet;

use super::{call, from_op};
use crate::buffers::{apart, View, ViewMut};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("QUANT_KINDS", PyFrozenSet::new(module.py(), Kind::ALL.map(Kind::name))?)?;
    module.add_class::<QuantMatrix>()
}

/// A block-quantised `[rows, cols]` weight.
#[pyclass(module = "lorad._core", frozen)]
pub struct QuantMatrix(Matrix);

#[pymethods]
impl QuantMatrix {
    #[new]
    fn new(py: Python<'_>, kind: &str, data: &Bound<'_, PyAny>, rows: usize, cols: usize) -> PyResult<Self> {
        let kind = Kind::from_name(kind).ok_or_else(|| {
            PyValueError::new_err(format!("kind: one of QUANT_KINDS expected, got {kind:?}"))
        })?;
        let data = View::<u8>::new(data, "data")?;
        let data = data.as_slice();
        py.detach(|| Matrix::new(kind, data, rows, cols)).map(Self).map_err(from_op)
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

    fn matmul(&self, py: Python<'_>, y: &Bound<'_, PyAny>, x: &Bound<'_, PyAny>) -> PyResult<()> {
        let (mut y, x) = (ViewMut::<f32>::new(y, "y")?, View::<f32>::new(x, "x")?);
        apart((&y, "y"), (&x, "x"))?;
        let (y, x) = (y.as_mut_slice(), x.as_slice());
        // Integer products come three to a float one; each weight is read at the price of four.
        let cost = (x.len() / 3).saturating_add(4 * self.0.cols()).saturating_mul(self.0.rows());
        call(py, cost, |cpu| self.0.matmul(cpu, y, x))
    }

    fn matmul_tiles(&self, py: Python<'_>, y: &Bound<'_, PyAny>, x: &Bound<'_, PyAny>) -> PyResult<()> {
        let (mut y, x) = (ViewMut::<f32>::new(y, "y")?, View::<f32>::new(x, "x")?);
        apart((&y, "y"), (&x, "x"))?;
        let (y, x) = (y.as_mut_slice(), x.as_slice());
        call(py, x.len().saturating_mul(self.0.rows()), |cpu| self.0.matmul_tiles(cpu, y, x))
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
