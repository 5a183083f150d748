//! Indexed binary heaps over small numbers. An element is in at most one heap of a [`Heaps`]; every move is O(log n) and
//! allocates nothing once [`Heaps::reserve`] has made room.

use crate::list::NIL;

/// Least first; the second number breaks ties.
pub(crate) type Key = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Spot {
    heap: u32,
    index: u32,
    key: Key,
}

const NOWHERE: Spot = Spot { heap: NIL, index: 0, key: (0, 0) };

/// Some heaps, and where in which of them each element is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heaps {
    heaps: Vec<Vec<u32>>,
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
        self.heaps.get(heap as usize)?.first().copied()
    }

    /// The heap that an element is in.
    pub fn heap_of(&self, element: u32) -> Option<u32> {
        self.spots.get(element as usize).map(|spot| spot.heap).filter(|&heap| heap != NIL)
    }

    /// The key that an element was put in with last.
    pub fn key(&self, element: u32) -> Key {
        self.spots.get(element as usize).map_or((0, 0), |spot| spot.key)
    }

    /// Elements in a heap.
    pub fn length(&self, heap: u32) -> u32 {
        self.heaps.get(heap as usize).map_or(0, |heap| heap.len() as u32)
    }

    /// The elements of a heap, in no order that means anything.
    pub fn iter(&self, heap: u32) -> impl Iterator<Item = u32> + '_ {
        self.heaps.get(heap as usize).into_iter().flatten().copied()
    }

    /// Puts an element into a heap with a key, out of the one that it was in.
    pub fn put(&mut self, heap: u32, element: u32, key: Key) {
        if self.heap_of(element) == Some(heap) {
            let spot = &mut self.spots[element as usize];
            let up = key < spot.key;
            spot.key = key;
            let index = spot.index;
            if up {
                self.rise(heap, index);
            } else {
                self.sink(heap, index);
            }
            return;
        }
        self.remove(element);
        let index = self.heaps[heap as usize].len() as u32;
        self.heaps[heap as usize].push(element);
        self.spots[element as usize] = Spot { heap, index, key };
        self.rise(heap, index);
    }

    /// Takes an element out of the heap that it is in.
    pub fn remove(&mut self, element: u32) {
        let Some(heap) = self.heap_of(element) else { return };
        let index = self.spots[element as usize].index;
        self.spots[element as usize] = NOWHERE;
        let elements = &mut self.heaps[heap as usize];
        let Some(last) = elements.pop() else { return };
        if last == element {
            return;
        }
        elements[index as usize] = last;
        self.spots[last as usize].index = index;
        self.rise(heap, index);
        self.sink(heap, self.spots[last as usize].index);
    }

    fn less(&self, one: u32, two: u32) -> bool {
        (self.spots[one as usize].key, one) < (self.spots[two as usize].key, two)
    }

    fn swap(&mut self, heap: u32, one: u32, two: u32) {
        let elements = &mut self.heaps[heap as usize];
        elements.swap(one as usize, two as usize);
        let (first, second) = (elements[one as usize], elements[two as usize]);
        self.spots[first as usize].index = one;
        self.spots[second as usize].index = two;
    }

    fn rise(&mut self, heap: u32, mut index: u32) {
        while index > 0 {
            let above = (index - 1) / 2;
            let elements = &self.heaps[heap as usize];
            if !self.less(elements[index as usize], elements[above as usize]) {
                return;
            }
            self.swap(heap, index, above);
            index = above;
        }
    }

    fn sink(&mut self, heap: u32, mut index: u32) {
        loop {
            let elements = &self.heaps[heap as usize];
            let mut least = index;
            for below in [2 * index + 1, 2 * index + 2] {
                if elements.get(below as usize).is_some_and(|&one| self.less(one, elements[least as usize])) {
                    least = below;
                }
            }
            if least == index {
                return;
            }
            self.swap(heap, index, least);
            index = least;
        }
    }

    /// Compares heaps and spots, and each element's key with those below it.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let mut held = 0;
        for (heap, elements) in self.heaps.iter().enumerate() {
            for (index, &element) in elements.iter().enumerate() {
                let spot = self.spots[element as usize];
                if (spot.heap, spot.index) != (heap as u32, index as u32) {
                    return Err(format!("{name}: element {element} at {heap}/{index} has {spot:?}"));
                }
                if index > 0 && self.less(element, elements[(index - 1) / 2]) {
                    return Err(format!("{name}: element {element} lies below a larger one"));
                }
            }
            held += elements.len();
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
