//! The evictable pages, the one to go first on top. Every change is O(log n) and allocates nothing.

/// Not in the heap.
const OUT: u32 = u32::MAX;

/// A binary heap that knows where each element is.
#[derive(Clone, Debug)]
pub(super) struct Heap<K> {
    entries: Vec<(K, u32)>,
    /// Index of each element's entry, or [`OUT`].
    position: Vec<u32>,
}

impl<K: Ord + Copy + std::fmt::Debug> Heap<K> {
    /// Room for the elements 0 to `count`.
    pub fn new(count: u32) -> Self {
        Self { entries: Vec::with_capacity(count as usize), position: vec![OUT; count as usize] }
    }

    /// The element with the smallest key.
    pub fn first(&self) -> Option<u32> {
        self.entries.first().map(|entry| entry.1)
    }

    /// The key of an element that is in the heap.
    pub fn key(&self, element: u32) -> Option<K> {
        let position = *self.position.get(element as usize)?;
        self.entries.get(position as usize).map(|entry| entry.0)
    }

    /// Puts an element in, or gives it another key.
    pub fn put(&mut self, element: u32, key: K) {
        match self.position[element as usize] {
            OUT => {
                self.entries.push((key, element));
                self.rise(self.entries.len() - 1);
            }
            position => {
                self.entries[position as usize].0 = key;
                self.settle(position as usize);
            }
        }
    }

    /// Takes an element out, if it is in.
    pub fn remove(&mut self, element: u32) {
        let position = std::mem::replace(&mut self.position[element as usize], OUT);
        if position != OUT {
            self.entries.swap_remove(position as usize);
            if (position as usize) < self.entries.len() {
                self.settle(position as usize);
            }
        }
    }

    /// Moves an entry up or down to where it belongs.
    fn settle(&mut self, position: usize) {
        let risen = self.rise(position);
        self.sink(risen);
    }

    fn rise(&mut self, mut position: usize) -> usize {
        while position > 0 && self.entries[position].0 < self.entries[(position - 1) / 2].0 {
            self.swap(position, (position - 1) / 2);
            position = (position - 1) / 2;
        }
        self.position[self.entries[position].1 as usize] = position as u32;
        position
    }

    fn sink(&mut self, mut position: usize) {
        loop {
            let (left, right) = (2 * position + 1, 2 * position + 2);
            let mut least = position;
            for child in [left, right] {
                if child < self.entries.len() && self.entries[child].0 < self.entries[least].0 {
                    least = child;
                }
            }
            if least == position {
                return;
            }
            self.swap(position, least);
            position = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.entries.swap(one, other);
        for position in [one, other] {
            self.position[self.entries[position].1 as usize] = position as u32;
        }
    }

    /// Compares order, entries and positions.
    pub fn check(&self) -> Result<(), String> {
        for (position, (key, element)) in self.entries.iter().enumerate() {
            if self.position.get(*element as usize) != Some(&(position as u32)) {
                return Err(format!("heap: element {element} isn't known to be at {position}"));
            }
            if position > 0 && *key < self.entries[(position - 1) / 2].0 {
                return Err(format!("heap: element {element} is below a larger key, its own is {key:?}"));
            }
        }
        let placed = self.position.iter().filter(|&&position| position != OUT).count();
        if placed != self.entries.len() {
            return Err(format!("heap: {placed} elements are placed, {} in it", self.entries.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed, and a plain list beside the heap.
    #[test]
    fn seeded_changes_match_a_naive_list() {
        let (mut heap, mut list, mut state) = (Heap::new(12), [None::<u32>; 12], 3u64);
        for round in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (element, key) = ((state >> 33) as u32 % 12, (state >> 40) as u32 % 1000 * 12);
            if (state >> 60) % 3 == 0 {
                heap.remove(element);
                list[element as usize] = None;
            } else {
                // keys differ, as those of the cache do
                heap.put(element, key + element);
                list[element as usize] = Some(key + element);
            }
            heap.check().unwrap();
            let least = (0..12u32)
                .filter(|&each| list[each as usize].is_some())
                .min_by_key(|&each| list[each as usize]);
            assert_eq!(heap.first(), least, "round {round}");
            assert_eq!(heap.key(element), list[element as usize]);
        }
    }
}
