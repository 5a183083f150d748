//! Attention, rope, norms, activation, embedding, sampling.

use lorad_cpu::activation::{gate_mul as run_gate, Gate};
use lorad_cpu::attention::{paged_attention as run_attention, Rows, ALL_KEYS};
use lorad_cpu::edits::Edits;
use lorad_cpu::kv::{KvGeometry, PageTable};
use lorad_cpu::rope::{rope_write as run_rope, Angles, HeadNorms};
use lorad_cpu::sample::{sample as run_sample, Chosen, Parameters, BEST_MAX};
use lorad_cpu::shared::Arena;
use lorad_cpu::{embed as rows, norm, Element};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{call, element};
use crate::buffers::{apart, View, ViewMut};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("BEST_MAX", BEST_MAX)?;
    module.add_function(wrap_pyfunction!(rope_write, module)?)?;
    module.add_function(wrap_pyfunction!(paged_attention, module)?)?;
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(add_rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(gate_mul, module)?)?;
    module.add_function(wrap_pyfunction!(embed, module)?)?;
    module.add_function(wrap_pyfunction!(gather_rows, module)?)?;
    module.add_function(wrap_pyfunction!(sample, module)?)
}

/// (layers, kv_heads, page_tokens, head_dim, element)
type Geometry = (usize, usize, usize, usize, String);

fn geometry(given: &Geometry) -> PyResult<KvGeometry> {
    let (layers, kv_heads, page_tokens, head_dim, name) = given;
    Ok(KvGeometry {
        layers: *layers,
        kv_heads: *kv_heads,
        page_tokens: *page_tokens,
        head_dim: *head_dim,
        element: element(name)?,
    })
}

/// (weight for the heads of q, for those of k, eps)
type Norms<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, f32);

#[pyfunction]
#[pyo3(signature = (qkv, cos, sin, token_pos, token_line, page_table, arena, geometry, layer, norms=None))]
fn rope_write(
    py: Python<'_>,
    qkv: &Bound<'_, PyAny>,
    cos: &Bound<'_, PyAny>,
    sin: &Bound<'_, PyAny>,
    token_pos: &Bound<'_, PyAny>,
    token_line: &Bound<'_, PyAny>,
    page_table: &Bound<'_, PyAny>,
    arena: &Bound<'_, PyAny>,
    geometry: Geometry,
    layer: usize,
    norms: Option<Norms<'_>>,
) -> PyResult<()> {
    let geometry = self::geometry(&geometry)?;
    let (mut qkv, mut arena) = (ViewMut::<f32>::new(qkv, "qkv")?, ViewMut::<u8>::new(arena, "arena")?);
    let mut views = None;
    if let Some((q, k, eps)) = &norms {
        let (q, k) = (View::<f32>::new(q, "q_norm")?, View::<f32>::new(k, "k_norm")?);
        apart((&qkv, "qkv"), (&q, "q_norm"))?;
        apart((&qkv, "qkv"), (&k, "k_norm"))?;
        views = Some((q, k, *eps));
    }
    let norms = views.as_ref().map(|(q, k, eps)| HeadNorms { q: q.as_slice(), k: k.as_slice(), eps: *eps });
    let (cos, sin) = (View::<f32>::new(cos, "cos")?, View::<f32>::new(sin, "sin")?);
    let (position, line) =
        (View::<i32>::new(token_pos, "token_pos")?, View::<i32>::new(token_line, "token_line")?);
    let table = View::<i32>::new(page_table, "page_table")?;
    let (columns, page_bytes, width) =
        (table.matrix("page_table")?.1, arena.matrix("arena")?.1, qkv.matrix("qkv")?.1);
    let heads = width.checked_div(geometry.head_dim).unwrap_or(0).saturating_sub(2 * geometry.kv_heads);
    let (cos, sin, position, line) = (cos.as_slice(), sin.as_slice(), position.as_slice(), line.as_slice());
    let (table, qkv, arena) = (table.as_slice(), qkv.as_mut_slice(), arena.as_mut_slice());
    call(py, qkv.len() * 8, |cpu| {
        let (arena, table) = (Arena::new(arena, page_bytes)?, PageTable::new(table, columns)?);
        let angles = Angles { cos, sin };
        run_rope(cpu, qkv, angles, norms, position, line, table, &arena, geometry, heads, layer)
    })
}

#[pyfunction]
#[pyo3(signature = (
    out, q, arena, geometry, layer, page_table, row_line, row_start, row_offset, scale, window=None
))]
fn paged_attention(
    py: Python<'_>,
    out: &Bound<'_, PyAny>,
    q: &Bound<'_, PyAny>,
    arena: &Bound<'_, PyAny>,
    geometry: Geometry,
    layer: usize,
    page_table: &Bound<'_, PyAny>,
    row_line: &Bound<'_, PyAny>,
    row_start: &Bound<'_, PyAny>,
    row_offset: &Bound<'_, PyAny>,
    scale: f32,
    window: Option<usize>,
) -> PyResult<()> {
    let geometry = self::geometry(&geometry)?;
    let (mut out, q) = (ViewMut::<f32>::new(out, "out")?, View::<f32>::new(q, "q")?);
    apart((&out, "out"), (&q, "q"))?;
    let (width, q_width) = (out.matrix("out")?.1, q.matrix("q")?.1);
    let mut arena = ViewMut::<u8>::new(arena, "arena")?;
    let table = View::<i32>::new(page_table, "page_table")?;
    let (columns, page_bytes) = (table.matrix("page_table")?.1, arena.matrix("arena")?.1);
    let (line, start) = (View::<i32>::new(row_line, "row_line")?, View::<i32>::new(row_start, "row_start")?);
    let offset = View::<i32>::new(row_offset, "row_offset")?;
    let rows = Rows { line: line.as_slice(), start: start.as_slice(), offset: offset.as_slice() };
    let heads = width.checked_div(geometry.head_dim).unwrap_or(0);
    let (out, q, arena, table) = (out.as_mut_slice(), q.as_slice(), arena.as_mut_slice(), table.as_slice());
    let window = window.unwrap_or(ALL_KEYS);
    let keys: usize =
        rows.start.iter().map(|start| usize::try_from(*start).unwrap_or(0).min(window) + 64).sum();
    call(py, keys.saturating_mul(width), |cpu| {
        let (arena, table) = (Arena::new(arena, page_bytes)?, PageTable::new(table, columns)?);
        run_attention(cpu, out, q, q_width, &arena, geometry, layer, table, rows, heads, scale, window)
    })
}

#[pyfunction]
fn rms_norm(
    py: Python<'_>,
    out: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    weight: &Bound<'_, PyAny>,
    eps: f32,
) -> PyResult<()> {
    let (mut out, x) = (ViewMut::<f32>::new(out, "out")?, View::<f32>::new(x, "x")?);
    let weight = View::<f32>::new(weight, "weight")?;
    apart((&out, "out"), (&weight, "weight"))?;
    let weight = weight.as_slice();
    if out.is_same(&x) {
        drop(x);
        let out = out.as_mut_slice();
        return call(py, out.len(), |cpu| norm::rms_norm_in_place(cpu, out, weight, eps));
    }
    apart((&out, "out"), (&x, "x"))?;
    let (out, x) = (out.as_mut_slice(), x.as_slice());
    call(py, out.len(), |cpu| norm::rms_norm(cpu, out, x, weight, eps))
}

#[pyfunction]
fn add_rms_norm(
    py: Python<'_>,
    out: &Bound<'_, PyAny>,
    residual: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    weight: &Bound<'_, PyAny>,
    eps: f32,
) -> PyResult<()> {
    let (mut out, x) = (ViewMut::<f32>::new(out, "out")?, View::<f32>::new(x, "x")?);
    let (mut residual, weight) =
        (ViewMut::<f32>::new(residual, "residual")?, View::<f32>::new(weight, "weight")?);
    for (other, name) in [(&x, "x"), (&weight, "weight")] {
        apart((&out, "out"), (other, name))?;
        apart((&residual, "residual"), (other, name))?;
    }
    out.apart_from(&residual, "out and residual")?;
    let (out, residual, x, weight) =
        (out.as_mut_slice(), residual.as_mut_slice(), x.as_slice(), weight.as_slice());
    call(py, out.len(), |cpu| norm::add_rms_norm(cpu, out, residual, x, weight, eps))
}

#[pyfunction]
fn gate_mul(py: Python<'_>, out: &Bound<'_, PyAny>, gate_up: &Bound<'_, PyAny>, gate: &str) -> PyResult<()> {
    let gate = self::gate(gate)?;
    let (mut out, gate_up) = (ViewMut::<f32>::new(out, "out")?, View::<f32>::new(gate_up, "gate_up")?);
    apart((&out, "out"), (&gate_up, "gate_up"))?;
    let width = out.matrix("out")?.1;
    let (out, gate_up) = (out.as_mut_slice(), gate_up.as_slice());
    call(py, out.len() * 8, |cpu| run_gate(cpu, gate, out, gate_up, width))
}

/// The activation of that name.
pub fn gate(name: &str) -> PyResult<Gate> {
    match name {
        "silu" => Ok(Gate::Silu),
        "gelu_tanh" => Ok(Gate::GeluTanh),
        _ => Err(PyValueError::new_err(format!("gate: silu or gelu_tanh expected, got {name:?}"))),
    }
}

#[pyfunction]
#[pyo3(signature = (out, table, ids, element="f32"))]
fn embed(
    py: Python<'_>,
    out: &Bound<'_, PyAny>,
    table: &Bound<'_, PyAny>,
    ids: &Bound<'_, PyAny>,
    element: &str,
) -> PyResult<()> {
    let element = super::element(element)?;
    let (mut out, ids) = (ViewMut::<f32>::new(out, "out")?, View::<i32>::new(ids, "ids")?);
    let hidden = out.matrix("out")?.1;
    if element == Element::F32 {
        let table = View::<f32>::new(table, "table")?;
        apart((&out, "out"), (&table, "table"))?;
        let (out, table, ids) = (out.as_mut_slice(), table.as_slice(), ids.as_slice());
        return call(py, out.len(), |_| rows::gather_rows(out, table, hidden, ids));
    }
    let table = View::<u16>::new(table, "table")?;
    let (out, table, ids) = (out.as_mut_slice(), table.as_bytes(), ids.as_slice());
    call(py, out.len(), |cpu| rows::embed(cpu, out, table, element, hidden, ids))
}

#[pyfunction]
fn gather_rows(
    py: Python<'_>,
    out: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    index: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (mut out, x) = (ViewMut::<f32>::new(out, "out")?, View::<f32>::new(x, "x")?);
    apart((&out, "out"), (&x, "x"))?;
    let (hidden, index) = (out.matrix("out")?.1, View::<i32>::new(index, "index")?);
    let (out, x, index) = (out.as_mut_slice(), x.as_slice(), index.as_slice());
    call(py, out.len(), |_| rows::gather_rows(out, x, hidden, index))
}

/// Positions from u32 or i32.
fn counters(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(view) = View::<u32>::new(object, "counter") {
        return Ok(view.as_slice().to_vec());
    }
    let view = View::<i32>::new(object, "counter")?;
    let negative = || PyValueError::new_err("counter: must not be negative");
    view.as_slice().iter().map(|counter| u32::try_from(*counter).map_err(|_| negative())).collect()
}

/// (offset, token, change, mask_row, mask), as `Edits` has them
type EditArrays<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Views of the arrays of edits.
struct EditViews {
    offset: View<i32>,
    token: View<i32>,
    change: View<f32>,
    mask_row: View<i32>,
    mask: View<i32>,
}

impl EditViews {
    fn new((offset, token, change, mask_row, mask): &EditArrays<'_>) -> PyResult<Self> {
        Ok(Self {
            offset: View::new(offset, "edit offset")?,
            token: View::new(token, "edit token")?,
            change: View::new(change, "edit change")?,
            mask_row: View::new(mask_row, "mask row")?,
            mask: View::new(mask, "mask")?,
        })
    }

    fn edits(&self) -> Edits<'_> {
        Edits {
            offset: self.offset.as_slice(),
            token: self.token.as_slice(),
            change: self.change.as_slice(),
            mask_row: self.mask_row.as_slice(),
            mask: self.mask.as_slice(),
        }
    }
}

#[pyfunction]
#[pyo3(signature = (
    tokens, logprobs, logits, temperature, top_k, top_p, min_p, seed, counter, best_tokens=None, best_logprobs=None,
    edits=None
))]
fn sample(
    py: Python<'_>,
    tokens: &Bound<'_, PyAny>,
    logprobs: Option<&Bound<'_, PyAny>>,
    logits: &Bound<'_, PyAny>,
    temperature: &Bound<'_, PyAny>,
    top_k: &Bound<'_, PyAny>,
    top_p: &Bound<'_, PyAny>,
    min_p: &Bound<'_, PyAny>,
    seed: &Bound<'_, PyAny>,
    counter: &Bound<'_, PyAny>,
    best_tokens: Option<&Bound<'_, PyAny>>,
    best_logprobs: Option<&Bound<'_, PyAny>>,
    edits: Option<EditArrays<'_>>,
) -> PyResult<()> {
    let floats = |object: Option<&Bound<'_, PyAny>>, name| {
        object.map(|object| ViewMut::<f32>::new(object, name)).transpose()
    };
    let mut tokens = ViewMut::<i32>::new(tokens, "tokens")?;
    let mut best_tokens = best_tokens.map(|object| ViewMut::<i32>::new(object, "best_tokens")).transpose()?;
    let (mut logprobs, mut best_logprobs) =
        (floats(logprobs, "logprobs")?, floats(best_logprobs, "best_logprobs")?);
    let logits = View::<f32>::new(logits, "logits")?;
    for (written, name) in [(&logprobs, "logprobs"), (&best_logprobs, "best_logprobs")] {
        if let Some(written) = written {
            apart((written, name), (&logits, "logits"))?;
        }
    }
    let vocab = logits.matrix("logits")?.1;
    let (temperature, top_k) =
        (View::<f32>::new(temperature, "temperature")?, View::<i32>::new(top_k, "top_k")?);
    let (top_p, min_p) = (View::<f32>::new(top_p, "top_p")?, View::<f32>::new(min_p, "min_p")?);
    let (seed, counter) = (View::<u64>::new(seed, "seed")?, counters(counter)?);
    let parameters = Parameters {
        temperature: temperature.as_slice(),
        top_k: top_k.as_slice(),
        top_p: top_p.as_slice(),
        min_p: min_p.as_slice(),
        seed: seed.as_slice(),
        counter: &counter,
    };
    let chosen = Chosen {
        tokens: tokens.as_mut_slice(),
        logprobs: logprobs.as_mut().map_or(&mut [], ViewMut::as_mut_slice),
        best_tokens: best_tokens.as_mut().map_or(&mut [], ViewMut::as_mut_slice),
        best_logprobs: best_logprobs.as_mut().map_or(&mut [], ViewMut::as_mut_slice),
    };
    let views = edits.as_ref().map(EditViews::new).transpose()?;
    let edits = views.as_ref().map(EditViews::edits).unwrap_or_default();
    let logits = logits.as_slice();
    call(py, logits.len() * 8, |cpu| run_sample(cpu, logits, vocab, parameters, edits, chosen))
}
