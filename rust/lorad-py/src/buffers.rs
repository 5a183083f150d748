//! Views of Python memory. The only module of the binding with `unsafe`.
//!
//! Invariants: a view keeps its exporter alive and its buffer locked; it is C-contiguous and of the element type that
//! was asked for (16-bit floats travel as `u16` bits). What the interpreter can't rule out is another thread that
//! writes the same array during a call: the worker owns its arrays and hands them to one call at a time.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// A read-only view of a contiguous Python buffer.
pub struct View<T: Element>(PyBuffer<T>);

/// A writable view of a contiguous Python buffer.
pub struct ViewMut<T: Element>(PyBuffer<T>);

fn contiguous<T: Element>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<PyBuffer<T>> {
    let buffer = PyBuffer::<T>::get(object).map_err(|error| {
        PyTypeError::new_err(format!("{name}: wrong element type or no buffer ({error})"))
    })?;
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err(format!("{name}: must be C-contiguous")));
    }
    Ok(buffer)
}

/// (rows, columns) of a two-dimensional buffer.
fn matrix<T: Element>(buffer: &PyBuffer<T>, name: &str) -> PyResult<(usize, usize)> {
    match buffer.shape() {
        [rows, columns] => Ok((*rows, *columns)),
        shape => Err(PyValueError::new_err(format!("{name}: two dimensions needed, got {}", shape.len()))),
    }
}

/// Refuses two buffers that share memory, one of them being written.
pub fn apart<T: Element, U: Element>(written: (&ViewMut<T>, &str), other: (&View<U>, &str)) -> PyResult<()> {
    let ((a, a_name), (b, b_name)) = (written, other);
    let (a_begin, b_begin) = (a.0.buf_ptr() as usize, b.0.buf_ptr() as usize);
    if a_begin < b_begin + b.0.len_bytes() && b_begin < a_begin + a.0.len_bytes() {
        return Err(PyValueError::new_err(format!("{a_name} and {b_name} share memory")));
    }
    Ok(())
}

impl<T: Element> View<T> {
    /// Views `object`; `name` is the argument's name for the error text.
    pub fn new(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        contiguous(object, name).map(Self)
    }

    /// (rows, columns) of a two-dimensional buffer.
    pub fn matrix(&self, name: &str) -> PyResult<(usize, usize)> {
        matrix(&self.0, name)
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        if self.0.item_count() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous, holds `item_count` elements of T, and stays locked while `self` lives.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<T>(), self.0.item_count()) }
    }
}

impl View<u16> {
    /// The bytes of the elements, in this machine's order.
    pub fn as_bytes(&self) -> &[u8] {
        let bits = self.as_slice();
        // SAFETY: the same memory, and any bytes are valid u8.
        unsafe { std::slice::from_raw_parts(bits.as_ptr().cast::<u8>(), size_of_val(bits)) }
    }
}

impl<T: Element> ViewMut<T> {
    /// Views `object` for writing; a read-only exporter is an error.
    pub fn new(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let buffer = contiguous(object, name)?;
        if buffer.readonly() {
            return Err(PyValueError::new_err(format!("{name}: is read-only")));
        }
        Ok(Self(buffer))
    }

    /// (rows, columns) of a two-dimensional buffer.
    pub fn matrix(&self, name: &str) -> PyResult<(usize, usize)> {
        matrix(&self.0, name)
    }

    /// Refuses memory shared with another written buffer; `names` says which two.
    pub fn apart_from<U: Element>(&self, other: &ViewMut<U>, names: &str) -> PyResult<()> {
        let (a, b) = (self.0.buf_ptr() as usize, other.0.buf_ptr() as usize);
        if a < b + other.0.len_bytes() && b < a + self.0.len_bytes() {
            return Err(PyValueError::new_err(format!("{names} share memory")));
        }
        Ok(())
    }

    /// Whether this is the very memory of `other`.
    pub fn is_same(&self, other: &View<T>) -> bool {
        self.0.buf_ptr() == other.0.buf_ptr() && self.0.len_bytes() == other.0.len_bytes()
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if self.0.item_count() == 0 {
            return &mut [];
        }
        // SAFETY: as for `View::as_slice`; the exporter is writable and `&mut self` makes this the only view made here.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<T>(), self.0.item_count()) }
    }
}
