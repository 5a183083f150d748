//! How an adapter lies in its pages.
//!
//! Each (layer, module) holds all tiles of A, then all tiles of B. A tile has [`TILE_ROWS`] rank rows, the last one only
//! its true rows; A rows are `[rows, in]`, B rows `[rows, out]` (B transposed). After them come the module's vectors, f32
//! `[out]` each. What is larger than a page is cut along in/out. Invariants: a chunk never crosses a page, starts at a
//! multiple of [`ALIGN_BYTES`], and chunks are placed in (layer, module) order, so the first pages are enough for the
//! first layers.

mod error;
mod pack;

pub use error::LayoutError;
pub use pack::ModuleBytes;

/// Rank rows of a full tile.
pub const TILE_ROWS: usize = 8;
/// Alignment of every chunk within its page.
pub const ALIGN_BYTES: usize = 64;
/// Chunks of one adapter at most: a shape from a hostile file is refused before memory is taken for it.
pub const CHUNKS_MAX: u64 = 1 << 22;
/// Cut pieces are a multiple of this many columns where the page allows, so that vector loops have no tail.
const CUT_COLUMNS: usize = 16;

/// Number type of an adapter's weights in pages: the file's own, never converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an [`Element::F32`].
    BF16,
}

impl Element {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::BF16 => 2,
        }
    }

    /// The element called `name`: `f32`, `f16` or `bf16`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "f32" => Some(Element::F32),
            "f16" => Some(Element::F16),
            "bf16" => Some(Element::BF16),
            _ => None,
        }
    }

    /// The name that [`Element::from_name`] takes.
    pub const fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::BF16 => "bf16",
        }
    }
}

/// Which vectors a module has beside its tiles: once all that it adds to y is there, y becomes `gain · y + bias`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vectors {
    /// f32 `[out]`: what DoRA multiplies by.
    pub gain: bool,
    /// f32 `[out]`: what is added last, by no scale.
    pub bias: bool,
}

impl Vectors {
    /// Whether there are any.
    pub fn any(self) -> bool {
        self.gain || self.bias
    }

    /// Parts of those that there are, in the order in which they lie.
    fn parts(self) -> impl Iterator<Item = Part> {
        [(self.gain, Part::Gain), (self.bias, Part::Bias)]
            .into_iter()
            .filter(|(is, _)| *is)
            .map(|(_, part)| part)
    }
}

/// One adapted module of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModuleShape {
    /// Layer, from 0.
    pub layer: u32,
    /// Module number within the layer, as the model counts them.
    pub module: u32,
    /// Columns of A.
    pub in_features: u32,
    /// Rows of PEFT's B.
    pub out_features: u32,
    /// Rows of A, columns of PEFT's B; 0: nothing but vectors.
    pub rank: u32,
    /// What the product is multiplied by, between A and B.
    pub scale: f32,
    /// What comes after B.
    pub vectors: Vectors,
}

/// Which of a module's matrices or vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `[rank, in]`.
    A,
    /// `[rank, out]`: PEFT's B transposed.
    B,
    /// `[1, out]`, f32 whatever the weights are: see [`Vectors`].
    Gain,
    /// `[1, out]`, f32 whatever the weights are: see [`Vectors`].
    Bias,
}

impl Part {
    /// Number type of this part in an adapter whose weights are of `weights`.
    pub const fn element(self, weights: Element) -> Element {
        match self {
            Part::A | Part::B => weights,
            Part::Gain | Part::Bias => Element::F32,
        }
    }
}

/// A contiguous `[rows, len]` block of elements within one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Page, counted within the adapter.
    pub page: u32,
    /// Bytes from the page's start.
    pub offset: u32,
    /// What of the module.
    pub part: Part,
    /// First rank row.
    pub rank_begin: u32,
    /// Rank rows, 1 to [`TILE_ROWS`].
    pub rows: u32,
    /// First column along in (A) or out (B).
    pub begin: u32,
    /// Columns.
    pub len: u32,
}

/// The chunks of one (layer, module): `a`, `b`, then vectors, each a range of [`AdapterLayout::chunks`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The module as it was given.
    pub shape: ModuleShape,
    /// First chunk of A.
    pub a_begin: u32,
    /// First chunk of B, one past A's last.
    pub b_begin: u32,
    /// One past B's last: the first of the vectors.
    pub b_end: u32,
    /// One past the vectors' last.
    pub end: u32,
}

/// Where every tile of one adapter lies. Packer and kernels share it.
#[derive(Clone, Debug)]
pub struct AdapterLayout {
    page_bytes: usize,
    element: Element,
    pages: u32,
    chunks: Vec<Chunk>,
    /// Sorted by (layer, module).
    spans: Vec<Span>,
    /// `layer_spans[l]..layer_spans[l + 1]` are the spans of layer l.
    layer_spans: Vec<u32>,
    /// Leading pages that hold layers 0..=l.
    layer_pages: Vec<u32>,
}

/// The free end of the last page.
struct Cursor {
    page: u64,
    offset: usize,
    page_bytes: usize,
}

impl Cursor {
    fn place(&mut self, bytes: usize) -> (u64, usize) {
        let start = self.offset.next_multiple_of(ALIGN_BYTES);
        if start + bytes > self.page_bytes {
            self.page += 1;
            self.offset = bytes;
            return (self.page, 0);
        }
        self.offset = start + bytes;
        (self.page, start)
    }
}

/// Columns of a chunk of `rows` rows at most.
fn columns_max(page_bytes: usize, element: Element, rows: usize, width: usize) -> usize {
    let fit = page_bytes / (rows * element.bytes());
    if fit >= width {
        width
    } else if fit >= CUT_COLUMNS {
        fit / CUT_COLUMNS * CUT_COLUMNS
    } else {
        fit
    }
}

impl AdapterLayout {
    /// Lays out `modules` (in any order) in pages of `page_bytes`.
    pub fn new(page_bytes: usize, element: Element, modules: &[ModuleShape]) -> Result<Self, LayoutError> {
        if page_bytes == 0 || !page_bytes.is_multiple_of(ALIGN_BYTES) || page_bytes >= 1 << 31 {
            return Err(LayoutError::PageBytes { page_bytes });
        }
        let mut shapes = modules.to_vec();
        shapes.sort_by_key(|shape| (shape.layer, shape.module));
        Self::check(page_bytes, element, &shapes)?;

        let mut cursor = Cursor { page: 0, offset: 0, page_bytes };
        let (mut chunks, mut spans) = (Vec::new(), Vec::with_capacity(shapes.len()));
        let (mut layer_spans, mut layer_pages) = (vec![0u32], Vec::new());
        let mut pages = 0u64;
        for shape in &shapes {
            while layer_pages.len() < shape.layer as usize {
                layer_pages.push(pages as u32);
                layer_spans.push(spans.len() as u32);
            }
            let a_begin = chunks.len() as u32;
            Self::place(&mut cursor, &mut chunks, element, Part::A, shape.rank, shape.in_features);
            let b_begin = chunks.len() as u32;
            Self::place(&mut cursor, &mut chunks, element, Part::B, shape.rank, shape.out_features);
            let b_end = chunks.len() as u32;
            for part in shape.vectors.parts() {
                Self::place(&mut cursor, &mut chunks, Element::F32, part, 1, shape.out_features);
            }
            spans.push(Span { shape: *shape, a_begin, b_begin, b_end, end: chunks.len() as u32 });
            pages = cursor.page + 1;
        }
        layer_pages.push(pages as u32);
        layer_spans.push(spans.len() as u32);
        // Each page but the last holds a chunk, so pages <= chunks <= CHUNKS_MAX and the casts above are exact.
        Ok(Self { page_bytes, element, pages: pages as u32, chunks, spans, layer_spans, layer_pages })
    }

    /// Refuses what can't be laid out, before anything is allocated.
    fn check(page_bytes: usize, element: Element, shapes: &[ModuleShape]) -> Result<(), LayoutError> {
        let Some(last) = shapes.last() else { return Err(LayoutError::NoModules) };
        for pair in shapes.windows(2) {
            if (pair[0].layer, pair[0].module) == (pair[1].layer, pair[1].module) {
                return Err(LayoutError::Duplicate { layer: pair[0].layer, module: pair[0].module });
            }
        }
        let mut chunks = u64::from(last.layer);
        for shape in shapes {
            let ModuleShape { in_features, out_features, rank, scale, vectors, .. } = *shape;
            let empty = rank == 0 && !vectors.any();
            if in_features == 0 || out_features == 0 || empty || !scale.is_finite() {
                return Err(LayoutError::Shape { shape: *shape });
            }
            for (rows, tiles) in [(TILE_ROWS, u64::from(rank) / 8), (rank as usize % TILE_ROWS, 1)] {
                for width in [in_features as usize, out_features as usize] {
                    if rows > 0 {
                        let columns = columns_max(page_bytes, element, rows, width);
                        chunks = chunks.saturating_add(tiles.saturating_mul(width.div_ceil(columns) as u64));
                    }
                }
            }
            let columns = columns_max(page_bytes, Element::F32, 1, out_features as usize);
            let each = (out_features as usize).div_ceil(columns) as u64;
            chunks = chunks.saturating_add(vectors.parts().count() as u64 * each);
        }
        if chunks > CHUNKS_MAX {
            return Err(LayoutError::TooLarge { chunks });
        }
        Ok(())
    }

    fn place(
        cursor: &mut Cursor,
        chunks: &mut Vec<Chunk>,
        element: Element,
        part: Part,
        rank: u32,
        width: u32,
    ) {
        let (rank, width) = (rank as usize, width as usize);
        for rank_begin in (0..rank).step_by(TILE_ROWS) {
            let rows = TILE_ROWS.min(rank - rank_begin);
            let columns = columns_max(cursor.page_bytes, element, rows, width);
            for begin in (0..width).step_by(columns) {
                let len = columns.min(width - begin);
                let (page, offset) = cursor.place(rows * len * element.bytes());
                chunks.push(Chunk {
                    page: page as u32,
                    offset: offset as u32,
                    part,
                    rank_begin: rank_begin as u32,
                    rows: rows as u32,
                    begin: begin as u32,
                    len: len as u32,
                });
            }
        }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Number type of the weights.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Pages that the adapter takes.
    pub fn pages(&self) -> usize {
        self.pages as usize
    }

    /// Bytes of a chunk of this layout.
    pub fn chunk_bytes(&self, chunk: &Chunk) -> usize {
        (chunk.rows * chunk.len) as usize * chunk.part.element(self.element).bytes()
    }

    /// Bytes of weights and vectors themselves, without what alignment leaves free.
    pub fn weight_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| self.chunk_bytes(chunk)).sum()
    }

    /// All chunks in order of place.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// All (layer, module), sorted.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Leading pages that must be present for layers 0..=l, for each l up to the last adapted layer.
    pub fn layer_pages(&self) -> &[u32] {
        &self.layer_pages
    }

    /// The span of (layer, module), if the adapter has that module.
    pub fn span(&self, layer: u32, module: u32) -> Option<&Span> {
        let begin = *self.layer_spans.get(layer as usize)? as usize;
        let end = *self.layer_spans.get(layer as usize + 1)? as usize;
        self.spans[begin..end].iter().find(|span| span.shape.module == module)
    }

    /// A's chunks of a span of this layout.
    pub fn a_chunks(&self, span: &Span) -> &[Chunk] {
        &self.chunks[span.a_begin as usize..span.b_begin as usize]
    }

    /// B's chunks of a span of this layout.
    pub fn b_chunks(&self, span: &Span) -> &[Chunk] {
        &self.chunks[span.b_begin as usize..span.b_end as usize]
    }

    /// The chunks of a span's vectors: all of the gain's, then all of the bias's.
    pub fn vector_chunks(&self, span: &Span) -> &[Chunk] {
        &self.chunks[span.b_end as usize..span.end as usize]
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
