//! Adapter layouts, the device table, and batched LoRA.

use std::sync::{Arc, PoisonError, RwLock};

use lorad_blocks::layout::{AdapterLayout as Layout, ModuleShape, Part, TILE_ROWS};
use lorad_cpu::lora::{lora as run_lora, Groups};
use lorad_cpu::shared::Arena;
use lorad_cpu::table::AdapterTable as Table;
use pyo3::prelude::*;

use super::{call, element, from_layout, from_op};
use crate::buffers::{apart, View, ViewMut};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TILE_ROWS", TILE_ROWS)?;
    module.add_class::<AdapterLayout>()?;
    module.add_class::<AdapterTable>()?;
    module.add_function(wrap_pyfunction!(lora, module)?)
}

/// (page, byte offset, "a" or "b", rank_begin, rows, begin, len)
type Chunk = (u32, u32, &'static str, u32, u32, u32, u32);

/// How an adapter lies in its pages.
#[pyclass(module = "lorad._core", frozen)]
pub struct AdapterLayout(Arc<Layout>);

#[pymethods]
impl AdapterLayout {
    #[new]
    #[pyo3(signature = (page_bytes, element, modules))]
    fn new(page_bytes: usize, element: &str, modules: Vec<(u32, u32, u32, u32, u32, f32)>) -> PyResult<Self> {
        let shapes: Vec<ModuleShape> = modules
            .into_iter()
            .map(|(layer, module, in_features, out_features, rank, scale)| ModuleShape {
                layer,
                module,
                in_features,
                out_features,
                rank,
                scale,
            })
            .collect();
        let layout = Layout::new(page_bytes, self::element(element)?, &shapes).map_err(from_layout)?;
        Ok(Self(Arc::new(layout)))
    }

    #[getter]
    fn page_bytes(&self) -> usize {
        self.0.page_bytes()
    }

    #[getter]
    fn element(&self) -> &'static str {
        self.0.element().name()
    }

    #[getter]
    fn pages(&self) -> usize {
        self.0.pages()
    }

    #[getter]
    fn weight_bytes(&self) -> usize {
        self.0.weight_bytes()
    }

    #[getter]
    fn layer_pages(&self) -> Vec<u32> {
        self.0.layer_pages().to_vec()
    }

    fn chunks(&self, layer: u32, module: u32) -> Vec<Chunk> {
        let Some(span) = self.0.span(layer, module) else { return Vec::new() };
        let all = self.0.a_chunks(span).iter().chain(self.0.b_chunks(span));
        all.map(|chunk| {
            let part = match chunk.part {
                Part::A => "a",
                Part::B => "b",
            };
            (chunk.page, chunk.offset, part, chunk.rank_begin, chunk.rows, chunk.begin, chunk.len)
        })
        .collect()
    }

    fn pack(
        &self,
        py: Python<'_>,
        image: &Bound<'_, PyAny>,
        layer: u32,
        module: u32,
        a: &Bound<'_, PyAny>,
        b: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let mut image = ViewMut::<u8>::new(image, "image")?;
        let (a, b) = (View::<u8>::new(a, "a")?, View::<u8>::new(b, "b")?);
        apart((&image, "image"), (&a, "a"))?;
        apart((&image, "image"), (&b, "b"))?;
        let (image, a, b) = (image.as_mut_slice(), a.as_slice(), b.as_slice());
        py.detach(|| self.0.pack(image, layer, module, a, b)).map_err(from_layout)
    }
}

/// Which adapter lies where.
#[pyclass(module = "lorad._core", frozen)]
pub struct AdapterTable(RwLock<Table>);

impl AdapterTable {
    fn edit<T>(&self, edit: impl FnOnce(&mut Table) -> T) -> T {
        edit(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl AdapterTable {
    #[new]
    fn new(slots: usize, page_bytes: usize, layers: u32, modules: u32) -> PyResult<Self> {
        Table::new(slots, page_bytes, layers, modules).map(|table| Self(RwLock::new(table))).map_err(from_op)
    }

    fn set(&self, slot: i32, tag: u32, layout: &AdapterLayout, pages: &Bound<'_, PyAny>) -> PyResult<()> {
        let pages = View::<i32>::new(pages, "pages")?;
        self.edit(|table| table.set(slot, tag, Arc::clone(&layout.0), pages.as_slice())).map_err(from_op)
    }

    fn clear(&self, slot: i32) -> PyResult<()> {
        self.edit(|table| table.clear(slot)).map_err(from_op)
    }

    fn tag(&self, slot: usize) -> u32 {
        self.read(|table| table.get(slot).map_or(0, |slot| slot.tag()))
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.read(Table::bytes)
    }
}

#[pyfunction]
#[pyo3(signature = (
    y, x, arena, table, layer, modules, offsets, group_slot, group_tag, group_begin, group_end, exact=false
))]
fn lora(
    py: Python<'_>,
    y: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    arena: &Bound<'_, PyAny>,
    table: &AdapterTable,
    layer: u32,
    modules: Vec<u32>,
    offsets: Vec<usize>,
    group_slot: &Bound<'_, PyAny>,
    group_tag: &Bound<'_, PyAny>,
    group_begin: &Bound<'_, PyAny>,
    group_end: &Bound<'_, PyAny>,
    exact: bool,
) -> PyResult<Vec<usize>> {
    let slot = View::<i32>::new(group_slot, "group_slot")?;
    if slot.as_slice().is_empty() {
        return Ok(Vec::new());
    }
    let (mut y, x) = (ViewMut::<f32>::new(y, "y")?, View::<f32>::new(x, "x")?);
    apart((&y, "y"), (&x, "x"))?;
    let (y_width, in_features) = (y.matrix("y")?.1, x.matrix("x")?.1);
    let mut arena = ViewMut::<u8>::new(arena, "arena")?;
    let page_bytes = arena.matrix("arena")?.1;
    let (tag, begin) =
        (View::<i32>::new(group_tag, "group_tag")?, View::<i32>::new(group_begin, "group_begin")?);
    let end = View::<i32>::new(group_end, "group_end")?;
    let groups =
        Groups { slot: slot.as_slice(), tag: tag.as_slice(), begin: begin.as_slice(), end: end.as_slice() };
    let (y, x, arena) = (y.as_mut_slice(), x.as_slice(), arena.as_mut_slice());
    // A guess: rank 16, read at the price of four tokens.
    let cost = (x.len() + y.len() + 4 * groups.slot.len() * (in_features + y_width)) * 16;
    call(py, cost, |cpu| {
        let arena = Arena::new(arena, page_bytes)?;
        table.read(|table| {
            run_lora(cpu, y, y_width, x, in_features, &arena, table, layer, &modules, &offsets, groups, exact)
        })
    })
}
