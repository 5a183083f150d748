//! Nodes: one for each page that could be cached, named by it. All memory is taken once.

use super::tree::NIL;
use super::{NodeId, PrefixError};
use crate::heat::Heat;
use crate::pool::PageId;

/// May a node be found?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The page isn't cached.
    Vacant,
    /// Yes. It's in the set of the one above it.
    Live,
    /// No: its generation was dropped, or a longer page took its place while it was held. Its page goes back as soon as
    /// nobody holds it or what is under it.
    Doomed,
}

/// When a node was last used: the number of the use orders, the time is for comparison with adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub serial: u64,
    pub at_us: u64,
}

/// One cached page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub standing: Standing,
    /// Is it in the heap? Asking the heap would mean another look into memory that is seldom in the CPU's caches.
    pub listed: bool,
    /// Goes up each time that the page leaves the cache, so that an old name doesn't fit.
    pub stamp: u32,
    /// Entry of the root that it hangs from, at whatever depth.
    pub root: u32,
    /// The page before it; `None` at the root.
    pub above: Option<PageId>,
    /// Pages before it.
    pub col: u32,
    /// Tokens in the page.
    pub length: u32,
    /// Who uses it now and named it.
    pub holders: u64,
    /// Nodes directly under it, doomed ones included.
    pub children: u32,
    /// Those of them that are held or have somebody held under them.
    pub busy_children: u32,
    /// Top of the set of live nodes under it.
    pub top: u32,
    pub heat: Heat,
    pub used: Use,
}

impl Node {
    const VACANT: Node = Node {
        standing: Standing::Vacant,
        listed: false,
        stamp: 0,
        root: 0,
        above: None,
        col: 0,
        length: 0,
        holders: 0,
        children: 0,
        busy_children: 0,
        top: NIL,
        heat: Heat::COLD,
        used: Use { serial: 0, at_us: 0 },
    };

    /// Nobody holds it or anything under it. Otherwise it's busy.
    pub fn idle(&self) -> bool {
        self.holders == 0 && self.busy_children == 0
    }

    /// A page that could be had now: in the heap.
    pub fn evictable(&self) -> bool {
        self.standing == Standing::Live && self.holders == 0 && self.children == 0
    }
}

/// The table of nodes and the tokens of each.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    tokens: Vec<u32>,
    page_tokens: u32,
}

impl Nodes {
    pub fn new(pages: u32, page_tokens: u32) -> Self {
        Self {
            nodes: vec![Node::VACANT; pages as usize],
            tokens: vec![0; pages as usize * page_tokens as usize],
            page_tokens,
        }
    }

    /// Pages in the pool.
    pub fn total(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// All nodes, vacant ones included.
    pub fn iter(&self) -> impl Iterator<Item = (PageId, &Node)> {
        self.nodes.iter().enumerate().map(|(page, node)| (page as PageId, node))
    }

    /// The page of a node that is still cached.
    pub fn find(&self, node: NodeId) -> Result<PageId, PrefixError> {
        match self.nodes.get(node.page as usize) {
            Some(found) if found.standing != Standing::Vacant && found.stamp == node.stamp => Ok(node.page),
            _ => Err(PrefixError::Stale { node }),
        }
    }

    /// The name of a page's node.
    pub fn id(&self, page: PageId) -> NodeId {
        NodeId { page, stamp: self[page].stamp }
    }

    /// The node that a page is cached as.
    pub fn cached(&self, page: PageId) -> Option<NodeId> {
        let node = self.nodes.get(page as usize)?;
        (node.standing != Standing::Vacant).then_some(NodeId { page, stamp: node.stamp })
    }

    /// The tokens of a cached page.
    pub fn content(&self, page: PageId) -> &[u32] {
        let start = page as usize * self.page_tokens as usize;
        &self.tokens[start..start + self[page].length as usize]
    }

    /// Writes tokens, at most a page of them.
    pub fn set_content(&mut self, page: PageId, tokens: &[u32]) {
        let start = page as usize * self.page_tokens as usize;
        self.tokens[start..start + tokens.len()].copy_from_slice(tokens);
        self[page].length = tokens.len() as u32;
    }

    /// Forgets a node; its name never fits again.
    pub fn vacate(&mut self, page: PageId) {
        self[page] = Node { stamp: self[page].stamp.wrapping_add(1), ..Node::VACANT };
    }
}

impl std::ops::Index<PageId> for Nodes {
    type Output = Node;
    fn index(&self, page: PageId) -> &Node {
        &self.nodes[page as usize]
    }
}

impl std::ops::IndexMut<PageId> for Nodes {
    fn index_mut(&mut self, page: PageId) -> &mut Node {
        &mut self.nodes[page as usize]
    }
}
