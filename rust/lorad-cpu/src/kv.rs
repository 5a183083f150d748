//! How KV lies in a page: `[layer][k, v][kv_head]`, then K as `[head_dim][token]` and V as `[token][head_dim]`.
//!
//! K is transposed within its page, so that scores of neighbouring keys are neighbouring lanes: no sum across lanes, and
//! a page's keys are widened once for all query heads that share them.

use crate::error::{index, require};
use crate::shared::Arena;
use crate::{Element, OpError};

/// Dimensions of the KV in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGeometry {
    /// Layers of the model.
    pub layers: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number type.
    pub element: Element,
}

impl KvGeometry {
    /// Bytes of one head's K (or V) of one layer in a page.
    pub fn block_bytes(&self) -> usize {
        self.page_tokens * self.head_dim * self.element.bytes()
    }

    /// Where the K of (layer, head) begins in a page; its V begins [`KvGeometry::value_bytes`] later.
    pub fn key_offset(&self, layer: usize, head: usize) -> usize {
        (layer * 2 * self.kv_heads + head) * self.block_bytes()
    }

    /// From a head's K to its V.
    pub fn value_bytes(&self) -> usize {
        self.kv_heads * self.block_bytes()
    }

    /// Refuses a geometry that doesn't fit the arena's pages, and a layer that it doesn't have.
    pub fn check(&self, arena: &Arena<'_>, layer: usize) -> Result<(), OpError> {
        let product = [self.layers, 2, self.kv_heads, self.page_tokens, self.head_dim, self.element.bytes()]
            .iter()
            .try_fold(1usize, |product, factor| product.checked_mul(*factor));
        let fits = product.is_some_and(|bytes| bytes > 0 && bytes <= arena.page_bytes());
        require(fits, "geometry must be positive and fit a page: page_bytes", arena.page_bytes())?;
        require(layer < self.layers, "layer is out of range", layer)
    }
}

/// The page table, i32 `[lines, columns]`: page of each run of `page_tokens` tokens of a line.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    entries: &'a [i32],
    columns: usize,
}

impl<'a> PageTable<'a> {
    /// Views `entries` as lines of `columns`.
    pub fn new(entries: &'a [i32], columns: usize) -> Result<Self, OpError> {
        require(
            columns > 0 && entries.len().is_multiple_of(columns),
            "page_table needs whole lines: columns",
            columns,
        )?;
        Ok(Self { entries, columns })
    }

    /// The first `count` pages of a line, checked against the arena.
    pub fn pages(&self, line: i32, count: usize, arena: &Arena<'_>) -> Result<&'a [i32], OpError> {
        let line = index("line", line, self.entries.len() / self.columns)?;
        require(count <= self.columns, "a row is longer than its line of the page table: pages", count)?;
        let pages = &self.entries[line * self.columns..][..count];
        match pages.iter().find(|&&page| page < 0 || page as usize >= arena.pages()) {
            Some(&page) => index("page_table", page, arena.pages()).map(|_| pages),
            None => Ok(pages),
        }
    }

    /// The page that holds token `position` of a line.
    pub fn page_of(&self, line: i32, column: usize, arena: &Arena<'_>) -> Result<usize, OpError> {
        let line = index("token_line", line, self.entries.len() / self.columns)?;
        require(column < self.columns, "token_pos is beyond the page table: column", column)?;
        index("page_table", self.entries[line * self.columns + column], arena.pages())
    }
}
