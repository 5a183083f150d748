//! Putting pages in.

use super::node::{Node, Standing};
use super::tree::NIL;
use super::{NodeId, Parent, PrefixCache, PrefixError};
use crate::heat::Heat;
use crate::pool::PageId;

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The page is the cache's now. Nobody holds it yet.
    New {
        /// Its node.
        node: NodeId,
        /// The page of a shorter one whose place it took, which is the caller's now.
        outgrown: Option<PageId>,
    },
    /// These tokens are cached already, in this page or at the beginning of it; the page remains the caller's.
    Exists {
        /// The node that serves for it.
        node: NodeId,
    },
}

impl Insertion {
    /// The node that has the tokens now.
    pub fn node(&self) -> NodeId {
        match *self {
            Insertion::New { node, .. } | Insertion::Exists { node } => node,
        }
    }
}

impl PrefixCache {
    /// Puts in a page that holds the KV of `tokens`, 1 to `page_tokens` of them, following those of `parent`. Counts a use
    /// of that page, whether it's new or not; those above it had theirs when they were found or put in.
    ///
    /// With no hold on the parent, it may be evicted before: then the call is refused.
    pub fn insert(
        &mut self,
        now_us: u64,
        parent: Parent,
        tokens: &[u32],
        page: PageId,
    ) -> Result<Insertion, PrefixError> {
        let inserted = self.put(now_us, parent, tokens, page)?;
        self.settle(inserted.node().page);
        Ok(inserted)
    }

    /// The same, and holds the node: who fills one page after another needs no place for it among the evictable ones.
    pub fn insert_held(
        &mut self,
        now_us: u64,
        parent: Parent,
        tokens: &[u32],
        page: PageId,
    ) -> Result<Insertion, PrefixError> {
        let inserted = self.put(now_us, parent, tokens, page)?;
        self.hold(inserted.node())?;
        Ok(inserted)
    }

    fn put(
        &mut self,
        now_us: u64,
        parent: Parent,
        tokens: &[u32],
        page: PageId,
    ) -> Result<Insertion, PrefixError> {
        self.check_page(page, tokens)?;
        let (root, above) = match parent {
            Parent::Root(domain) => (self.roots.find(domain), None),
            Parent::Page(node) => {
                let above = self.open_parent(node)?;
                (Some(self.nodes[above].root), Some(above))
            }
        };
        let (near, longest) = root.map(|root| self.near(self.top(root, above), tokens)).unwrap_or_default();
        let same = longest.filter(|&(_, common)| common as usize == tokens.len()).map(|(page, _)| page);
        if let Some(same) = same {
            self.count_use(now_us, same);
            return Ok(Insertion::Exists { node: self.nodes.id(same) });
        }
        // what the tokens begin with comes right before them
        let shorter = near.below.filter(|&other| tokens.starts_with(self.nodes.content(other)));
        let (leaving, heat) = match shorter.map(|other| self.nodes[other]) {
            Some(node) => (u32::from(node.idle()), node.heat),
            None => (0, Heat::COLD),
        };
        let full = PrefixError::Full { pages_max: self.shape.pages_max };
        if self.cached - leaving >= self.shape.pages_max {
            return Err(full);
        }
        let root = match (root, parent) {
            (Some(root), _) => root,
            (None, Parent::Root(domain)) => self.roots.open(domain).ok_or(full)?,
            (None, Parent::Page(node)) => return Err(PrefixError::Stale { node }),
        };
        self.add(root, above, tokens, page, heat);
        self.count_use(now_us, page);
        let outgrown = shorter.and_then(|other| self.outgrow(other));
        Ok(Insertion::New { node: self.nodes.id(page), outgrown })
    }

    /// May this page be put in anywhere?
    fn check_page(&self, page: PageId, tokens: &[u32]) -> Result<(), PrefixError> {
        let (total, page_tokens) = (self.nodes.total(), self.shape.page_tokens);
        if page >= total {
            return Err(PrefixError::NoSuchPage { page, total });
        }
        if let Some(node) = self.nodes.cached(page) {
            return Err(PrefixError::PageCached { node });
        }
        if tokens.is_empty() || tokens.len() > page_tokens as usize {
            return Err(PrefixError::Length { tokens: tokens.len(), page_tokens });
        }
        Ok(())
    }

    /// The page of a node that others may be put under.
    fn open_parent(&self, node: NodeId) -> Result<PageId, PrefixError> {
        let page = self.nodes.find(node)?;
        match self.nodes[page].standing {
            Standing::Vacant => Err(PrefixError::Stale { node }),
            Standing::Doomed => Err(PrefixError::Doomed { node }),
            Standing::Live if !self.is_full(page) => {
                let (tokens, page_tokens) = (self.nodes[page].length, self.shape.page_tokens);
                Err(PrefixError::PartialParent { node, tokens, page_tokens })
            }
            Standing::Live => Ok(page),
        }
    }

    fn add(&mut self, root: u32, above: Option<PageId>, tokens: &[u32], page: PageId, heat: Heat) {
        let col = above.map_or(0, |above| self.nodes[above].col + 1);
        let old = self.nodes[page];
        self.nodes[page] = Node { standing: Standing::Live, root, above, col, heat, top: NIL, ..old };
        self.nodes.set_content(page, tokens);
        self.link(page);
        self.roots[root].nodes += 1;
        self.cached += 1;
        self.evictable += 1;
        if let Some(above) = above {
            self.nodes[above].children += 1;
            self.settle(above);
        }
    }

    /// A longer page took this one's place: its page, or nothing yet if somebody holds it.
    fn outgrow(&mut self, page: PageId) -> Option<PageId> {
        if self.nodes[page].idle() {
            self.remove(page);
            return Some(page);
        }
        self.unlink(page);
        self.nodes[page].standing = Standing::Doomed;
        None
    }
}
