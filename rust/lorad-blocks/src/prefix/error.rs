//! Why a call on the prefix cache is refused.

use std::fmt;

use super::NodeId;
use crate::pool::PageId;

/// Why a call was refused; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// The page isn't in the pool.
    NoSuchPage {
        /// The page that was named.
        page: PageId,
        /// Pages in the pool.
        total: u32,
    },
    /// The page is in the cache already.
    PageCached {
        /// The node that has it.
        node: NodeId,
    },
    /// A page holds 1 to `page_tokens` tokens.
    Length {
        /// Tokens that were given.
        tokens: usize,
        /// Tokens of a full page.
        page_tokens: u32,
    },
    /// The node is gone: its page was evicted or given back.
    Stale {
        /// The node that was named.
        node: NodeId,
    },
    /// The node is out of date (its generation was dropped): nothing is put under it.
    Doomed {
        /// The node that was named.
        node: NodeId,
    },
    /// Only a full page can have others under it.
    PartialParent {
        /// The node that was named.
        node: NodeId,
        /// Its tokens.
        tokens: u32,
        /// Tokens of a full page.
        page_tokens: u32,
    },
    /// As many pages are cached as may be.
    Full {
        /// Pages that may be cached.
        pages_max: u32,
    },
    /// Nobody holds the node.
    NotHeld {
        /// The node that was named.
        node: NodeId,
    },
    /// The node is held, or pages hang under it.
    NotEvictable {
        /// The node that was named.
        node: NodeId,
        /// Who holds it.
        holders: u64,
        /// Pages directly under it.
        children: u32,
    },
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefixError::NoSuchPage { page, total } => write!(f, "page {page} of a pool of {total}"),
            PrefixError::PageCached { node } => write!(f, "page {} is cached already", node.page()),
            PrefixError::Length { tokens, page_tokens } => {
                write!(f, "{tokens} tokens for a page of 1 to {page_tokens}")
            }
            PrefixError::Stale { node } => write!(f, "page {} is no longer what it was", node.page()),
            PrefixError::Doomed { node } => write!(f, "page {} is out of date", node.page()),
            PrefixError::PartialParent { node, tokens, page_tokens } => {
                write!(f, "page {} has {tokens} of {page_tokens} tokens: nothing follows it", node.page())
            }
            PrefixError::Full { pages_max } => write!(f, "{pages_max} pages are cached, no more may be"),
            PrefixError::NotHeld { node } => write!(f, "nobody holds page {}", node.page()),
            PrefixError::NotEvictable { node, holders, children } => {
                write!(f, "page {} has {holders} holders and {children} pages under it", node.page())
            }
        }
    }
}

impl std::error::Error for PrefixError {}
