//! Weights of floats.

use lorad_cpu::dense::DenseMatrix as Matrix;
use pyo3::prelude::*;

use super::{call, element, from_op};
use crate::buffers::{apart, View, ViewMut};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DenseMatrix>()
}

/// A `[rows, cols]` weight of f32, f16 or bf16.
#[pyclass(module = "lorad._core", frozen)]
pub struct DenseMatrix(Matrix);

#[pymethods]
impl DenseMatrix {
    #[new]
    #[pyo3(signature = (element_name, data, rows, cols))]
    fn new(
        py: Python<'_>,
        element_name: &str,
        data: &Bound<'_, PyAny>,
        rows: usize,
        cols: usize,
    ) -> PyResult<Self> {
        let element = element(element_name)?;
        let data = View::<u8>::new(data, "data")?;
        let data = data.as_slice();
        py.detach(|| Matrix::new(element, data, rows, cols)).map(Self).map_err(from_op)
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn matmul(&self, py: Python<'_>, y: &Bound<'_, PyAny>, x: &Bound<'_, PyAny>) -> PyResult<()> {
        let (mut y, x) = (ViewMut::<f32>::new(y, "y")?, View::<f32>::new(x, "x")?);
        apart((&y, "y"), (&x, "x"))?;
        let (y, x) = (y.as_mut_slice(), x.as_slice());
        let cost = x.len().saturating_add(4 * self.0.cols()).saturating_mul(self.0.rows());
        call(py, cost, |cpu| self.0.matmul(cpu, y, x))
    }

    fn widen_rows(&self, py: Python<'_>, out: &Bound<'_, PyAny>, ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let (mut out, ids) = (ViewMut::<f32>::new(out, "out")?, View::<i32>::new(ids, "ids")?);
        let (out, ids) = (out.as_mut_slice(), ids.as_slice());
        call(py, out.len() * 4, |_| self.0.widen_rows(out, ids))
    }
}
