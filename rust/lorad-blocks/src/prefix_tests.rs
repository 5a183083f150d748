use super::*;

const BASE: Domain = Domain { generation: 0, tenant: 1 };
const ADAPTER: Domain = Domain { generation: 5, tenant: 1 };
const HALF_LIFE_US: u64 = 1000;

fn cache(order: Order) -> PrefixCache {
    let half_life_us = NonZeroU64::new(HALF_LIFE_US).unwrap();
    PrefixCache::new(Shape { pages: 12, page_tokens: 4, pages_max: 12, half_life_us, order })
}

/// Puts a page in and returns its node.
fn put(cache: &mut PrefixCache, now_us: u64, parent: Parent, tokens: &[u32], page: PageId) -> NodeId {
    let Insertion::New { node, .. } = cache.insert(now_us, parent, tokens, page).unwrap() else {
        panic!("{tokens:?} exist\n{}", cache.dump())
    };
    cache.check().unwrap();
    node
}

/// Releases a hold and returns the pages that came back.
fn release(cache: &mut PrefixCache, now_us: u64, node: NodeId) -> Vec<PageId> {
    let mut pages = Vec::new();
    cache.release(now_us, node, |page| pages.push(page)).unwrap();
    cache.check().unwrap();
    pages
}

fn drop_generation(cache: &mut PrefixCache, generation: u64) -> (u32, Vec<PageId>) {
    let mut pages = Vec::new();
    let kept = cache.drop_generation(generation, |page| pages.push(page));
    cache.check().unwrap();
    (kept, pages)
}

/// Evicts until nothing is left to evict.
fn evict_all(cache: &mut PrefixCache) -> Vec<PageId> {
    let mut pages = Vec::new();
    while let Some(victim) = cache.next_evicted(1.0) {
        pages.push(cache.evict(victim.node).unwrap());
        cache.check().unwrap();
    }
    pages
}

/// Full pages found, and (page, tokens) of the source.
fn found(
    cache: &PrefixCache,
    domain: Domain,
    tokens: &[u32],
    limit: usize,
) -> (Vec<PageId>, Option<(PageId, u32)>) {
    let found = cache.find(domain, tokens, limit);
    let mut pages: Vec<PageId> = found
        .node
        .map(|node| cache.path(node).unwrap().map(|node| node.page()).collect())
        .unwrap_or_default();
    pages.reverse();
    assert_eq!(pages.len() as u32, found.pages);
    (pages, found.source.map(|source| (source.node.page(), source.tokens)))
}

#[test]
fn a_shared_beginning_is_found_and_a_divergence_inside_a_page_is_a_source() {
    let mut cache = cache(Order::LeastWorth);
    let system = put(&mut cache, 0, Parent::Root(BASE), &[1, 2, 3, 4], 7);
    let question = put(&mut cache, 0, Parent::Page(system), &[5, 6, 7, 8], 2);
    put(&mut cache, 0, Parent::Page(question), &[9, 9], 6);

    let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9];
    assert_eq!(found(&cache, BASE, &tokens, 10), (vec![7, 2], Some((6, 2))));
    // the very same prompt again: its last token is computed, so its last page is a source
    assert_eq!(found(&cache, BASE, &tokens[..8], 7), (vec![7], Some((2, 3))));
    // another question
    assert_eq!(found(&cache, BASE, &[1, 2, 3, 4, 5, 6, 0, 0, 0], 8), (vec![7], Some((2, 2))));
    assert_eq!(found(&cache, BASE, &[1, 2, 3, 4, 0], 4), (vec![7], None));
    assert_eq!(found(&cache, BASE, &[1, 0], 1), (vec![], Some((7, 1))));
    assert_eq!(found(&cache, BASE, &[2, 2, 3, 4, 5], 5), (vec![], None));
    assert_eq!(found(&cache, BASE, &tokens, 0), (vec![], None));
    assert_eq!(found(&cache, BASE, &tokens, usize::MAX), (vec![7, 2], Some((6, 2))));
    assert_eq!(found(&cache, BASE, &[], 4), (vec![], None));
}

#[test]
fn of_two_sources_the_one_that_agrees_longer_is_named() {
    let mut cache = cache(Order::LeastWorth);
    put(&mut cache, 0, Parent::Root(BASE), &[1, 2, 3, 4], 0);
    put(&mut cache, 0, Parent::Root(BASE), &[1, 2, 9], 1);
    put(&mut cache, 0, Parent::Root(BASE), &[1, 5], 2);
    assert_eq!(found(&cache, BASE, &[1, 2, 9, 9, 9], 4), (vec![], Some((1, 3))));
    assert_eq!(found(&cache, BASE, &[1, 2, 3, 9, 9], 4), (vec![], Some((0, 3))));
    assert_eq!(found(&cache, BASE, &[1, 5, 3, 9, 9], 4), (vec![], Some((2, 2))));
    // all agree in one token: always the same of them
    for other in [0, 4, 9] {
        assert_eq!(found(&cache, BASE, &[1, other, 4, 4], 4), (vec![], Some((1, 1))));
    }
}

/// Tokens are compared, and that is all: with other ids, equal where these are equal, everything comes out the same.
#[test]
fn which_ids_tokens_have_makes_no_difference() {
    let (mut one, mut two) = (cache(Order::LeastWorth), cache(Order::LeastWorth));
    let mirrored = |tokens: &[u32]| tokens.iter().map(|token| 100 - token).collect::<Vec<_>>();
    let (mut state, mut nodes, mut free) = (7u64, Vec::new(), (0..one.shape().pages).collect::<Vec<_>>());
    let mut below = |limit: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % limit
    };
    for now_us in 0..20_000 {
        if below(500) == 0 {
            let mut gone = [Vec::new(), Vec::new()];
            one.drop_generation(0, |page| gone[0].push(page));
            two.drop_generation(0, |page| gone[1].push(page));
            assert_eq!(gone[0], gone[1], "in the same order");
            free.extend(&gone[0]);
        }
        let tokens: Vec<u32> = (0..1 + below(9)).map(|_| below(3)).collect();
        match below(4) {
            0 | 1 => {
                let Some(page) = free.pop() else { continue };
                let parent = match nodes.is_empty() || below(3) == 0 {
                    true => Parent::Root(BASE),
                    false => Parent::Page(nodes[below(nodes.len() as u32) as usize]),
                };
                let tokens = &tokens[..tokens.len().min(4)];
                let made = one.insert(now_us, parent, tokens, page);
                assert_eq!(made, two.insert(now_us, parent, &mirrored(tokens), page));
                match made {
                    Ok(Insertion::New { node, outgrown }) => {
                        nodes.push(node);
                        free.extend(outgrown);
                    }
                    Ok(Insertion::Exists { .. }) | Err(_) => free.push(page),
                }
            }
            2 => {
                let found = one.find(BASE, &tokens, tokens.len());
                assert_eq!(found, two.find(BASE, &mirrored(&tokens), tokens.len()));
                if let Some(source) = found.source {
                    one.touch(now_us, source.node).unwrap();
                    two.touch(now_us, source.node).unwrap();
                }
            }
            _ => {
                let victim = one.next_evicted(1.0).map(|victim| victim.node);
                assert_eq!(victim, two.next_evicted(1.0).map(|victim| victim.node));
                if let (Some(node), true) = (victim, free.len() < 2) {
                    free.push(one.evict(node).unwrap());
                    two.evict(node).unwrap();
                }
            }
        }
    }
    assert!(nodes.len() > 1000, "{} pages were put in", nodes.len());
}

#[test]
fn tenants_share_nothing_nor_do_base_and_adapter() {
    let mut cache = cache(Order::LeastWorth);
    let tokens = [1, 2, 3, 4];
    let domains = [BASE, ADAPTER, Domain { tenant: 2, ..BASE }, Domain { tenant: 5, generation: 1 }];
    for (page, domain) in domains.into_iter().enumerate() {
        assert_eq!(found(&cache, domain, &tokens, 4), (vec![], None), "{domain:?}");
        put(&mut cache, 0, Parent::Root(domain), &tokens, page as PageId);
    }
    for (page, domain) in domains.into_iter().enumerate() {
        assert_eq!(found(&cache, domain, &tokens, 4), (vec![page as PageId], None), "{domain:?}");
    }
    assert_eq!(drop_generation(&mut cache, 5), (0, vec![1]));
    assert_eq!(found(&cache, ADAPTER, &tokens, 4), (vec![], None));
    assert_eq!(cache.pages(), 3);
}

#[test]
fn a_longer_page_takes_the_place_of_a_shorter_one() {
    let mut cache = cache(Order::LeastWorth);
    let parent = Parent::Page(put(&mut cache, 0, Parent::Root(BASE), &[1, 2, 3, 4], 0));
    let turn = put(&mut cache, 0, parent, &[5], 1);
    // the next turn of the conversation copied it and wrote on; nobody holds it
    let Insertion::New { node: longer, outgrown } = cache.insert(0, parent, &[5, 6], 2).unwrap() else {
        panic!("new")
    };
    assert_eq!(outgrown, Some(1));
    assert_eq!(cache.hold(turn), Err(PrefixError::Stale { node: turn }));
    assert_eq!(
        cache.next_evicted(1.0).map(|victim| victim.worth.at(cache.epoch())),
        Some(4.0),
        "2 uses, 2 tokens"
    );
    // what it begins with isn't needed any more
    assert_eq!(cache.insert(0, parent, &[5], 1), Ok(Insertion::Exists { node: longer }));
    assert_eq!(cache.insert(0, parent, &[5, 6], 1), Ok(Insertion::Exists { node: longer }));
    // another end stays beside it
    put(&mut cache, 0, parent, &[5, 7], 1);
    // somebody copies from it while the page fills up
    cache.hold(longer).unwrap();
    let full = put(&mut cache, 0, parent, &[5, 6, 7, 8], 3);
    assert_eq!(found(&cache, BASE, &[1, 2, 3, 4, 5, 6, 9], 6), (vec![0], Some((3, 2))));
    assert_eq!(cache.hold(longer), Ok(()), "a fork may hold it too");
    assert_eq!(release(&mut cache, 0, longer), []);
    assert_eq!(release(&mut cache, 0, longer), [2]);
    put(&mut cache, 0, Parent::Page(full), &[1], 2);
    assert_eq!(cache.pages(), 4);
}

#[test]
fn a_hold_protects_what_is_above() {
    let mut cache = cache(Order::LeastRecent);
    let a = put(&mut cache, 0, Parent::Root(BASE), &[1, 1, 1, 1], 0);
    let b = put(&mut cache, 0, Parent::Page(a), &[2, 2, 2, 2], 1);
    let c = put(&mut cache, 0, Parent::Page(b), &[3, 3, 3, 3], 2);
    put(&mut cache, 0, Parent::Page(c), &[4, 4, 4], 3);
    put(&mut cache, 0, Parent::Page(a), &[5], 4);
    assert_eq!(cache.evictable_pages(), 5);
    cache.hold(b).unwrap();
    cache.hold(b).unwrap();
    cache.check().unwrap();
    assert_eq!((cache.evictable_pages(), cache.holders(b)), (3, Ok(2)));
    assert_eq!(cache.evict(a), Err(PrefixError::NotEvictable { node: a, holders: 0, children: 2 }));
    assert_eq!(evict_all(&mut cache), [3, 2, 4]);
    assert_eq!(cache.evict(b), Err(PrefixError::NotEvictable { node: b, holders: 2, children: 0 }));
    assert_eq!(release(&mut cache, 0, b), []);
    assert_eq!(cache.evictable_pages(), 0);
    assert_eq!(release(&mut cache, 0, b), []);
    assert_eq!(cache.evictable_pages(), 2);
    assert_eq!(cache.release(0, b, |_| {}), Err(PrefixError::NotHeld { node: b }));
    assert_eq!(evict_all(&mut cache), [1, 0]);
    assert_eq!((cache.pages(), cache.dump().lines().count()), (0, 1));
}

#[test]
fn a_generation_dropped_while_held_goes_page_by_page() {
    let mut cache = cache(Order::LeastWorth);
    let a = put(&mut cache, 0, Parent::Root(ADAPTER), &[1, 1, 1, 1], 0);
    let b = put(&mut cache, 0, Parent::Page(a), &[2, 2, 2, 2], 1);
    let c = put(&mut cache, 0, Parent::Page(b), &[3, 3, 3, 3], 2);
    put(&mut cache, 0, Parent::Page(b), &[4], 3);
    put(&mut cache, 0, Parent::Root(Domain { tenant: 9, ..ADAPTER }), &[1], 4);
    put(&mut cache, 0, Parent::Root(BASE), &[1], 5);
    cache.hold(b).unwrap();
    cache.hold(a).unwrap();

    assert_eq!(drop_generation(&mut cache, 5), (2, vec![3, 2, 4]));
    assert_eq!(found(&cache, ADAPTER, &[1, 1, 1, 1, 2], 5), (vec![], None));
    assert_eq!(cache.insert(0, Parent::Page(b), &[7], 6), Err(PrefixError::Doomed { node: b }));
    assert_eq!(cache.insert(0, Parent::Page(c), &[7], 6), Err(PrefixError::Stale { node: c }));
    assert_eq!(
        cache.path(b).unwrap().map(|node| node.page()).collect::<Vec<_>>(),
        [1, 0],
        "still its holder's"
    );
    assert_eq!(drop_generation(&mut cache, 5), (0, vec![]), "dropping twice is fine");
    // the same adapter is registered again: it begins with nothing, beside what is left of the old one
    let again = put(&mut cache, 0, Parent::Root(ADAPTER), &[1, 1, 1, 1], 2);
    assert_eq!(found(&cache, ADAPTER, &[1, 1, 1, 1], 4), (vec![2], None));
    assert_eq!(evict_all(&mut cache), [5, 2]);
    assert!(cache.tokens(again).is_err());

    assert_eq!(release(&mut cache, 0, a), []);
    assert_eq!(release(&mut cache, 0, b), [1, 0]);
    assert_eq!(cache.pages(), 0);
}

#[test]
fn the_order_of_eviction_is_by_worth_or_by_use() {
    for order in [Order::LeastWorth, Order::LeastRecent] {
        let mut cache = cache(order);
        let popular = put(&mut cache, 0, Parent::Root(BASE), &[1, 1, 1, 1], 0);
        let short = put(&mut cache, 1, Parent::Root(BASE), &[2], 1);
        let deep = put(&mut cache, 2, Parent::Page(popular), &[3, 3, 3, 3], 2);
        for now_us in 3..6 {
            cache.touch_path(now_us, deep).unwrap();
        }
        let recent = put(&mut cache, 6, Parent::Root(BASE), &[4, 4, 4, 4], 3);
        cache.touch(7, short).unwrap();
        cache.check().unwrap();
        let worth = |node: NodeId| {
            cache.nodes[node.page()].heat.at(cache.epoch()) * f64::from(cache.nodes[node.page()].length)
        };
        assert_eq!([popular, short, deep, recent].map(worth), [16.0, 2.0, 16.0, 4.0]);
        let victim = cache.next_evicted(10.0).unwrap();
        match order {
            Order::LeastWorth => {
                assert_eq!((victim.node, victim.used_us, victim.worth.at(cache.epoch())), (short, 7, 20.0));
                // what is above was used whenever what is below was
                assert_eq!(evict_all(&mut cache), [1, 3, 2, 0]);
            }
            Order::LeastRecent => {
                assert_eq!((victim.node, victim.used_us), (deep, 5));
                assert_eq!(evict_all(&mut cache), [2, 0, 3, 1]);
            }
        }
    }
}

#[test]
fn heat_halves_while_nobody_asks() {
    let mut cache = cache(Order::LeastWorth);
    let old = put(&mut cache, 0, Parent::Root(BASE), &[1, 1, 1, 1], 0);
    (0..2).for_each(|_| cache.touch(0, old).unwrap());
    put(&mut cache, 2 * HALF_LIFE_US, Parent::Root(BASE), &[2, 2, 2, 2], 1);
    // 3 uses two half-lives ago are less than one now
    assert_eq!(evict_all(&mut cache), [0, 1]);
}

#[test]
fn a_held_page_was_used_until_it_is_released() {
    let mut cache = cache(Order::LeastRecent);
    let a = put(&mut cache, 0, Parent::Root(BASE), &[1, 1, 1, 1], 0);
    let b = put(&mut cache, 0, Parent::Page(a), &[2, 2, 2, 2], 1);
    cache.hold(b).unwrap();
    put(&mut cache, 5, Parent::Root(BASE), &[3], 2);
    release(&mut cache, 9, b);
    assert_eq!(evict_all(&mut cache), [2, 1, 0]);
}

#[test]
fn a_refused_call_changes_nothing() {
    let half_life_us = NonZeroU64::new(HALF_LIFE_US).unwrap();
    let shape = Shape { pages: 4, page_tokens: 2, pages_max: 3, half_life_us, order: Order::LeastWorth };
    let mut cache = PrefixCache::new(shape);
    let full = put(&mut cache, 0, Parent::Root(BASE), &[1, 1], 0);
    let part = put(&mut cache, 0, Parent::Page(full), &[1], 1);
    let gone = put(&mut cache, 0, Parent::Root(ADAPTER), &[1, 1], 2);
    assert_eq!(cache.evict(gone), Ok(2));
    let other = put(&mut cache, 0, Parent::Root(ADAPTER), &[2, 1], 2);
    let before = format!("{cache:?}");
    let root = Parent::Root(BASE);
    let mut refused =
        |now_us, parent, tokens: &[u32], page| cache.insert(now_us, parent, tokens, page).unwrap_err();
    assert_eq!(refused(9, root, &[7], 3), PrefixError::Full { pages_max: 3 });
    assert_eq!(
        refused(9, Parent::Root(Domain { tenant: 8, ..BASE }), &[7], 3),
        PrefixError::Full { pages_max: 3 }
    );
    assert_eq!(refused(9, root, &[7], 4), PrefixError::NoSuchPage { page: 4, total: 4 });
    assert_eq!(refused(9, root, &[7], 2), PrefixError::PageCached { node: other });
    assert_eq!(refused(9, root, &[], 3), PrefixError::Length { tokens: 0, page_tokens: 2 });
    assert_eq!(refused(9, root, &[1, 1, 1], 3), PrefixError::Length { tokens: 3, page_tokens: 2 });
    assert_eq!(refused(9, Parent::Page(gone), &[7], 3), PrefixError::Stale { node: gone });
    let partial = PrefixError::PartialParent { node: part, tokens: 1, page_tokens: 2 };
    assert_eq!(refused(9, Parent::Page(part), &[7], 3), partial);
    assert!(cache.touch(9, gone).is_err() && cache.touch_path(9, gone).is_err() && cache.hold(gone).is_err());
    assert!(
        cache.release(9, gone, |_| {}).is_err() && cache.evict(gone).is_err() && cache.path(gone).is_err()
    );
    assert_eq!(cache.release(9, part, |_| {}), Err(PrefixError::NotHeld { node: part }));
    assert_eq!(before, format!("{cache:?}"));
    // a longer page needs no place of its own
    let grown = cache.insert(9, Parent::Page(full), &[1, 5], 3).unwrap();
    assert!(matches!(grown, Insertion::New { outgrown: Some(1), .. }));
    cache.check().unwrap();
}

#[test]
fn sizes_of_nothing_cache_nothing() {
    let half_life_us = NonZeroU64::MIN;
    let shape = Shape { pages: 2, page_tokens: 2, pages_max: 2, half_life_us, order: Order::LeastWorth };
    for shape in
        [Shape { pages: 0, ..shape }, Shape { page_tokens: 0, ..shape }, Shape { pages_max: 0, ..shape }]
    {
        let mut cache = PrefixCache::new(shape);
        assert!(cache.insert(u64::MAX, Parent::Root(BASE), &[1], 0).is_err());
        assert_eq!(cache.find(BASE, &[1, 2], 2), Match::default());
        assert_eq!(drop_generation(&mut cache, 0), (0, vec![]));
        assert_eq!(cache.next_evicted(1.0), None);
        cache.check().unwrap();
    }
}

#[test]
fn the_dump_tells_places_and_no_tokens() {
    let mut cache = cache(Order::LeastWorth);
    let a = put(&mut cache, 10, Parent::Root(ADAPTER), &[711, 1, 1, 1], 3);
    let b = put(&mut cache, 20, Parent::Page(a), &[713], 8);
    put(&mut cache, 30, Parent::Page(a), &[712, 5], 2);
    put(&mut cache, 40, Parent::Root(BASE), &[714], 4);
    cache.hold(b).unwrap();
    put(&mut cache, 50, Parent::Page(a), &[713, 9], 5);
    assert_eq!(
        cache.dump(),
        "prefix pages 5 of 12, evictable 3, least worth first: page 4\n\
         generation 0 tenant 1\n\
         page 4 first: column 0 tokens 1 holders 0 heat 1 used 40\n\
         generation 5 tenant 1\n\
         page 3 first: column 0 tokens 4 holders 0 heat 1 used 10\n\
         page 2 after page 3: column 1 tokens 2 holders 0 heat 1 used 30\n\
         page 5 after page 3: column 1 tokens 2 holders 0 heat 2 used 50\n\
         doomed page 8 of generation 5 tenant 1 after page 3: column 1 tokens 1 holders 1 heat 1 used 20\n"
    );
}
