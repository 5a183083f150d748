//! Rows by index: of a dense embedding table, or of activations.

use crate::cpu::{Cpu, Level};
use crate::error::{index, length, require};
use crate::number::Number;
use crate::{with_number, Element, OpError};

/// `out [n, hidden] = table[ids]`; `table` holds the bytes of `[vocab, hidden]` elements.
pub fn embed(
    cpu: &Cpu,
    out: &mut [f32],
    table: &[u8],
    element: Element,
    hidden: usize,
    ids: &[i32],
) -> Result<(), OpError> {
    require(hidden > 0, "hidden must be positive", hidden)?;
    length("out", ids.len() * hidden, out.len())?;
    let row_bytes = hidden * element.bytes();
    let vocab = table.len() / row_bytes;
    length("table", vocab * row_bytes, table.len())?;
    for &id in ids {
        index("ids", id, vocab)?;
    }
    for (out, &id) in out.chunks_exact_mut(hidden).zip(ids) {
        let row = &table[id as usize * row_bytes..][..row_bytes];
        with_number!(element, N => match cpu.level {
            Level::Portable => widen_scalar::<N>(out, row),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) | Level::Avx512(avx2, _) => avx2.widen::<N>(out, row),
        });
    }
    Ok(())
}

fn widen_scalar<N: Number>(out: &mut [f32], row: &[u8]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = N::get(row, i);
    }
}

/// `out[i] = x[rows[i]]`; `x [m, hidden]`, `out [n, hidden]`.
pub fn gather_rows(out: &mut [f32], x: &[f32], hidden: usize, rows: &[i32]) -> Result<(), OpError> {
    require(hidden > 0, "hidden must be positive", hidden)?;
    length("out", rows.len() * hidden, out.len())?;
    let count = x.len() / hidden;
    length("x", count * hidden, x.len())?;
    for &row in rows {
        index("index", row, count)?;
    }
    for (out, &row) in out.chunks_exact_mut(hidden).zip(rows) {
        out.copy_from_slice(&x[row as usize * hidden..][..hidden]);
    }
    Ok(())
}
