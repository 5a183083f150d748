//! The state as text.

use std::fmt::Write;

use super::node::{Node, Standing};
use super::{Order, PrefixCache};
use crate::pool::PageId;

impl PrefixCache {
    /// The whole state as stable text: the trees in the order of (generation, tenant), each from above to below in the
    /// order of tokens. The tokens themselves stay out: they are what people wrote, and a dump goes into crash reports.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        // writing to a String can't fail
        let _ = self.write_dump(&mut text);
        text
    }

    fn write_dump(&self, text: &mut String) -> std::fmt::Result {
        let order = match self.shape.order {
            Order::LeastRecent => "least recent",
            Order::LeastWorth => "least worth",
        };
        write!(text, "prefix pages {} of {}", self.cached, self.shape.pages_max)?;
        write!(text, ", evictable {}, {order} first", self.evictable)?;
        match self.heap.first() {
            Some(page) => writeln!(text, ": page {page}")?,
            None => writeln!(text)?,
        }
        for root in self.roots.in_order().unwrap_or_default() {
            let domain = self.roots[root].domain;
            writeln!(text, "generation {} tenant {}", domain.generation, domain.tenant)?;
            let mut open = self.set(root, None);
            while let Some(page) = open.pop() {
                write!(text, "page {page}")?;
                self.write_node(text, &self.nodes[page])?;
                open.extend(self.set(root, Some(page)));
            }
        }
        for (page, node) in self.nodes.iter().filter(|(_, node)| node.standing == Standing::Doomed) {
            let domain = self.roots[node.root].domain;
            write!(text, "doomed page {page}")?;
            write!(text, " of generation {} tenant {}", domain.generation, domain.tenant)?;
            self.write_node(text, node)?;
        }
        Ok(())
    }

    /// The live nodes under one, the last one first.
    fn set(&self, root: u32, above: Option<PageId>) -> Vec<PageId> {
        let mut pages = self.tree.in_order(self.top(root, above)).unwrap_or_default();
        pages.reverse();
        pages
    }

    fn write_node(&self, text: &mut String, node: &Node) -> std::fmt::Result {
        match node.above {
            Some(above) => write!(text, " after page {above}")?,
            None => write!(text, " first")?,
        }
        write!(text, ": column {} tokens {} holders {}", node.col, node.length, node.holders)?;
        writeln!(text, " heat {} used {}", node.heat.at(self.epoch()), node.used.at_us)
    }
}
