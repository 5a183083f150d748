//! The device table: which adapter lies where.

use std::sync::Arc;

use lorad_blocks::layout::{AdapterLayout, Span};

use crate::error::{index, length, require};
use crate::OpError;

/// One adapter in pages. Its descriptors are the layout's, shared, and one page number for each page.
#[derive(Debug)]
pub struct Slot {
    tag: u32,
    layout: Arc<AdapterLayout>,
    pages: Box<[u32]>,
    page_max: u32,
}

impl Slot {
    /// Low 32 bits of the adapter's generation, never 0.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// How the adapter lies in its pages.
    pub fn layout(&self) -> &AdapterLayout {
        &self.layout
    }

    /// Arena page of each of the adapter's pages.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The largest of them.
    pub fn page_max(&self) -> usize {
        self.page_max as usize
    }

    /// The chunks of (layer, module), if the adapter has that module.
    pub fn span(&self, layer: u32, module: u32) -> Option<&Span> {
        self.layout.span(layer, module)
    }
}

/// Slots of adapters, filled and cleared between steps.
#[derive(Debug)]
pub struct AdapterTable {
    slots: Vec<Option<Box<Slot>>>,
    page_bytes: usize,
    layers: u32,
    modules: u32,
}

impl AdapterTable {
    /// An empty table for adapters of a model with `layers` × `modules` adaptable modules.
    pub fn new(slots: usize, page_bytes: usize, layers: u32, modules: u32) -> Result<Self, OpError> {
        require(slots > 0 && slots <= 1 << 24, "slots must be 1 to 2^24", slots)?;
        let mut empty = Vec::new();
        empty.resize_with(slots, || None);
        Ok(Self { slots: empty, page_bytes, layers, modules })
    }

    /// Fills a slot: from the next call on, plans that name `slot` and `tag` are answered from `pages`.
    pub fn set(
        &mut self,
        slot: i32,
        tag: u32,
        layout: Arc<AdapterLayout>,
        pages: &[i32],
    ) -> Result<(), OpError> {
        let slot = index("slot", slot, self.slots.len())?;
        require(tag != 0, "tag must not be 0", 0)?;
        length("page_bytes of the layout", self.page_bytes, layout.page_bytes())?;
        length("pages", layout.pages(), pages.len())?;
        for span in layout.spans() {
            index("layer", span.shape.layer.min(i32::MAX as u32) as i32, self.layers as usize)?;
            index("module", span.shape.module.min(i32::MAX as u32) as i32, self.modules as usize)?;
        }
        let pages = pages
            .iter()
            .map(|&page| index("pages", page, i32::MAX as usize).map(|page| page as u32))
            .collect::<Result<Box<[u32]>, _>>()?;
        let page_max = pages.iter().copied().max().unwrap_or(0);
        self.slots[slot] = Some(Box::new(Slot { tag, layout, pages, page_max }));
        Ok(())
    }

    /// Empties a slot.
    pub fn clear(&mut self, slot: i32) -> Result<(), OpError> {
        let slot = index("slot", slot, self.slots.len())?;
        self.slots[slot] = None;
        Ok(())
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the table has no slots; never, as [`AdapterTable::new`] refuses that.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// What is in a slot.
    pub fn get(&self, slot: usize) -> Option<&Slot> {
        self.slots.get(slot)?.as_deref()
    }

    /// Bytes of the table, without the layouts, which adapters of equal shape may share.
    pub fn bytes(&self) -> usize {
        let filled = self.slots.iter().flatten().map(|slot| size_of::<Slot>() + slot.pages.len() * 4);
        self.slots.len() * size_of::<Option<Box<Slot>>>() + filled.sum::<usize>()
    }
}
