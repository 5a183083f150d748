//! A prefix cache as simple as can be: what the real one is held against.

use std::collections::BTreeMap;

use lorad_blocks::pool::PageId;
use lorad_blocks::prefix::{Domain, NodeId, Order, Shape};

pub const HALF_LIFE_US: u64 = 1000;

/// Of pages that serve equally well, the one whose number is largest when scrambled so is taken.
pub fn scramble(page: PageId) -> u32 {
    let bits = (page ^ (page >> 16)).wrapping_mul(0x85eb_ca6b);
    let bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}

/// A page, as the naive cache knows it: by all tokens from the root on.
#[derive(Clone, Debug)]
pub struct Page {
    pub node: NodeId,
    pub domain: Domain,
    /// Tokens of the pages above and of its own.
    pub sequence: Vec<u32>,
    pub above: Option<PageId>,
    pub holders: u32,
    /// Not found any more.
    pub doomed: bool,
    /// Doomed with its generation.
    pub dropped: bool,
    /// Σ 2^epoch over its uses: exact, because a world has few epochs.
    pub heat: u128,
    /// Number of its last use, or of that of what hung under it.
    pub used: u64,
}

/// The naive cache: a map of pages, everything else is searched for each time.
pub struct Model {
    pub shape: Shape,
    pub pages: BTreeMap<PageId, Page>,
    pub now_us: u64,
    pub uses: u64,
}

impl Model {
    pub fn start(&self, above: Option<PageId>) -> usize {
        above.map_or(0, |page| self.pages[&page].sequence.len())
    }

    pub fn own(&self, page: &Page) -> Vec<u32> {
        page.sequence[self.start(page.above)..].to_vec()
    }

    pub fn is_full(&self, page: &Page) -> bool {
        page.sequence.len().is_multiple_of(self.shape.page_tokens as usize)
    }

    pub fn path(&self, page: PageId) -> Vec<PageId> {
        std::iter::successors(Some(page), |page| self.pages[page].above).collect()
    }

    pub fn busy(&self, page: PageId) -> bool {
        self.pages.iter().any(|(held, entry)| entry.holders > 0 && self.path(*held).contains(&page))
    }

    pub fn has_children(&self, page: PageId) -> bool {
        self.pages.values().any(|entry| entry.above == Some(page))
    }

    pub fn evictable(&self) -> u32 {
        self.pages.iter().filter(|(page, entry)| !entry.doomed && !self.busy(**page)).count() as u32
    }

    /// Live pages directly under one, in the order of their tokens.
    pub fn live_under(&self, domain: Domain, above: Option<PageId>) -> Vec<(Vec<u32>, PageId)> {
        let here = |entry: &&Page| !entry.doomed && entry.domain == domain && entry.above == above;
        let mut found: Vec<_> =
            self.pages.values().filter(here).map(|entry| (self.own(entry), entry.node.page())).collect();
        found.sort();
        found
    }

    pub fn find(&self, domain: Domain, tokens: &[u32]) -> (Option<PageId>, usize, Option<(PageId, usize)>) {
        let deepest = self
            .pages
            .values()
            .filter(|entry| !entry.doomed && entry.domain == domain && self.is_full(entry))
            .filter(|entry| tokens.starts_with(&entry.sequence))
            .max_by_key(|entry| entry.sequence.len());
        let length = deepest.map_or(0, |entry| entry.sequence.len());
        let deepest = deepest.map(|entry| entry.node.page());
        let rest = &tokens[length..];
        let rest = &rest[..rest.len().min(self.shape.page_tokens as usize)];
        let common = |own: &[u32]| own.iter().zip(rest).take_while(|(one, other)| one == other).count();
        let under = self.live_under(domain, deepest);
        let longest = under.iter().map(|(own, _)| common(own)).max().filter(|&longest| longest > 0);
        let source = longest.and_then(|longest| {
            let best = under.iter().filter(|(own, _)| common(own) == longest).map(|(_, page)| *page);
            Some((best.max_by_key(|&page| scramble(page))?, longest))
        });
        (deepest, length / self.shape.page_tokens as usize, source)
    }

    pub fn epoch_heat(&self) -> u128 {
        1 << (self.now_us / HALF_LIFE_US)
    }

    pub fn touch(&mut self, now_us: u64, page: PageId) {
        self.now_us = self.now_us.max(now_us);
        self.uses += 1;
        let (heat, used) = (self.epoch_heat(), self.uses);
        let entry = self.pages.get_mut(&page).unwrap();
        entry.heat += heat;
        entry.used = used;
    }

    pub fn remove(&mut self, page: PageId) {
        let gone = self.pages.remove(&page).unwrap();
        if let Some(above) = gone.above {
            let above = self.pages.get_mut(&above).unwrap();
            above.used = above.used.max(gone.used);
        }
    }

    pub fn victim(&self) -> Option<PageId> {
        let leaves = self
            .pages
            .iter()
            .filter(|(page, entry)| !entry.doomed && entry.holders == 0 && !self.has_children(**page));
        let key = |entry: &Page| match self.shape.order {
            Order::LeastRecent => (0, entry.used),
            Order::LeastWorth => (entry.heat * self.own(entry).len() as u128, entry.used),
        };
        leaves.min_by_key(|(_, entry)| key(entry)).map(|(page, _)| *page)
    }

    /// Gives back what is doomed and idle, from below.
    pub fn sweep(&mut self) -> Vec<PageId> {
        let mut gone: Vec<PageId> =
            self.pages.keys().copied().filter(|&page| self.pages[&page].doomed && !self.busy(page)).collect();
        gone.sort_by_key(|&page| std::cmp::Reverse(self.path(page).len()));
        gone.iter().for_each(|&page| self.remove(page));
        gone.sort_unstable();
        gone
    }
}
