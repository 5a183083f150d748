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
    let buffer = PyBuffer::<T>::get(object)
        .map_err(|error| PyTypeError::new_err(format!("{name}: wrong element type or no buffer ({error})")))?;
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err(format!("{name}: must be C-contiguous")));
    }
    Ok(buffer)
}

impl<T: Element> View<T> {
    /// Views `object`; `name` is the argument's name for the error text.
    pub fn new(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        contiguous(object, name).map(Self)
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

impl<T: Element> ViewMut<T> {
    /// Views `object` for writing; a read-only exporter is an error.
    pub fn new(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let buffer = contiguous(object, name)?;
        if buffer.readonly() {
            return Err(PyValueError::new_err(format!("{name}: is read-only")));
        }
        Ok(Self(buffer))
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
