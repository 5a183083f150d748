//! The prefix cache in the core: what a request finds when it's admitted, what it leaves behind.
//!
//! ```text
//!   pages of a line   | cached, read by all that hold them | its own, only it writes them |
//!                     0 ................................. cached ...................... pages
//!                                                   ▲ `node`: the deepest one, held
//! ```
//!
//! A page that a row has filled goes into the cache at the commit, and the row holds it there. When the row ends or gives
//! way, its last page, partly filled, goes in too; where a plan ahead still has the row, at the commit of that one. KV that a
//! plan was to write isn't put in when the plan was lost or the worker refused the row.

use lorad_blocks::pool::{Owner, PageId};
use lorad_blocks::prefix::{Domain, Insertion, Match, NodeId, Parent};

use crate::core::Core;
use crate::request::RequestState;

/// What a request finds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// Full pages, and a page to copy from.
    pub matched: Match,
    /// Pages of the match that nobody holds: they can't be evicted for the request's own.
    pub idle: u32,
}

impl Core {
    /// Whose KV a request may use: its tenant's, of its adapter's generation. An adapter's id is never given out twice.
    fn domain(&self, entry: u32) -> Domain {
        let request = &self.requests[entry];
        let tenant = self.tenants[self.groups[request.group].name.tenant].id;
        let generation = request.adapter.map_or(0, |adapter| self.adapters[adapter].id.number().into());
        let shared = generation == 0 && self.config.share_base_prefix;
        Domain { generation, tenant: if shared { u64::MAX } else { tenant.into() } }
    }

    /// The longest cached beginning of a waiting request's tokens. One token is left to compute.
    pub(crate) fn find_prefix(&self, entry: u32) -> Found {
        if !self.config.prefix_cache || self.requests[entry].fresh {
            return Found::default();
        }
        let tokens = &self.requests[entry].tokens;
        self.found(self.prefix.find(self.domain(entry), tokens, tokens.len().saturating_sub(1)))
    }

    /// The same without a page to copy from: holding it takes a page more.
    pub(crate) fn without_source(&self, found: Found) -> Found {
        self.found(Match { source: None, ..found.matched })
    }

    fn found(&self, matched: Match) -> Found {
        let deepest = matched.source.map(|source| source.node).or(matched.node);
        let idle = deepest.and_then(|node| self.prefix.evictable_on_path(node).ok()).unwrap_or(0);
        Found { matched, idle }
    }

    /// Holds what a request found, before its own pages are secured.
    pub(crate) fn hold_prefix(&mut self, found: Found) {
        for node in found.matched.node.into_iter().chain(found.matched.source.map(|source| source.node)) {
            let held = self.prefix.hold(node).is_ok();
            debug_assert!(held);
        }
    }

    /// Lets go of it again.
    pub(crate) fn drop_prefix(&mut self, found: Found) {
        for node in found.matched.node.into_iter().chain(found.matched.source.map(|source| source.node)) {
            self.release_node(node);
        }
    }

    /// Puts the cached pages into a request's line and says how many of its tokens they hold. The copy of a page that
    /// agrees only at first is part of the plan; its source is held until the commit.
    pub(crate) fn use_prefix(&mut self, line: u32, found: Found) -> u32 {
        let size = self.config.page_tokens;
        if let Some(node) = found.matched.node {
            let _ = self.prefix.touch_path(self.now, node);
            let total = found.matched.pages;
            for col in 0..total {
                self.lines.push(line, 0);
                self.lines.set_cached(line, col + 1, Some(node));
            }
            // the path comes deepest first
            let Ok(path) = self.prefix.path(node) else { return 0 };
            for (above, node) in path.enumerate() {
                self.lines.set(line, total - 1 - above as u32, node.page());
            }
        }
        let copied = found.matched.source.map_or(0, |source| {
            let _ = self.prefix.touch(self.now, source.node);
            self.copies.push(Copy { source: source.node, line, col: found.matched.pages });
            source.tokens
        });
        found.matched.pages * size + copied
    }

    /// Puts the pages that the plan's rows have filled into the cache.
    pub(crate) fn keep_all_filled(&mut self) {
        for index in 0..self.filled.len() {
            let entry = self.filled[index];
            if let RequestState::Running { line, computed, planned, .. } = self.requests[entry].state {
                self.keep_filled(entry, line, computed, planned > 0);
            }
        }
        self.filled.clear();
    }

    /// Puts a row's full pages into the cache. `flies`: a plan in flight has the row.
    pub(crate) fn keep_filled(&mut self, entry: u32, line: u32, computed: u32, flies: bool) {
        if !self.config.prefix_cache {
            return;
        }
        let size = self.config.page_tokens;
        loop {
            let (cached, node) = self.lines.cached(line);
            let end = (cached + 1) * size;
            if end > computed {
                return;
            }
            let page = self.lines.pages(line)[cached as usize];
            let parent = node.map_or(Parent::Root(self.domain(entry)), Parent::Page);
            let tokens = &self.requests[entry].tokens[(end - size) as usize..end as usize];
            let kept = match self.prefix.insert_held(self.now, parent, tokens, page) {
                Ok(Insertion::New { node, outgrown }) => {
                    self.counters.prefix_pages += 1;
                    let given = self.pool.pass(page, Owner::Sequence { line, col: cached }, Owner::Cached);
                    self.note(given);
                    self.give_cached(outgrown);
                    node
                }
                // another has computed the same, but a plan in flight reads the row's own page: some other time
                Ok(Insertion::Exists { node }) if flies => return self.release_node(node),
                // another has computed the same: its page serves for this one too
                Ok(Insertion::Exists { node }) => {
                    let given = self.pool.give(page, Owner::Sequence { line, col: cached });
                    self.note(given);
                    self.lines.set(line, cached, node.page());
                    node
                }
                Err(_) => return, // the generation is gone, or as much is cached as may be
            };
            if let Some(before) = node {
                self.release_node(before);
            }
            self.lines.set_cached(line, cached + 1, Some(kept));
        }
    }

    /// Puts the last page of a row, partly filled, into the cache; says whether it's the cache's now.
    pub(crate) fn keep_tail(&mut self, entry: u32, line: u32, computed: u32) -> bool {
        let (cached, node) = self.lines.cached(line);
        let begin = cached * self.config.page_tokens;
        if !self.config.prefix_cache || computed <= begin || computed >= begin + self.config.page_tokens {
            return false;
        }
        let page = self.lines.pages(line)[cached as usize];
        let parent = node.map_or(Parent::Root(self.domain(entry)), Parent::Page);
        let tokens = &self.requests[entry].tokens[begin as usize..computed as usize];
        match self.prefix.insert(self.now, parent, tokens, page) {
            Ok(Insertion::New { outgrown, .. }) => {
                self.counters.prefix_pages += 1;
                let given = self.pool.pass(page, Owner::Sequence { line, col: cached }, Owner::Cached);
                self.note(given);
                self.give_cached(outgrown);
                true
            }
            Ok(Insertion::Exists { .. }) | Err(_) => false,
        }
    }

    /// Takes back one hold on a cached page, and the pages that nobody needs any more.
    pub(crate) fn release_node(&mut self, node: NodeId) {
        let (pool, fault) = (&mut self.pool, &mut self.fault);
        let released = self.prefix.release(self.now, node, |page| {
            if let (Err(error), None) = (pool.give(page, Owner::Cached), &fault) {
                *fault = Some(error);
            }
        });
        debug_assert!(released.is_ok());
    }

    /// The generation of an adapter is gone for good, and what was computed with it.
    pub(crate) fn forget_prefixes(&mut self, generation: u64) {
        let (pool, fault) = (&mut self.pool, &mut self.fault);
        self.prefix.drop_generation(generation, |page| {
            if let (Err(error), None) = (pool.give(page, Owner::Cached), &fault) {
                *fault = Some(error);
            }
        });
    }

    fn give_cached(&mut self, page: Option<PageId>) {
        if let Some(page) = page {
            let given = self.pool.give(page, Owner::Cached);
            self.note(given);
        }
    }
}

/// A page to be copied into a row's own before the plan's rows are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    /// Held until the commit.
    pub source: NodeId,
    pub line: u32,
    /// Column of the line's page that it's copied to.
    pub col: u32,
}
