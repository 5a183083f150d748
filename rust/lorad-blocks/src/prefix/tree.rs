//! Ordered sets over small numbers: searched, extended and cut in O(log n), without an allocation.
//!
//! All sets share one table of links, an element is in at most one set. The order comes from the caller as a comparison.
//! Each set is a treap: a search tree by that order and a heap by a priority, which is a fixed scramble of the element's
//! number. The scramble only shapes the tree; what a search finds depends on the set alone.

use std::cmp::Ordering;

/// No element; the top of an empty set.
pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    left: u32,
    right: u32,
}

const UNLINKED: Link = Link { left: NIL, right: NIL };

/// Where a link is written.
#[derive(Clone, Copy)]
enum Spot {
    Top,
    Left(u32),
    Right(u32),
}

/// The neighbours of what was searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Near {
    /// The last element below it.
    pub below: Option<u32>,
    /// The one equal to it.
    pub exact: Option<u32>,
    /// The first element above it.
    pub above: Option<u32>,
}

/// The links of all sets. A set is named by its top, which the caller keeps.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    links: Vec<Link>,
}

impl Tree {
    /// Links for the elements 0 to `count`.
    pub fn new(count: u32) -> Self {
        Self { links: vec![UNLINKED; count as usize] }
    }

    /// Searches; `compare` says how what is searched compares with an element. It's asked from the top down. Of the elements
    /// of any range that what is searched lies in or beside, the one with the highest priority is asked first: which one
    /// that is depends on the elements' numbers, not on their order.
    pub fn near(&self, top: u32, mut compare: impl FnMut(u32) -> Ordering) -> Near {
        let (mut near, mut at) = (Near::default(), top);
        while at != NIL {
            let link = self.links[at as usize];
            match compare(at) {
                Ordering::Less => {
                    near.above = Some(at);
                    at = link.left;
                }
                Ordering::Greater => {
                    near.below = Some(at);
                    at = link.right;
                }
                Ordering::Equal => {
                    near.exact = Some(at);
                    near.below = self.outermost(link.left, |link| link.right).or(near.below);
                    near.above = self.outermost(link.right, |link| link.left).or(near.above);
                    return near;
                }
            }
        }
        near
    }

    fn outermost(&self, top: u32, next: impl Fn(Link) -> u32) -> Option<u32> {
        let (mut found, mut at) = (None, top);
        while at != NIL {
            found = Some(at);
            at = next(self.links[at as usize]);
        }
        found
    }

    /// Puts an element into a set, which has none equal to it, and returns the new top. `compare` says how the new
    /// element compares with another.
    #[must_use]
    pub fn insert(&mut self, mut top: u32, element: u32, compare: impl Fn(u32) -> Ordering) -> u32 {
        let (mut spot, mut at) = (Spot::Top, top);
        while at != NIL && priority(at) > priority(element) {
            spot = if compare(at) == Ordering::Less { Spot::Left(at) } else { Spot::Right(at) };
            at = self.read(top, spot);
        }
        self.write(&mut top, spot, element);
        // what hung there is cut in two: below goes to the left of the element, above to its right
        let (mut below, mut above) = (Spot::Left(element), Spot::Right(element));
        while at != NIL {
            if compare(at) == Ordering::Less {
                self.write(&mut top, above, at);
                above = Spot::Left(at);
                at = self.read(top, above);
            } else {
                self.write(&mut top, below, at);
                below = Spot::Right(at);
                at = self.read(top, below);
            }
        }
        self.write(&mut top, below, NIL);
        self.write(&mut top, above, NIL);
        top
    }

    /// Takes an element out of the set that it is in and returns the new top. `compare` says how the element compares
    /// with another.
    #[must_use]
    pub fn remove(&mut self, mut top: u32, element: u32, compare: impl Fn(u32) -> Ordering) -> u32 {
        let (mut spot, mut at) = (Spot::Top, top);
        while at != element {
            if at == NIL {
                return top;
            }
            spot = if compare(at) == Ordering::Less { Spot::Left(at) } else { Spot::Right(at) };
            at = self.read(top, spot);
        }
        let Link { mut left, mut right } = std::mem::replace(&mut self.links[element as usize], UNLINKED);
        while left != NIL && right != NIL {
            if priority(left) > priority(right) {
                self.write(&mut top, spot, left);
                spot = Spot::Right(left);
                left = self.read(top, spot);
            } else {
                self.write(&mut top, spot, right);
                spot = Spot::Left(right);
                right = self.read(top, spot);
            }
        }
        self.write(&mut top, spot, if left == NIL { right } else { left });
        top
    }

    fn read(&self, top: u32, spot: Spot) -> u32 {
        match spot {
            Spot::Top => top,
            Spot::Left(element) => self.links[element as usize].left,
            Spot::Right(element) => self.links[element as usize].right,
        }
    }

    fn write(&mut self, top: &mut u32, spot: Spot, element: u32) {
        match spot {
            Spot::Top => *top = element,
            Spot::Left(parent) => self.links[parent as usize].left = element,
            Spot::Right(parent) => self.links[parent as usize].right = element,
        }
    }

    /// The elements of a set in order, or what is wrong with its links. Takes memory: for checks and dumps.
    pub fn in_order(&self, top: u32) -> Result<Vec<u32>, String> {
        let (mut found, mut open, mut at) = (Vec::new(), Vec::new(), top);
        loop {
            while at != NIL {
                let Some(link) = self.links.get(at as usize) else {
                    return Err(format!("tree: no element {at}"));
                };
                if open.len() + found.len() >= self.links.len() {
                    return Err(format!("tree: the set of {top} goes in a circle"));
                }
                open.push(at);
                at = link.left;
            }
            let Some(element) = open.pop() else { return Ok(found) };
            let Link { left, right } = self.links[element as usize];
            if [left, right].iter().any(|&child| child != NIL && priority(child) >= priority(element)) {
                return Err(format!("tree: what hangs from element {element} belongs above it"));
            }
            found.push(element);
            at = right;
        }
    }
}

/// A scramble of 32 bits that gives no number twice (the last steps of MurmurHash3).
fn priority(element: u32) -> u32 {
    let mut bits = element;
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Elements ordered by a value of their own.
    fn by<'a>(values: &'a [u32], element: u32) -> impl Fn(u32) -> Ordering + 'a {
        move |other| values[element as usize].cmp(&values[other as usize])
    }

    #[test]
    fn a_tree_of_sorted_values_stays_low() {
        let values: Vec<u32> = (0..4096).collect();
        let (mut tree, mut top) = (Tree::new(4096), NIL);
        for element in 0..4096 {
            top = tree.insert(top, element, by(&values, element));
        }
        assert_eq!(tree.in_order(top).unwrap(), values);
        let deepest = (0..4096u32)
            .map(|wanted| {
                let steps = std::cell::Cell::new(0);
                let _ = tree.near(top, |other| {
                    steps.set(steps.get() + 1);
                    wanted.cmp(&other)
                });
                steps.get()
            })
            .max();
        assert!(deepest < Some(40), "{deepest:?}");
    }

    /// Two sets in one table, a seed, a naive set beside each.
    #[test]
    fn seeded_changes_match_a_naive_set() {
        let values: Vec<u32> = (0..24).map(|element| (element * 7) % 24 * 2).collect();
        let (mut tree, mut tops, mut sets) = (Tree::new(24), [NIL; 2], [BTreeSet::new(), BTreeSet::new()]);
        let mut state = 5u64;
        for round in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (element, which) = ((state >> 33) as u32 % 24, (state >> 60) as usize % 2);
            let entry = (values[element as usize], element);
            if sets[1 - which].contains(&entry) {
                continue;
            } else if sets[which].remove(&entry) {
                tops[which] = tree.remove(tops[which], element, by(&values, element));
            } else {
                sets[which].insert(entry);
                tops[which] = tree.insert(tops[which], element, by(&values, element));
            }
            let elements: Vec<u32> = sets[which].iter().map(|entry| entry.1).collect();
            assert_eq!(tree.in_order(tops[which]).unwrap(), elements, "round {round}");
            let wanted = (state >> 40) as u32 % 50;
            let near = tree.near(tops[which], |other| wanted.cmp(&values[other as usize]));
            let set = &sets[which];
            assert_eq!(near.below, set.range(..(wanted, 0)).next_back().map(|entry| entry.1));
            assert_eq!(near.exact, set.iter().find(|entry| entry.0 == wanted).map(|entry| entry.1));
            assert_eq!(near.above, set.range((wanted + 1, 0)..).next().map(|entry| entry.1));
        }
    }
}
