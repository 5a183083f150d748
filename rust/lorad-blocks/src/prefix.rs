//! The prefix cache: KV pages of earlier sequences, found by the tokens that they were computed from.
//!
//! A tree for each [`Domain`]. A node is one page: the KV of its tokens, after the tokens of all nodes above it. A full
//! page has `page_tokens` tokens; a partial one has fewer and nothing under it.
//!
//! ```text
//!   domain (generation 5, tenant 1)          KV of   [1 2 3 4][5 6 7 8][9 9]
//!   ├─ page 7 [1 2 3 4]                               page 7    page 2   page 6
//!   │  ├─ page 2 [5 6 7 8]
//!   │  │  └─ page 6 [9 9]        partial
//!   │  └─ page 3 [5 6 0 0]
//!   └─ page 1 [8 8 8 8]
//! ```
//!
//! # Identity
//!
//! KV is used only by the (base, number types, tokenizer, tenant, generation) that it was made under. The first three are
//! the same for all that one engine does, so a cache belongs to one engine and its domain names the other two, as typed
//! parts that can't imitate one another. Nothing is shared across domains. Inside one, tokens decide, all of them, each
//! time: nothing is found by a hash. (The nodes under a page are a search tree in the order of their tokens. It finds
//! the equal page and the one with the longest common start in one search, where a table of hashes finds only the first.)
//!
//! # Who owns and who writes
//!
//! ```text
//!   tokens of a running sequence   0 ...................... held ...................... length
//!                                  | the cache's pages: read by all | its own: only it writes |
//!                                                           ▲ it holds the last of these
//! ```
//!
//! A page in the cache is never written. A sequence begins with the full pages that [`PrefixCache::find`] names and
//! holds the deepest. Where a page agrees with it for its first tokens only, the sequence copies that page into one of
//! its own (and holds the source until the copy is made), or, if nobody holds it, takes it out with
//! [`PrefixCache::evict`] and writes on in it. Each page that it fills may be put in after the one that it holds, and is
//! then held instead. When the sequence ends, its last page, partly filled, is put in too.
//!
//! # How partial pages grow
//!
//! Of the pages that can be found under one node, none begins with all of another's tokens:
//!
//! - what another page begins with isn't put in ([`Insertion::Exists`]): that page serves for it;
//! - a page that begins with all of a shorter one takes its place and its heat; the shorter one's page goes back, at
//!   once if nobody holds it, else when it's released (until then it's doomed: not found any more).
//!
//! # What a hold protects
//!
//! ```text
//!   busy: held, or something under it is          idle: not busy
//!
//!   root ── A busy ─┬─ B held ── C idle ── D idle      evicted next: D or E, idle with nothing under them; then C
//!                   └─ E idle                          evictable pages: 3, all that are idle
//! ```
//!
//! A page is worth nothing without those above it, so a sequence that holds its deepest page keeps them all.
//!
//! # Rules that hold at all times
//!
//! - A page is in at most one node: a node is named by its page, and by a stamp, so that an old name is refused.
//! - cached = idle + busy; a doomed page is busy.
//! - What is evicted next is worth least ([`crate::heat`]) or was used longest ago; the same calls give the same answers.
//! - A refused call changes nothing. [`PrefixCache::new`] takes all memory.
//!
//! ```
//! use std::num::NonZeroU64;
//! use lorad_blocks::prefix::{Domain, Insertion, Order, Parent, PrefixCache, Shape};
//!
//! let half_life_us = NonZeroU64::new(60_000_000).ok_or("zero")?;
//! let mut cache =
//!     PrefixCache::new(Shape { pages: 8, page_tokens: 4, pages_max: 8, half_life_us, order: Order::LeastWorth });
//! let domain = Domain { generation: 5, tenant: 1 };
//! // a sequence has filled page 7
//! let Insertion::New { node, .. } = cache.insert(0, Parent::Root(domain), &[1, 2, 3, 4], 7)? else { return Ok(()) };
//! // another asks for the same beginning; its last token is left to be computed
//! let tokens = [1, 2, 3, 4, 5];
//! let found = cache.find(domain, &tokens, tokens.len() - 1);
//! assert_eq!((found.node, found.pages), (Some(node), 1));
//! cache.hold(node)?;
//! cache.touch_path(10, node)?;
//! assert_eq!(cache.path(node)?.map(|node| node.page()).collect::<Vec<_>>(), [7]);
//! assert_eq!(cache.evictable_pages(), 0);
//! cache.release(20, node, |_| {})?;
//! assert_eq!(cache.next_evicted(1.0).map(|victim| victim.node), Some(node));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod dump;
mod error;
mod evict;
mod heap;
mod hold;
mod insert;
mod node;
mod roots;
mod tree;

use std::num::NonZeroU64;

pub use self::error::PrefixError;
pub use self::evict::Victim;
pub use self::insert::Insertion;

use self::heap::Heap;
use self::node::{Nodes, Use};
use self::roots::Roots;
use self::tree::{Near, Tree};
use crate::heat::{Epoch, Worth};
use crate::pool::PageId;

/// Whose KV it is. Ordered by generation, then tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain {
    /// The adapter generation that it was computed with; 0 for the base.
    pub generation: u64,
    /// Who may use it; derived by the server.
    pub tenant: u64,
}

/// A cached page, for as long as it's cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    page: PageId,
    stamp: u32,
}

impl NodeId {
    /// The page that holds its KV.
    pub fn page(&self) -> PageId {
        self.page
    }
}

/// Which page goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The one that was used longest ago.
    LeastRecent,
    /// The one with the least heat × tokens; of equals the one that was used longest ago.
    LeastWorth,
}

/// Sizes and rules of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pages of the pool: cached pages are below this.
    pub pages: u32,
    /// Tokens of a full page; with 0 nothing can be put in.
    pub page_tokens: u32,
    /// Pages that may be cached at once.
    pub pages_max: u32,
    /// After this time a use counts half.
    pub half_life_us: NonZeroU64,
    /// Which page goes first.
    pub order: Order,
}

/// Where a page is put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// At the beginning of a domain's sequences.
    Root(Domain),
    /// After a full page.
    Page(NodeId),
}

/// The longest cached beginning of some tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The deepest full page that matches; [`PrefixCache::path`] gives those before it.
    pub node: Option<NodeId>,
    /// Full pages that match.
    pub pages: u32,
    /// A page whose first tokens continue the match.
    pub source: Option<Source>,
}

/// A page to copy from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The page.
    pub node: NodeId,
    /// How many of its tokens match, from the first; never 0.
    pub tokens: u32,
}

/// What orders the evictable pages. Two keys are never equal: each use has a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    worth: Worth,
    used: Use,
}

/// All cached pages.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    shape: Shape,
    nodes: Nodes,
    roots: Roots,
    /// The set of live nodes under each node and root, in the order of their tokens.
    tree: Tree,
    /// Live nodes that nobody holds and with nothing under them.
    heap: Heap<Key>,
    /// Pages in the cache.
    cached: u32,
    /// Pages that are cached and idle.
    evictable: u32,
    /// The latest time and the number of uses so far.
    clock: Use,
}

impl PrefixCache {
    /// An empty cache; takes all its memory.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            nodes: Nodes::new(shape.pages, shape.page_tokens),
            roots: Roots::new(shape.pages.min(shape.pages_max)),
            tree: Tree::new(shape.pages),
            heap: Heap::new(shape.pages),
            cached: 0,
            evictable: 0,
            clock: Use::default(),
        }
    }

    /// Pages in the cache, doomed ones included.
    pub fn pages(&self) -> u32 {
        self.cached
    }

    /// Pages that could be had by evicting one after another: all that are idle.
    pub fn evictable_pages(&self) -> u32 {
        self.evictable
    }

    /// How many of these could not be had any more if the node were held. For a source, the pages above it are counted
    /// in: whoever wants to hold both asks for the source only.
    pub fn evictable_on_path(&self, node: NodeId) -> Result<u32, PrefixError> {
        let deepest = self.nodes.find(node)?;
        let pages = std::iter::successors(Some(deepest), |&page| self.nodes[page].above);
        Ok(pages.take_while(|&page| self.nodes[page].idle()).count() as u32)
    }

    /// Sizes and rules of this cache.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The node that a page is cached as, doomed ones included.
    pub fn cached(&self, page: PageId) -> Option<NodeId> {
        self.nodes.cached(page)
    }

    /// The tokens of a cached page.
    pub fn tokens(&self, node: NodeId) -> Result<&[u32], PrefixError> {
        self.nodes.find(node).map(|page| self.nodes.content(page))
    }

    /// Who holds a cached page itself.
    pub fn holders(&self, node: NodeId) -> Result<u64, PrefixError> {
        self.nodes.find(node).map(|page| self.nodes[page].holders)
    }

    /// The node and those above it, the deepest first: with `n` of them in all, for column `n` − 1 of a page table.
    pub fn path(&self, node: NodeId) -> Result<impl Iterator<Item = NodeId> + '_, PrefixError> {
        let deepest = self.nodes.find(node)?;
        let pages = std::iter::successors(Some(deepest), |&page| self.nodes[page].above);
        Ok(pages.map(|page| self.nodes.id(page)))
    }

    /// The longest cached beginning of `tokens[..limit]`. A model needs one token to compute, so the limit is to be at
    /// most `tokens.len()` − 1. The pages aren't held yet: [`PrefixCache::hold`] before anything is evicted.
    ///
    /// Of several sources that match equally far, the one with the most scrambled page number is named: any would do, but
    /// the choice must not depend on which ids tokens have, only on which are equal.
    pub fn find(&self, domain: Domain, tokens: &[u32], limit: usize) -> Match {
        let mut found = Match::default();
        let Some(root) = self.roots.find(domain) else { return found };
        let mut rest = &tokens[..limit.min(tokens.len())];
        let mut top = self.roots[root].top;
        while !rest.is_empty() {
            let (wanted, after) = rest.split_at(rest.len().min(self.shape.page_tokens as usize));
            let (near, longest) = self.near(top, wanted);
            match near.exact.filter(|&page| self.is_full(page)) {
                Some(page) => {
                    found.node = Some(self.nodes.id(page));
                    found.pages += 1;
                    top = self.nodes[page].top;
                    rest = after;
                }
                None => {
                    found.source = longest.map(|(page, tokens)| Source { node: self.nodes.id(page), tokens });
                    break;
                }
            }
        }
        found
    }

    /// Searches the nodes under one: the neighbours of some tokens, and the node that agrees longest with them, with how
    /// many they have in common.
    ///
    /// In token order, the nodes that agree longest lie side by side, and the tokens in or beside them: the search comes
    /// past one of them, and the first that it comes past is the topmost.
    fn near(&self, top: u32, tokens: &[u32]) -> (Near, Option<(PageId, u32)>) {
        let mut longest: Option<(PageId, u32)> = None;
        let near = self.tree.near(top, |page| {
            let content = self.nodes.content(page);
            let common = tokens.iter().zip(content).take_while(|(one, other)| one == other).count();
            if common as u32 > longest.map_or(0, |longest| longest.1) {
                longest = Some((page, common as u32));
            }
            tokens[common..].cmp(&content[common..])
        });
        (near, longest)
    }

    fn is_full(&self, page: PageId) -> bool {
        self.nodes[page].length == self.shape.page_tokens
    }

    /// Top of the set under a node, or under the root.
    fn top(&self, root: u32, above: Option<PageId>) -> u32 {
        match above {
            Some(page) => self.nodes[page].top,
            None => self.roots[root].top,
        }
    }

    fn set_top(&mut self, root: u32, above: Option<PageId>, top: u32) {
        match above {
            Some(page) => self.nodes[page].top = top,
            None => self.roots[root].top = top,
        }
    }

    /// Puts a node into the set of the one above it.
    fn link(&mut self, page: PageId) {
        let (root, above) = (self.nodes[page].root, self.nodes[page].above);
        let (top, nodes) = (self.top(root, above), &self.nodes);
        let top = self.tree.insert(top, page, |other| nodes.content(page).cmp(nodes.content(other)));
        self.set_top(root, above, top);
    }

    /// Takes a node out of the set of the one above it: it isn't found any more.
    fn unlink(&mut self, page: PageId) {
        let (root, above) = (self.nodes[page].root, self.nodes[page].above);
        let (top, nodes) = (self.top(root, above), &self.nodes);
        let top = self.tree.remove(top, page, |other| nodes.content(page).cmp(nodes.content(other)));
        self.set_top(root, above, top);
    }

    /// Puts a node into the heap or out of it: the one place that decides it.
    fn settle(&mut self, page: PageId) {
        let evictable = self.nodes[page].evictable();
        if evictable {
            self.heap.put(page, self.key(page));
        } else if self.nodes[page].listed {
            self.heap.remove(page);
        }
        self.nodes[page].listed = evictable;
    }

    fn key(&self, page: PageId) -> Key {
        let node = &self.nodes[page];
        let worth = match self.shape.order {
            Order::LeastRecent => Worth::NOTHING,
            Order::LeastWorth => node.heat.worth(f64::from(node.length)),
        };
        Key { worth, used: node.used }
    }

    fn epoch(&self) -> Epoch {
        Epoch::of(self.clock.at_us, self.shape.half_life_us)
    }

    /// The next use. An earlier time than the last is taken as the last.
    fn tick(&mut self, now_us: u64) -> Use {
        self.clock = Use { serial: self.clock.serial + 1, at_us: self.clock.at_us.max(now_us) };
        self.clock
    }
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
