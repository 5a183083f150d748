//! Indexed binary heaps over small numbers. An element is in at most one heap of a [`Heaps`]; every move is O(log n) and
//! allocates nothing once [`Heaps::reserve`] has made room.

use crate::list::NIL;

/// Least first; the second number breaks ties.
pub(crate) type Key = (u64, u64);

/// Where an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    heap: u32,
    index: u32,
}

const NOWHERE: Spot = Spot { heap: NIL, index: 0 };

/// An element in a heap, beside its key so that a comparison looks nowhere else.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The key's two numbers in one, which is compared without a branch.
    key: u128,
    element: u32,
}

impl Node {
    fn new(key: Key, element: u32) -> Self {
        Self { key: u128::from(key.0) << 64 | u128::from(key.1), element }
    }

    /// Of equal keys the smaller number comes first.
    fn before(&self, other: &Self) -> bool {
        (self.key < other.key) | ((self.key == other.key) & (self.element < other.element))
    }
}

/// Some heaps, and where in which of them each element is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heaps {
    heaps: Vec<Vec<Node>>,
    spots: Vec<Spot>,
}

impl Heaps {
    /// `count` empty heaps.
    pub fn new(count: usize) -> Self {
        Self { heaps: vec![Vec::new(); count], spots: Vec::new() }
    }

    /// Makes room for the heaps 0 to `count`.
    pub fn grow_heaps(&mut self, count: usize) {
        if count > self.heaps.len() {
            self.heaps.resize_with(count, Vec::new);
        }
    }

    /// Makes room for the elements 0 to `count`.
    pub fn grow_elements(&mut self, count: usize) {
        if count > self.spots.len() {
            self.spots.resize(count, NOWHERE);
        }
    }

    /// Makes room for `count` elements in one heap.
    pub fn reserve(&mut self, heap: u32, count: usize) {
        let heap = &mut self.heaps[heap as usize];
        if count > heap.capacity() {
            heap.reserve(count.next_power_of_two() - heap.len());
        }
    }

    /// The least element of a heap.
    pub fn front(&self, heap: u32) -> Option<u32> {
        self.heaps.get(heap as usize)?.first().map(|node| node.element)
    }

    /// The heap that an element is in.
    pub fn heap_of(&self, element: u32) -> Option<u32> {
        self.spots.get(element as usize).map(|spot| spot.heap).filter(|&heap| heap != NIL)
    }

    /// The key that an element was put in with last.
    pub fn key(&self, element: u32) -> Key {
        let spot = self.spots.get(element as usize).filter(|spot| spot.heap != NIL);
        spot.map_or((0, 0), |spot| {
            let key = self.heaps[spot.heap as usize][spot.index as usize].key;
            ((key >> 64) as u64, key as u64)
        })
    }

    /// Elements in a heap.
    pub fn length(&self, heap: u32) -> u32 {
        self.heaps.get(heap as usize).map_or(0, |heap| heap.len() as u32)
    }

    /// The elements of a heap, in no order that means anything.
    pub fn iter(&self, heap: u32) -> impl Iterator<Item = u32> + '_ {
        self.heaps.get(heap as usize).into_iter().flatten().map(|node| node.element)
    }

    /// Puts an element into a heap with a key, out of the one that it was in.
    pub fn put(&mut self, heap: u32, element: u32, key: Key) {
        if self.heap_of(element) == Some(heap) {
            self.fill(heap, self.spots[element as usize].index, Node::new(key, element));
            return;
        }
        self.remove(element);
        let nodes = &mut self.heaps[heap as usize];
        let index = nodes.len() as u32;
        nodes.push(Node::new(key, element));
        self.fill(heap, index, Node::new(key, element));
    }

    /// Takes an element out of the heap that it is in.
    pub fn remove(&mut self, element: u32) {
        let Some(heap) = self.heap_of(element) else { return };
        let index = self.spots[element as usize].index;
        self.spots[element as usize] = NOWHERE;
        let Some(last) = self.heaps[heap as usize].pop() else { return };
        if last.element != element {
            self.fill(heap, index, last);
        }
    }

    /// Puts a node where the one at `index` was: up or down from there, the others by one place into the hole.
    fn fill(&mut self, heap: u32, index: u32, node: Node) {
        let (nodes, spots) = (&mut self.heaps[heap as usize][..], &mut self.spots[..]);
        let mut hole = index as usize;
        while hole > 0 && node.before(&nodes[(hole - 1) / 2]) {
            nodes[hole] = nodes[(hole - 1) / 2];
            spots[nodes[hole].element as usize].index = hole as u32;
            hole = (hole - 1) / 2;
        }
        loop {
            let below = 2 * hole + 1;
            let least = match nodes.get(below..) {
                Some([left, right, ..]) => below + usize::from(right.before(left)),
                Some([_]) => below,
                Some([]) | None => break,
            };
            if node.before(&nodes[least]) {
                break;
            }
            nodes[hole] = nodes[least];
            spots[nodes[hole].element as usize].index = hole as u32;
            hole = least;
        }
        nodes[hole] = node;
        spots[node.element as usize] = Spot { heap, index: hole as u32 };
    }

    /// Compares heaps and spots, and each element's key with those below it.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let mut held = 0;
        for (heap, nodes) in self.heaps.iter().enumerate() {
            for (index, &Node { element, .. }) in nodes.iter().enumerate() {
                let spot = self.spots[element as usize];
                if (spot.heap, spot.index) != (heap as u32, index as u32) {
                    return Err(format!("{name}: element {element} at {heap}/{index} has {spot:?}"));
                }
                if index > 0 && nodes[index].before(&nodes[(index - 1) / 2]) {
                    return Err(format!("{name}: element {element} lies below a larger one"));
                }
            }
            held += nodes.len();
        }
        let claimed = self.spots.iter().filter(|spot| spot.heap != NIL).count();
        if claimed != held {
            return Err(format!("{name}: {claimed} elements name a heap, {held} are in one"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_moves_match_a_sorted_list() {
        let (mut heaps, mut state) = (Heaps::new(2), 3u64);
        heaps.grow_elements(12);
        let mut model: Vec<Option<(u32, Key)>> = vec![None; 12];
        for _ in 0..50_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let roll = state >> 20;
            let (element, heap) = ((roll % 12) as u32, (roll / 12 % 2) as u32);
            if roll / 24 % 4 == 0 {
                heaps.remove(element);
                model[element as usize] = None;
            } else {
                let key = (roll / 96 % 9, roll / 1000 % 3);
                heaps.put(heap, element, key);
                model[element as usize] = Some((heap, key));
            }
            heaps.check("heaps").unwrap();
            for heap in 0..2 {
                let all = (0..12u32)
                    .filter_map(|element| model[element as usize].map(|(at, key)| (at, key, element)));
                let least = all.filter(|(at, ..)| *at == heap).map(|(_, key, element)| (key, element)).min();
                assert_eq!(heaps.front(heap), least.map(|(_, element)| element));
            }
        }
    }
}
