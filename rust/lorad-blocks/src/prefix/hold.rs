//! Holding and using.

use super::node::Standing;
use super::{NodeId, PrefixCache, PrefixError};
use crate::pool::PageId;

impl PrefixCache {
    /// Keeps a page and those above it until [`PrefixCache::release`]. Holds are counted; to hold isn't to use. A doomed
    /// page can be held by one more who knows its name: its KV is right for those who were admitted with it.
    pub fn hold(&mut self, node: NodeId) -> Result<(), PrefixError> {
        let mut page = self.nodes.find(node)?;
        let mut was_idle = self.nodes[page].idle();
        self.nodes[page].holders += 1;
        // a node that was idle is busy now, and so is what it hangs from
        while was_idle {
            self.evictable -= 1;
            self.settle(page);
            let Some(above) = self.nodes[page].above else { break };
            was_idle = self.nodes[above].idle();
            self.nodes[above].busy_children += 1;
            page = above;
        }
        Ok(())
    }

    /// Takes back one hold. The page was in use until now, but that counts as no use of its own. `gone` gets the pages
    /// that were doomed and that nobody needs any more; they're the caller's now.
    pub fn release(
        &mut self,
        now_us: u64,
        node: NodeId,
        mut gone: impl FnMut(PageId),
    ) -> Result<(), PrefixError> {
        let mut page = self.nodes.find(node)?;
        if self.nodes[page].holders == 0 {
            return Err(PrefixError::NotHeld { node });
        }
        self.nodes[page].holders -= 1;
        self.nodes[page].used = self.tick(now_us);
        // a node that was busy is idle now, and perhaps what it hangs from
        while self.nodes[page].idle() {
            let above = self.nodes[page].above;
            if let Some(above) = above {
                self.nodes[above].busy_children -= 1;
            }
            if self.nodes[page].standing == Standing::Doomed {
                self.remove(page);
                gone(page);
            } else {
                self.evictable += 1;
                self.settle(page);
            }
            let Some(above) = above else { break };
            page = above;
        }
        Ok(())
    }

    /// Counts a use of one page, as of a source that was copied.
    pub fn touch(&mut self, now_us: u64, node: NodeId) -> Result<(), PrefixError> {
        let page = self.nodes.find(node)?;
        self.touch_page(now_us, page);
        Ok(())
    }

    /// Counts a use of a page and of all above it, as by a sequence that begins with them.
    pub fn touch_path(&mut self, now_us: u64, node: NodeId) -> Result<(), PrefixError> {
        let deepest = self.nodes.find(node)?;
        self.touch_page(now_us, deepest);
        let epoch = self.epoch();
        let mut next = self.nodes[deepest].above;
        while let Some(page) = next {
            // what has others under it isn't in the heap, and gets the time of their use when they go
            self.nodes[page].heat.touch(epoch);
            next = self.nodes[page].above;
        }
        Ok(())
    }

    fn touch_page(&mut self, now_us: u64, page: PageId) {
        self.count_use(now_us, page);
        self.settle(page);
    }

    /// The caller settles the page.
    pub(super) fn count_use(&mut self, now_us: u64, page: PageId) {
        let used = self.tick(now_us);
        let epoch = self.epoch();
        let node = &mut self.nodes[page];
        node.used = used;
        node.heat.touch(epoch);
    }
}
