//! Roots: one tree of pages for each domain, kept in the order of (generation, tenant).

use super::tree::{Tree, NIL};
use super::Domain;

/// What a root is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nobody's.
    Vacant,
    /// A domain's: it leads here.
    Live,
    /// A dropped generation's, until the last of its pages is released. No domain leads here, so the same domain may
    /// begin anew beside it.
    Dead,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    pub standing: Standing,
    pub domain: Domain,
    /// Top of the set of live nodes directly under it.
    pub top: u32,
    /// Nodes that hang from it, at whatever depth, doomed ones included. Never 0 unless vacant.
    pub nodes: u32,
}

const VACANT: Root =
    Root { standing: Standing::Vacant, domain: Domain { generation: 0, tenant: 0 }, top: NIL, nodes: 0 };

/// The table of roots. Each has a page at least, so there are never more of them than pages.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    roots: Vec<Root>,
    vacant: Vec<u32>,
    /// The live roots by their domains, and the top of that set.
    index: Tree,
    top: u32,
}

impl Roots {
    pub fn new(roots_max: u32) -> Self {
        Self {
            roots: vec![VACANT; roots_max as usize],
            vacant: (0..roots_max).rev().collect(),
            index: Tree::new(roots_max),
            top: NIL,
        }
    }

    /// All roots, vacant ones included.
    pub fn all(&self) -> &[Root] {
        &self.roots
    }

    /// Roots that are nobody's.
    pub fn vacant(&self) -> usize {
        self.vacant.len()
    }

    /// The root that a domain leads to.
    pub fn find(&self, domain: Domain) -> Option<u32> {
        self.index.near(self.top, |root| domain.cmp(&self[root].domain)).exact
    }

    /// The first live root of a generation.
    pub fn of_generation(&self, generation: u64) -> Option<u32> {
        let least = Domain { generation, tenant: 0 };
        let near = self.index.near(self.top, |root| least.cmp(&self[root].domain));
        near.exact.or(near.above).filter(|&root| self[root].domain.generation == generation)
    }

    /// Begins a root for a domain that has none.
    pub fn open(&mut self, domain: Domain) -> Option<u32> {
        let root = self.vacant.pop()?;
        self[root] = Root { standing: Standing::Live, domain, top: NIL, nodes: 0 };
        let roots = &self.roots;
        self.top = self.index.insert(self.top, root, |other| domain.cmp(&roots[other as usize].domain));
        Some(root)
    }

    /// No domain leads to this root any more.
    pub fn bury(&mut self, root: u32) {
        let domain = self[root].domain;
        let roots = &self.roots;
        self.top = self.index.remove(self.top, root, |other| domain.cmp(&roots[other as usize].domain));
        self[root].standing = Standing::Dead;
    }

    /// Forgets a root that nothing hangs from.
    pub fn close_if_empty(&mut self, root: u32) {
        if self[root].nodes > 0 {
            return;
        }
        if self[root].standing == Standing::Live {
            self.bury(root);
        }
        self[root] = VACANT;
        self.vacant.push(root);
    }

    /// The live roots in the order of their domains. Takes memory: for checks and dumps.
    pub fn in_order(&self) -> Result<Vec<u32>, String> {
        self.index.in_order(self.top)
    }
}

impl std::ops::Index<u32> for Roots {
    type Output = Root;
    fn index(&self, root: u32) -> &Root {
        &self.roots[root as usize]
    }
}

impl std::ops::IndexMut<u32> for Roots {
    fn index_mut(&mut self, root: u32) -> &mut Root {
        &mut self.roots[root as usize]
    }
}
