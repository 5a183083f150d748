//! Why an adapter can't be laid out or packed.

use std::fmt;

use super::{ModuleShape, ALIGN_BYTES, CHUNKS_MAX};

/// Why an adapter can't be laid out or packed.
#[derive(Clone, Debug, PartialEq)]
pub enum LayoutError {
    /// A page must have a positive multiple of [`ALIGN_BYTES`] bytes that fits in 31 bits.
    PageBytes {
        /// What was asked for.
        page_bytes: usize,
    },
    /// An adapter without modules.
    NoModules,
    /// A dimension is zero (the rank may be, if there are vectors), or the scale isn't finite.
    Shape {
        /// The module.
        shape: ModuleShape,
    },
    /// The same (layer, module) twice.
    Duplicate {
        /// Its layer.
        layer: u32,
        /// Its module.
        module: u32,
    },
    /// More chunks than [`CHUNKS_MAX`], or more pages than a page number holds.
    TooLarge {
        /// Chunks needed, saturating.
        chunks: u64,
    },
    /// The adapter has no such module.
    NoSuchModule {
        /// Layer asked for.
        layer: u32,
        /// Module asked for.
        module: u32,
    },
    /// A byte string of the wrong length.
    Bytes {
        /// Which one.
        what: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::PageBytes { page_bytes } => {
                write!(
                    f,
                    "page_bytes: a positive multiple of {ALIGN_BYTES} below 2^31 is needed, got {page_bytes}"
                )
            }
            LayoutError::NoModules => write!(f, "an adapter needs at least one module"),
            LayoutError::Shape { shape } => write!(
                f,
                "layer {} module {}: in {}, out {}, rank {} must be positive (rank 0: vectors only) and scale {} finite",
                shape.layer, shape.module, shape.in_features, shape.out_features, shape.rank, shape.scale
            ),
            LayoutError::Duplicate { layer, module } => {
                write!(f, "layer {layer} module {module} is given twice")
            }
            LayoutError::TooLarge { chunks } => {
                write!(f, "the adapter needs {chunks} chunks, at most {CHUNKS_MAX} are possible")
            }
            LayoutError::NoSuchModule { layer, module } => {
                write!(f, "the adapter has no module {module} in layer {layer}")
            }
            LayoutError::Bytes { what, expected, got } => {
                write!(f, "{what}: {expected} bytes are needed, got {got}")
            }
        }
    }
}

impl std::error::Error for LayoutError {}
