//! Buffers that begin on a cache line: a vector of 64 bytes then lies in one line, not across two.

use std::ops::{Deref, DerefMut};

/// Bytes of a line.
const LINE: usize = 64;

/// Numbers whose first one begins a cache line.
#[derive(Default)]
pub struct Aligned<T> {
    data: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// `len` zeros.
    pub fn zeros(len: usize) -> Self {
        let spare = LINE / size_of::<T>();
        let data = vec![T::default(); len + spare - 1];
        let start = data.as_ptr().align_offset(LINE).min(spare - 1);
        Self { data, start, len }
    }

    /// Has at least `len` elements afterwards; what they were is lost if it had fewer.
    pub fn reserve(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeros(len);
        }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.data[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_a_line_and_grows() {
        let mut floats = Aligned::<f32>::default();
        for len in [0, 1, 5, 1000, 3] {
            floats.reserve(len);
            assert!(floats.len() >= len && floats.iter().all(|x| *x == 0.0));
            assert!(floats.is_empty() || floats.as_ptr().align_offset(LINE) == 0);
        }
        assert_eq!(floats.len(), 1000);
    }
}
