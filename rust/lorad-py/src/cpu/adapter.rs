//! Adapter layouts, the device table, and batched LoRA.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use lorad_blocks::layout::{AdapterLayout as Layout, ModuleBytes, ModuleShape, Part, Vectors, TILE_ROWS};
use lorad_cpu::lora::{lora as run_lora, lora_embed as run_lora_embed, Adapters, Groups, Modules};
use lorad_cpu::shared::Arena;
use lorad_cpu::table::AdapterTable as Table;
use lorad_cpu::OpError;
use pyo3::prelude::*;

use super::{call, element, from_layout, from_op};
use crate::buffers::{apart, View, ViewMut};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TILE_ROWS", TILE_ROWS)?;
    module.add_class::<AdapterLayout>()?;
    module.add_class::<AdapterTable>()?;
    module.add_class::<StepAdapters>()?;
    module.add_function(wrap_pyfunction!(lora, module)?)?;
    module.add_function(wrap_pyfunction!(lora_embed, module)?)
}

/// (layer, module, in_features, out_features, rank, scale)
type Shape = (u32, u32, u32, u32, u32, f32);

/// (page, byte offset, "a", "b", "gain" or "bias", rank_begin, rows, begin, len)
type Chunk = (u32, u32, &'static str, u32, u32, u32, u32);

/// How an adapter lies in its pages.
#[pyclass(module = "lorad._core", frozen)]
pub struct AdapterLayout(Arc<Layout>);

#[pymethods]
impl AdapterLayout {
    #[new]
    #[pyo3(signature = (page_bytes, element, modules, *, gains=HashSet::new(), biases=HashSet::new()))]
    fn new(
        page_bytes: usize,
        element: &str,
        modules: Vec<Shape>,
        gains: HashSet<(u32, u32)>,
        biases: HashSet<(u32, u32)>,
    ) -> PyResult<Self> {
        let shape = |(layer, module, in_features, out_features, rank, scale): Shape| {
            let at = (layer, module);
            let vectors = Vectors { gain: gains.contains(&at), bias: biases.contains(&at) };
            ModuleShape { layer, module, in_features, out_features, rank, scale, vectors }
        };
        let shapes: Vec<ModuleShape> = modules.into_iter().map(shape).collect();
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
        let tiles = self.0.a_chunks(span).iter().chain(self.0.b_chunks(span));
        tiles
            .chain(self.0.vector_chunks(span))
            .map(|chunk| {
                let part = match chunk.part {
                    Part::A => "a",
                    Part::B => "b",
                    Part::Gain => "gain",
                    Part::Bias => "bias",
                };
                (chunk.page, chunk.offset, part, chunk.rank_begin, chunk.rows, chunk.begin, chunk.len)
            })
            .collect()
    }

    #[pyo3(signature = (image, layer, module, a, b, gain=None, bias=None))]
    fn pack(
        &self,
        py: Python<'_>,
        image: &Bound<'_, PyAny>,
        layer: u32,
        module: u32,
        a: &Bound<'_, PyAny>,
        b: &Bound<'_, PyAny>,
        gain: Option<&Bound<'_, PyAny>>,
        bias: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let mut image = ViewMut::<u8>::new(image, "image")?;
        let (a, b) = (View::<u8>::new(a, "a")?, View::<u8>::new(b, "b")?);
        apart((&image, "image"), (&a, "a"))?;
        apart((&image, "image"), (&b, "b"))?;
        let vector = |object: Option<&Bound<'_, PyAny>>, name| {
            let view = object.map(|object| View::<f32>::new(object, name)).transpose()?;
            view.as_ref().map_or(Ok(()), |view| apart((&image, "image"), (view, name)))?;
            Ok::<_, PyErr>(view)
        };
        let (gain, bias) = (vector(gain, "gain")?, vector(bias, "bias")?);
        let image = image.as_mut_slice();
        let bytes = ModuleBytes {
            a: a.as_slice(),
            b: b.as_slice(),
            gain: gain.as_ref().map_or(&[], View::as_slice),
            bias: bias.as_ref().map_or(&[], View::as_slice),
        };
        py.detach(|| self.0.pack(image, layer, module, bytes)).map_err(from_layout)
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

/// A step's adapters: what operators that add them are given.
#[pyclass(module = "lorad._core", frozen)]
pub struct StepAdapters {
    arena: Py<PyAny>,
    table: Py<AdapterTable>,
    /// Slot, tag, begin, end.
    groups: [Py<PyAny>; 4],
    exact: bool,
}

/// (adapters, layer, modules, their first columns)
pub type Delta<'py> = (Bound<'py, StepAdapters>, u32, Vec<u32>, Vec<usize>);

#[pymethods]
impl StepAdapters {
    #[new]
    #[pyo3(signature = (arena, table, group_slot, group_tag, group_begin, group_end, *, exact=false))]
    fn new(
        arena: Py<PyAny>,
        table: Py<AdapterTable>,
        group_slot: Py<PyAny>,
        group_tag: Py<PyAny>,
        group_begin: Py<PyAny>,
        group_end: Py<PyAny>,
        exact: bool,
    ) -> Self {
        Self { arena, table, groups: [group_slot, group_tag, group_begin, group_end], exact }
    }
}

/// The memory of [`StepAdapters`] and of the modules, for one call.
pub struct DeltaViews<'py> {
    arena: ViewMut<u8>,
    page_bytes: usize,
    table: Bound<'py, AdapterTable>,
    groups: [View<i32>; 4],
    exact: bool,
    layer: u32,
    modules: Vec<u32>,
    offsets: Vec<usize>,
}

impl<'py> DeltaViews<'py> {
    pub fn new((adapters, layer, modules, offsets): Delta<'py>) -> PyResult<Self> {
        let (py, held) = (adapters.py(), adapters.get());
        let arena = ViewMut::<u8>::new(held.arena.bind(py), "arena")?;
        let page_bytes = arena.matrix("arena")?.1;
        let [slot, tag, begin, end] = &held.groups;
        let view = |array: &Py<PyAny>, name| View::<i32>::new(array.bind(py), name);
        let groups = [
            view(slot, "group_slot")?,
            view(tag, "group_tag")?,
            view(begin, "group_begin")?,
            view(end, "group_end")?,
        ];
        let table = held.table.bind(py).clone();
        Ok(Self { arena, page_bytes, table, groups, exact: held.exact, layer, modules, offsets })
    }

    /// Multiply-adds beside a product `[n, cols]` by `[rows, cols]`. A guess: rank 16, read at the price of four tokens.
    pub fn cost(&self, n: usize, rows: usize, cols: usize) -> usize {
        (n + 4 * self.groups[0].as_slice().len()).saturating_mul((rows + cols) * 16)
    }

    /// What [`DeltaView::with`] needs, without the interpreter.
    pub fn view(&mut self) -> DeltaView<'_> {
        DeltaView {
            arena: self.arena.as_mut_slice(),
            page_bytes: self.page_bytes,
            table: self.table.get(),
            groups: self.groups.each_ref().map(View::as_slice),
            exact: self.exact,
            layer: self.layer,
            modules: &self.modules,
            offsets: &self.offsets,
        }
    }
}

/// Plain memory.
pub struct DeltaView<'a> {
    arena: &'a mut [u8],
    page_bytes: usize,
    table: &'a AdapterTable,
    groups: [&'a [i32]; 4],
    exact: bool,
    layer: u32,
    modules: &'a [u32],
    offsets: &'a [usize],
}

impl DeltaView<'_> {
    /// Runs `work` with the table locked.
    pub fn with<T>(
        self,
        work: impl FnOnce(&Adapters<'_>, &Modules<'_>) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let arena = Arena::new(self.arena, self.page_bytes)?;
        let [slot, tag, begin, end] = self.groups;
        self.table.read(|table| {
            let groups = Groups { slot, tag, begin, end };
            let adapters = Adapters { arena: &arena, table, groups, exact: self.exact };
            let Self { layer, modules: numbers, offsets, .. } = self;
            work(&adapters, &Modules { layer, numbers, offsets })
        })
    }
}

#[pyfunction]
fn lora(
    py: Python<'_>,
    y: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    delta: Delta<'_>,
) -> PyResult<Vec<usize>> {
    let (mut y, x) = (ViewMut::<f32>::new(y, "y")?, View::<f32>::new(x, "x")?);
    apart((&y, "y"), (&x, "x"))?;
    let (y_width, (n, in_features)) = (y.matrix("y")?.1, x.matrix("x")?);
    let mut delta = DeltaViews::new(delta)?;
    let cost = delta.cost(n, y_width, in_features);
    let (y, x, delta) = (y.as_mut_slice(), x.as_slice(), delta.view());
    call(py, cost, |cpu| {
        delta.with(|adapters, modules| run_lora(cpu, y, y_width, x, in_features, adapters, modules))
    })
}

#[pyfunction]
fn lora_embed(
    py: Python<'_>,
    y: &Bound<'_, PyAny>,
    ids: &Bound<'_, PyAny>,
    vocab: usize,
    delta: Delta<'_>,
) -> PyResult<Vec<usize>> {
    let (mut y, ids) = (ViewMut::<f32>::new(y, "y")?, View::<i32>::new(ids, "ids")?);
    apart((&y, "y"), (&ids, "ids"))?;
    let hidden = y.matrix("y")?.1;
    let mut delta = DeltaViews::new(delta)?;
    let cost = delta.cost(ids.as_slice().len(), hidden, 0);
    let (y, ids, delta) = (y.as_mut_slice(), ids.as_slice(), delta.view());
    call(py, cost, |cpu| {
        delta.with(|adapters, modules| run_lora_embed(cpu, y, hidden, ids, vocab, adapters, modules))
    })
}
