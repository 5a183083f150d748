//! A hundred thousand random operations on the prefix cache with a naive one beside it, compared and checked after each.
// a test ends by panicking, helpers of tests too
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

mod naive;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use lorad_blocks::pool::PageId;
use lorad_blocks::prefix::{
    Domain, Insertion, Match, NodeId, Order, Parent, PrefixCache, PrefixError, Shape,
};

use naive::{scramble, Model, Page, HALF_LIFE_US};

/// A seeded stream of numbers (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) % u64::from(limit)) as u32
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    fn tokens(&mut self, count: u32) -> Vec<u32> {
        (0..count).map(|_| self.below(2)).collect()
    }
}

#[derive(Default)]
struct Totals(BTreeMap<&'static str, u32>);

impl Totals {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_insert(0) += 1;
    }
}

struct World {
    seed: u64,
    round: u32,
    cache: PrefixCache,
    model: Model,
    random: Random,
    /// Pages that nobody has.
    free: Vec<PageId>,
    holds: Vec<NodeId>,
    /// Every name that was ever given out: most of them are stale.
    names: Vec<NodeId>,
    now_us: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let pages = 5 + random.below(8);
        let shape = Shape {
            pages,
            page_tokens: 1 + random.below(4),
            pages_max: pages - random.below(3),
            half_life_us: NonZeroU64::new(HALF_LIFE_US).unwrap(),
            order: if seed.is_multiple_of(3) { Order::LeastRecent } else { Order::LeastWorth },
        };
        Self {
            seed,
            round: 0,
            cache: PrefixCache::new(shape),
            model: Model { shape, pages: BTreeMap::new(), now_us: 0, uses: 0 },
            random,
            free: (0..pages).collect(),
            holds: Vec::new(),
            names: Vec::new(),
            now_us: 0,
        }
    }

    /// Mostly one domain, so that its tree gets deep.
    fn domain(&mut self) -> Domain {
        if self.random.chance(50) {
            return Domain { generation: 1, tenant: 1 };
        }
        Domain { generation: u64::from(self.random.below(3)), tenant: u64::from(self.random.below(2)) }
    }

    /// Mostly a page that is cached, sometimes a name of old.
    fn name(&mut self) -> Option<NodeId> {
        let cached: Vec<NodeId> = self.model.pages.values().map(|entry| entry.node).collect();
        let names = if self.random.chance(90) { &cached } else { &self.names };
        (!names.is_empty()).then(|| names[self.random.below(names.len() as u32) as usize])
    }

    /// Mostly one that others may be put under.
    fn parent(&mut self) -> Option<NodeId> {
        let open = |entry: &&Page| !entry.doomed && self.model.is_full(entry);
        let open: Vec<NodeId> = self.model.pages.values().filter(open).map(|entry| entry.node).collect();
        if open.is_empty() || self.random.chance(10) {
            return self.name();
        }
        Some(open[self.random.below(open.len() as u32) as usize])
    }

    /// Is this name that of a page in the model?
    fn known(&self, node: NodeId) -> Option<PageId> {
        self.model.pages.get(&node.page()).filter(|entry| entry.node == node).map(|_| node.page())
    }

    fn compare_find(&mut self, totals: &mut Totals) -> Match {
        let domain = self.domain();
        let count = self.random.below(4 * self.model.shape.page_tokens + 1);
        let tokens = self.random.tokens(count);
        let limit = self.random.below(tokens.len() as u32 + 2) as usize;
        let found = self.cache.find(domain, &tokens, limit);
        let (deepest, pages, source) = self.model.find(domain, &tokens[..limit.min(tokens.len())]);
        assert_eq!(found.node, deepest.map(|page| self.model.pages[&page].node));
        assert_eq!(found.pages as usize, pages);
        let named = found.source.map(|source| (source.node.page(), source.tokens as usize));
        assert_eq!(named, source, "{tokens:?} to {limit}");
        if let Some(node) = found.node {
            let path: Vec<PageId> = self.cache.path(node).unwrap().map(|node| node.page()).collect();
            assert_eq!(path, self.model.path(node.page()));
            assert_eq!(path.len(), pages);
            totals.count("found");
        }
        if source.is_some() {
            totals.count("sources");
        }
        found
    }

    /// A sequence begins: it holds what is found.
    fn begin(&mut self, totals: &mut Totals) {
        let found = self.compare_find(totals);
        for (node, path) in [(found.node, true), (found.source.map(|source| source.node), false)] {
            let Some(node) = node else { continue };
            if path {
                self.cache.touch_path(self.now_us, node).unwrap();
                self.model.touch(self.now_us, node.page());
                let heat = self.model.epoch_heat();
                for above in self.model.path(node.page()).into_iter().skip(1) {
                    self.model.pages.get_mut(&above).unwrap().heat += heat;
                }
            } else {
                self.cache.touch(self.now_us, node).unwrap();
                self.model.touch(self.now_us, node.page());
            }
            if self.holds.len() < 6 {
                self.hold(node);
            }
        }
    }

    fn hold(&mut self, node: NodeId) {
        match self.known(node) {
            Some(page) => {
                let kept = self.cache.evictable_on_path(node).unwrap();
                let before = self.cache.evictable_pages();
                self.cache.hold(node).unwrap();
                assert_eq!(kept, before - self.cache.evictable_pages());
                self.model.pages.get_mut(&page).unwrap().holders += 1;
                self.holds.push(node);
            }
            None => assert_eq!(self.cache.hold(node), Err(PrefixError::Stale { node })),
        }
    }

    fn release(&mut self, totals: &mut Totals) {
        if self.holds.is_empty() {
            return;
        }
        let node = self.holds.swap_remove(self.random.below(self.holds.len() as u32) as usize);
        let mut gone = Vec::new();
        self.cache.release(self.now_us, node, |page| gone.push(page)).unwrap();
        self.model.now_us = self.model.now_us.max(self.now_us);
        self.model.uses += 1;
        let entry = self.model.pages.get_mut(&node.page()).unwrap();
        entry.holders -= 1;
        entry.used = self.model.uses;
        self.take_back(gone, "released", totals);
    }

    fn take_back(&mut self, mut gone: Vec<PageId>, what: &'static str, totals: &mut Totals) {
        gone.sort_unstable();
        assert_eq!(gone, self.model.sweep());
        gone.iter().for_each(|_| totals.count(what));
        self.free.extend(gone);
    }

    /// Somewhere, something.
    fn addition(&mut self) -> (Parent, Vec<u32>) {
        let parent = match self.parent() {
            Some(node) if self.random.chance(65) => Parent::Page(node),
            _ => Parent::Root(self.domain()),
        };
        let page_tokens = self.model.shape.page_tokens;
        let count = if self.random.chance(50) { page_tokens } else { self.random.below(page_tokens + 2) };
        (parent, self.random.tokens(count))
    }

    /// At times, what a partial page would become.
    fn growth(&mut self) -> Option<(Parent, Vec<u32>)> {
        let partial: Vec<Page> =
            self.model.pages.values().filter(|entry| !self.model.is_full(entry)).cloned().collect();
        if partial.is_empty() || !self.random.chance(20) {
            return None;
        }
        let entry = &partial[self.random.below(partial.len() as u32) as usize];
        let parent = match entry.above {
            Some(above) => Parent::Page(self.model.pages[&above].node),
            None => Parent::Root(entry.domain),
        };
        let mut tokens = self.model.own(entry);
        let more = 1 + self.random.below(self.model.shape.page_tokens - tokens.len() as u32);
        tokens.extend(self.random.tokens(more));
        Some((parent, tokens))
    }

    fn insert(&mut self, totals: &mut Totals) {
        let (parent, tokens) = self.growth().unwrap_or_else(|| self.addition());
        let from_free = !self.free.is_empty() && self.random.chance(95);
        let page = match from_free {
            true => self.free[self.random.below(self.free.len() as u32) as usize],
            false => self.random.below(self.model.shape.pages + 1),
        };
        let before = self.cache.clone();
        let result = self.cache.insert(self.now_us, parent, &tokens, page);
        assert_eq!(result.is_ok(), self.allowed(parent, &tokens, page), "{result:?}");
        if let Err(error) = result {
            assert_eq!(format!("{before:?}"), format!("{:?}", self.cache));
            self.expect_reason(parent, &tokens, page, error);
            totals.count("refused");
            return;
        }
        let (domain, above) = match parent {
            Parent::Root(domain) => (domain, None),
            Parent::Page(node) => (self.model.pages[&node.page()].domain, Some(node.page())),
        };
        let under = self.model.live_under(domain, above);
        let same = under.iter().filter(|(own, _)| own.starts_with(&tokens)).map(|(_, page)| *page);
        let same = same.max_by_key(|&page| scramble(page));
        match result.unwrap() {
            Insertion::Exists { node } => {
                assert_eq!(Some(node.page()), same);
                self.model.touch(self.now_us, node.page());
                totals.count("exist");
            }
            Insertion::New { node, outgrown } => {
                assert_eq!((node.page(), same), (page, None));
                let shorter = under.iter().find(|(own, _)| tokens.starts_with(own)).map(|(_, page)| *page);
                let mut sequence =
                    above.map(|above| self.model.pages[&above].sequence.clone()).unwrap_or_default();
                sequence.extend(&tokens);
                let heat = shorter.map_or(0, |page| self.model.pages[&page].heat);
                let entry = Page {
                    node,
                    domain,
                    sequence,
                    above,
                    holders: 0,
                    doomed: false,
                    dropped: false,
                    heat,
                    used: 0,
                };
                self.model.pages.insert(page, entry);
                self.model.touch(self.now_us, page);
                self.free.retain(|&free| free != page);
                self.names.push(node);
                if let Some(shorter) = shorter {
                    self.model.pages.get_mut(&shorter).unwrap().doomed = true;
                    totals.count(if outgrown.is_some() { "outgrown" } else { "outgrown while held" });
                }
                self.take_back(outgrown.into_iter().collect(), "taken back", totals);
                totals.count("new");
            }
        }
    }

    fn allowed(&self, parent: Parent, tokens: &[u32], page: PageId) -> bool {
        let (model, shape) = (&self.model, &self.model.shape);
        let (domain, above) = match parent {
            Parent::Root(domain) => (domain, None),
            Parent::Page(node) => match self.known(node).map(|page| &model.pages[&page]) {
                Some(entry) if !entry.doomed && model.is_full(entry) => (entry.domain, Some(node.page())),
                _ => return false,
            },
        };
        let under = model.live_under(domain, above);
        let exists = under.iter().any(|(own, _)| own.starts_with(tokens));
        let leaves = |page: &PageId| model.pages[page].holders == 0;
        let room = (model.pages.len() as u32) < shape.pages_max
            || under.iter().any(|(own, page)| tokens.starts_with(own) && leaves(page));
        let fits = (1..=shape.page_tokens as usize).contains(&tokens.len());
        fits && page < shape.pages && !model.pages.contains_key(&page) && (exists || room)
    }

    fn expect_reason(&self, parent: Parent, tokens: &[u32], page: PageId, error: PrefixError) {
        let (shape, model) = (&self.model.shape, &self.model);
        let right = match error {
            PrefixError::NoSuchPage { .. } => page >= shape.pages,
            PrefixError::PageCached { node } => {
                model.pages.get(&page).is_some_and(|entry| entry.node == node)
            }
            PrefixError::Length { .. } => tokens.is_empty() || tokens.len() > shape.page_tokens as usize,
            PrefixError::Stale { node } => parent == Parent::Page(node) && self.known(node).is_none(),
            PrefixError::Doomed { node } => parent == Parent::Page(node) && model.pages[&node.page()].doomed,
            PrefixError::PartialParent { node, .. } => {
                parent == Parent::Page(node) && !model.is_full(&model.pages[&node.page()])
            }
            PrefixError::Full { .. } => model.pages.len() as u32 >= shape.pages_max,
            PrefixError::NotHeld { .. } | PrefixError::NotEvictable { .. } => false,
        };
        assert!(right, "{error:?}: {parent:?} {tokens:?} {page}");
    }

    fn evict(&mut self, totals: &mut Totals) {
        if self.random.chance(20) {
            let Some(node) = self.name() else { return };
            let allowed = self.known(node).filter(|&page| {
                let entry = &self.model.pages[&page];
                !entry.doomed && entry.holders == 0 && !self.model.has_children(page)
            });
            match self.cache.evict(node) {
                Ok(page) => {
                    assert_eq!(allowed, Some(page));
                    self.model.remove(page);
                    self.free.push(page);
                    totals.count("taken over");
                }
                Err(_) => assert_eq!(allowed, None),
            }
            return;
        }
        if let Some(victim) = self.cache.next_evicted(1000.0) {
            let page = self.cache.evict(victim.node).unwrap();
            self.model.remove(page);
            self.free.push(page);
            totals.count("evicted");
        }
    }

    fn drop_generation(&mut self, totals: &mut Totals) {
        let generation = u64::from(self.random.below(3));
        let mut gone = Vec::new();
        let kept = self.cache.drop_generation(generation, |page| gone.push(page));
        let mut dropped = 0;
        for entry in self.model.pages.values_mut().filter(|entry| entry.domain.generation == generation) {
            dropped += u32::from(!entry.dropped);
            (entry.doomed, entry.dropped) = (true, true);
        }
        assert_eq!(kept, dropped - gone.len() as u32);
        if kept > 0 {
            totals.count("dropped while held");
        }
        self.take_back(gone, "dropped", totals);
    }

    fn compare(&self) {
        self.cache.check().unwrap();
        assert_eq!(self.cache.pages() as usize, self.model.pages.len());
        assert_eq!(self.cache.evictable_pages(), self.model.evictable());
        let victim = self.cache.next_evicted(1.0).map(|victim| victim.node.page());
        assert_eq!(victim, self.model.victim());
        for (page, entry) in &self.model.pages {
            assert_eq!(self.cache.cached(*page), Some(entry.node));
            assert_eq!(self.cache.tokens(entry.node).unwrap(), self.model.own(entry));
            assert_eq!(self.cache.holders(entry.node), Ok(u64::from(entry.holders)));
        }
        assert_eq!(self.free.len() + self.model.pages.len(), self.model.shape.pages as usize);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {} round {}:\n{}", self.seed, self.round, self.cache.dump());
        }
    }
}

fn run(seed: u64, rounds: u32, totals: &mut Totals) -> String {
    let mut world = World::new(seed);
    let mut latest_us = 0;
    for round in 0..rounds {
        world.round = round;
        // so slowly that a sum of uses of all epochs fits an f64 without rounding
        latest_us += u64::from(world.random.below(36));
        // a clock may go back
        world.now_us = if world.random.chance(5) { latest_us / 2 } else { latest_us };
        match world.random.below(100) {
            0..=14 => world.begin(totals),
            15..=29 => {
                if let Some(node) = world.name().filter(|_| world.holds.len() < 6) {
                    world.hold(node);
                }
            }
            30..=44 => world.release(totals),
            45..=79 => world.insert(totals),
            80..=95 => world.evict(totals),
            96 => world.drop_generation(totals),
            _ => {
                world.compare_find(totals);
            }
        }
        world.compare();
    }
    while !world.holds.is_empty() {
        world.release(totals);
        world.compare();
    }
    while world.cache.next_evicted(1.0).is_some() {
        world.evict(totals);
        world.compare();
    }
    assert_eq!(world.cache.pages(), 0, "{}", world.cache.dump());
    format!("{:?} {:?}", world.free, world.names)
}

#[test]
fn a_hundred_thousand_random_operations_match_a_naive_cache() {
    let mut totals = Totals::default();
    // LORAD_SEEDS=n runs that many worlds instead of the usual fifty
    let seeds = std::env::var("LORAD_SEEDS").map_or(50, |text| text.parse().unwrap());
    for seed in 0..seeds {
        run(seed, 2000, &mut totals);
    }
    println!("{:?}", totals.0);
    for what in [
        "found",
        "sources",
        "new",
        "exist",
        "refused",
        "outgrown",
        "outgrown while held",
        "released",
        "evicted",
        "taken over",
        "dropped",
        "dropped while held",
    ] {
        assert!(totals.0.get(what).is_some_and(|&count| count >= 100), "{what}: {:?}", totals.0);
    }
}

#[test]
fn the_same_calls_give_the_same_names_and_pages() {
    for seed in 100..104 {
        let mut totals = [Totals::default(), Totals::default()];
        let [one, two] = totals.each_mut().map(|totals| run(seed, 1000, totals));
        assert_eq!(one, two, "seed {seed}");
    }
}
