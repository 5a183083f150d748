//! What a module's vectors do, once all that it adds to some elements of y is there: `y = gain · y + bias`.
//!
//! Each element by itself, a product and then a sum: its bits depend on nothing else.

use std::ops::Range;

use lorad_blocks::layout::Part;

use super::delta::{both, Delta, Target};
use super::units::Unit;

impl Delta<'_> {
    /// Ends these columns of y for some tokens, but not what is taken by itself.
    ///
    /// # Safety
    /// Nobody else may use these elements of y meanwhile.
    pub unsafe fn finish(&self, columns: Range<usize>, tokens: Range<usize>, to: Target<'_, '_>) {
        if !self.units.vectors {
            return;
        }
        let wanted = |unit: &&Unit<'_>| !unit.alone && unit.span.shape.vectors.any();
        for unit in self.units.all.iter().filter(wanted) {
            let (shared, rows) = (both(&unit.columns(), &columns), both(&unit.tokens, &tokens));
            if !shared.is_empty() && !rows.is_empty() {
                let at = to.at + (rows.start - tokens.start) * to.stride + shared.start - columns.start;
                let wanted = shared.start - unit.column..shared.end - unit.column;
                // SAFETY: the caller's promise.
                unsafe { self.finish_unit(unit, wanted, rows.len(), Target { at, ..to }) }
            }
        }
    }

    /// Ends some columns of a unit for as many rows, of which the first begins at `to`.
    ///
    /// # Safety
    /// Nobody else may use these elements of y meanwhile.
    pub(super) unsafe fn finish_unit(
        &self,
        unit: &Unit<'_>,
        wanted: Range<usize>,
        rows: usize,
        to: Target<'_, '_>,
    ) {
        // Gains come before biases.
        for chunk in unit.vector_chunks() {
            let begin = chunk.begin as usize;
            let shared = both(&wanted, &(begin..begin + chunk.len as usize));
            if shared.is_empty() {
                continue;
            }
            let values = &unit.weights(self.arena, chunk)[(shared.start - begin) * 4..][..shared.len() * 4];
            let (values, _) = values.as_chunks::<4>();
            for row in 0..rows {
                let at = to.at + row * to.stride + shared.start - wanted.start;
                // SAFETY: the caller's promise.
                let y = unsafe { to.y.part(at, shared.len()) }.iter_mut().zip(values);
                match chunk.part {
                    Part::Gain => y.for_each(|(y, gain)| *y *= f32::from_le_bytes(*gain)),
                    _ => y.for_each(|(y, bias)| *y += f32::from_le_bytes(*bias)),
                }
            }
        }
    }
}
