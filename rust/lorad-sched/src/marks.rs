//! A set of small numbers that is filled and emptied in each step, in the order of marking.

/// The numbers that were marked since they were last taken. Marking allocates nothing within the room that was made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    marked: Vec<bool>,
    order: Vec<u32>,
}

impl Marks {
    /// Makes room for the numbers 0 to `count`, `at_once` of them marked at the same time.
    pub fn grow(&mut self, count: usize, at_once: usize) {
        if count > self.marked.len() {
            self.marked.resize(count, false);
        }
        self.order.reserve(at_once.min(count).saturating_sub(self.order.len()));
    }

    /// Marks a number.
    pub fn mark(&mut self, number: u32) {
        if !std::mem::replace(&mut self.marked[number as usize], true) {
            self.order.push(number);
        }
    }

    /// The marked numbers.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().copied()
    }

    /// A marked number, which no longer is.
    pub fn take(&mut self) -> Option<u32> {
        let number = self.order.pop()?;
        self.marked[number as usize] = false;
        Some(number)
    }
}
