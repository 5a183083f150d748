//! Giving pages back: one by one, or all of a generation.

use super::node::Standing;
use super::tree::NIL;
use super::{NodeId, PrefixCache, PrefixError};
use crate::heat::Worth;
use crate::pool::PageId;

/// The page that would be evicted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its node.
    pub node: NodeId,
    /// Heat × time to compute the page again, in ns; an adapter's, per page, compares with it.
    pub worth: Worth,
    /// When it was last used.
    pub used_us: u64,
}

impl PrefixCache {
    /// The page that goes first by the cache's order; `ns_per_token` is the time to compute a token again.
    pub fn next_evicted(&self, ns_per_token: f64) -> Option<Victim> {
        let page = self.heap.first()?;
        let node = &self.nodes[page];
        Some(Victim {
            node: self.nodes.id(page),
            worth: node.heat.worth(ns_per_token * f64::from(node.length)),
            used_us: node.used.at_us,
        })
    }

    /// Takes a page out that nobody holds and that has nothing under it; it's the caller's now, to give away or to write
    /// on in. The page above may be next.
    pub fn evict(&mut self, node: NodeId) -> Result<PageId, PrefixError> {
        let page = self.nodes.find(node)?;
        if !self.nodes[page].evictable() {
            let (holders, children) = (self.nodes[page].holders, self.nodes[page].children);
            return Err(PrefixError::NotEvictable { node, holders, children });
        }
        self.remove(page);
        Ok(page)
    }

    /// A generation is gone: nothing of it is found any more. `gone` gets the pages that nobody needs, which are the
    /// caller's now; the others come from [`PrefixCache::release`]. Returns how many these are. Costs as much as there
    /// is to drop.
    ///
    /// The same generation may begin anew at any time, with nothing cached.
    pub fn drop_generation(&mut self, generation: u64, mut gone: impl FnMut(PageId)) -> u32 {
        let mut kept = 0;
        while let Some(root) = self.roots.of_generation(generation) {
            self.roots.bury(root);
            self.doom(root, &mut gone);
            kept += self.roots[root].nodes;
            self.roots.close_if_empty(root);
        }
        kept
    }

    /// Dooms all nodes of a root, those below before those above, and gives back the idle ones. Of those side by side, the
    /// topmost of their tree comes first: an order that doesn't depend on which ids tokens have.
    fn doom(&mut self, root: u32, gone: &mut impl FnMut(PageId)) {
        let mut at = None;
        loop {
            let below = self.top(root, at);
            if below != NIL {
                self.unlink(below);
                at = Some(below);
                continue;
            }
            let Some(page) = at else { return };
            at = self.nodes[page].above;
            self.nodes[page].standing = Standing::Doomed;
            self.heap.remove(page);
            self.nodes[page].listed = false;
            if self.nodes[page].idle() {
                self.evictable -= 1;
                self.forget(page);
                gone(page);
            }
        }
    }

    /// Takes out a node that nobody holds and that has nothing under it.
    pub(super) fn remove(&mut self, page: PageId) {
        if self.nodes[page].standing == Standing::Live {
            self.unlink(page);
            self.heap.remove(page);
            self.nodes[page].listed = false;
            self.evictable -= 1;
        }
        let (root, above) = (self.nodes[page].root, self.nodes[page].above);
        self.forget(page);
        if let Some(above) = above {
            self.settle(above);
        }
        self.roots.close_if_empty(root);
    }

    /// Vacates a node that is in no set and not in the heap. A use of it was a use of the page above.
    fn forget(&mut self, page: PageId) {
        let node = self.nodes[page];
        if let Some(above) = node.above {
            let above = &mut self.nodes[above];
            above.children -= 1;
            above.used = above.used.max(node.used);
        }
        self.roots[node.root].nodes -= 1;
        self.cached -= 1;
        self.nodes.vacate(page);
    }
}
