//! The prefix cache takes all its memory when it's made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZeroU64;

use lorad_blocks::prefix::{Domain, Insertion, Order, Parent, PrefixCache, Shape};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator; the counter is a plain thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promised
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Sequences of 9 tokens begin, put their pages in, end; pages are evicted when none is free; generations go. From the
/// first call on.
#[test]
fn no_call_allocates() {
    const PAGES: u32 = 64;
    for order in [Order::LeastRecent, Order::LeastWorth] {
        let half_life_us = NonZeroU64::new(1000).unwrap();
        let shape = Shape { pages: PAGES, page_tokens: 4, pages_max: PAGES, half_life_us, order };
        let mut cache = PrefixCache::new(shape);
        let mut free: Vec<u32> = (0..PAGES).collect();
        let (mut state, mut found_pages, mut evicted, mut dropped) = (7u64, 0, 0, 0);
        let before = ALLOCATIONS.with(Cell::get);
        for now_us in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let roll = (state >> 33) as u32;
            let domain = Domain { generation: u64::from(roll % 12), tenant: u64::from(roll / 12 % 2) };
            let mut tokens = [0; 9];
            for (at, token) in tokens.iter_mut().enumerate() {
                *token = (state >> (20 + at / 2)) as u32 & 1;
            }
            let found = cache.find(domain, &tokens, 8);
            found_pages += found.pages;
            let mut held = found.node;
            if let Some(node) = held {
                cache.hold(node).unwrap();
                cache.touch_path(now_us, node).unwrap();
                assert_eq!(cache.path(node).unwrap().count() as u32, found.pages);
            }
            if let Some(source) = found.source {
                cache.touch(now_us, source.node).unwrap();
            }
            for chunk in tokens.chunks(4).skip(found.pages as usize) {
                let page = free.pop().unwrap_or_else(|| {
                    evicted += 1;
                    cache.evict(cache.next_evicted(1.0).unwrap().node).unwrap()
                });
                let parent = held.map_or(Parent::Root(domain), Parent::Page);
                let node = match cache.insert(now_us, parent, chunk, page).unwrap() {
                    Insertion::New { node, outgrown } => {
                        free.extend(outgrown);
                        node
                    }
                    Insertion::Exists { node } => {
                        free.push(page);
                        node
                    }
                };
                cache.hold(node).unwrap();
                if let Some(held) = held.replace(node) {
                    cache.release(now_us, held, |page| free.push(page)).unwrap();
                }
            }
            if roll.is_multiple_of(97) {
                cache.drop_generation(domain.generation, |page| {
                    dropped += 1;
                    free.push(page);
                });
            }
            if let Some(node) = held {
                cache.release(now_us, node, |page| free.push(page)).unwrap();
            }
        }
        let allocated = ALLOCATIONS.with(Cell::get) - before;
        assert!(found_pages > 1000 && evicted > 1000 && dropped > 100, "{found_pages} {evicted} {dropped}");
        assert_eq!(allocated, 0, "allocations");
        assert_eq!(free.len() as u32 + cache.pages(), PAGES);
        cache.check().unwrap();
    }
}
