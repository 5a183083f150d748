//! The last events, kept for whoever asks after a crash.
//!
//! ```text
//!   slots   | 5th | 6th | 3rd | 4th |      room for 4, the 1st and 2nd are dropped
//!                         ^ next: the oldest, overwritten by the 7th
//! ```

use std::fmt;

use crate::Event;

/// An event, and when it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happened {
    /// The core's time, in microseconds.
    pub now: u64,
    /// The last plan that was made before, or was being made; 0 before the first.
    pub plan: u64,
    /// What happened.
    pub event: Event,
}

/// The last events, as many as there is room for. All memory is taken at the start; a copy has it too.
#[derive(Clone, Debug)]
pub struct Ring {
    slots: Box<[Option<Happened>]>,
    /// The slot that is written next.
    next: usize,
    /// Events ever pushed.
    pushed: u64,
}

impl Ring {
    /// An empty ring with room for `capacity` events. With none it only counts.
    pub fn new(capacity: usize) -> Self {
        Self { slots: vec![None; capacity].into_boxed_slice(), next: 0, pushed: 0 }
    }

    /// Events that there is room for.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Events that are kept.
    pub fn len(&self) -> usize {
        usize::try_from(self.pushed).map_or(self.slots.len(), |pushed| pushed.min(self.slots.len()))
    }

    /// Is none kept?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Events that were overwritten by later ones.
    pub fn dropped(&self) -> u64 {
        self.pushed - self.len() as u64
    }

    /// Keeps an event, in place of the oldest when there is no room. Allocates nothing.
    pub fn push(&mut self, now: u64, plan: u64, event: Event) {
        self.pushed = self.pushed.saturating_add(1);
        if let Some(slot) = self.slots.get_mut(self.next) {
            *slot = Some(Happened { now, plan, event });
            self.next = if self.next + 1 == self.slots.len() { 0 } else { self.next + 1 };
        }
    }

    /// What is kept, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Happened> + '_ {
        let (newer, older) = self.slots.split_at(self.next);
        older.iter().chain(newer).flatten()
    }

    /// Forgets all events, those that were dropped too.
    pub fn clear(&mut self) {
        self.slots.fill(None);
        (self.next, self.pushed) = (0, 0);
    }
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} plan {}: {}", self.now, self.plan, self.event)
    }
}

/// A line for each event, the oldest first.
impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dropped() > 0 {
            writeln!(f, "{} earlier events are gone", self.dropped())?;
        }
        self.iter().try_for_each(|happened| writeln!(f, "{happened}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Happened, Ring};
    use crate::{AdapterId, Event, FinishReason};

    fn token(number: u32) -> Event {
        Event::Token { request: 1, token: number }
    }

    #[test]
    fn it_keeps_the_last_ones_in_order() {
        for capacity in 0..6usize {
            let (mut ring, mut all) = (Ring::new(capacity), Vec::new());
            for number in 0..20u32 {
                let kept = all.len().min(capacity);
                assert_eq!((ring.len(), ring.capacity(), ring.is_empty()), (kept, capacity, kept == 0));
                assert_eq!(ring.dropped(), (all.len() - kept) as u64);
                assert!(ring.iter().eq(&all[all.len() - kept..]), "{capacity}: {ring:?}");
                assert!(ring.iter().rev().eq(all[all.len() - kept..].iter().rev()));
                let (now, plan) = (u64::from(number) * 10, u64::from(number / 3));
                ring.push(now, plan, token(number));
                all.push(Happened { now, plan, event: token(number) });
            }
            ring.clear();
            assert_eq!((ring.len(), ring.dropped(), ring.iter().count()), (0, 0, 0));
        }
    }

    #[test]
    fn a_copy_goes_on_by_itself() {
        let mut ring = Ring::new(2);
        ring.push(1, 0, token(1));
        let mut copy = ring.clone();
        copy.push(2, 0, token(2));
        copy.push(3, 1, token(3));
        assert_eq!((ring.len(), copy.len(), copy.dropped(), copy.capacity()), (1, 2, 1, 2));
    }

    #[test]
    fn it_reads_as_lines() {
        let (mut ring, adapter) = (Ring::new(3), AdapterId::from_number(4));
        ring.push(0, 0, token(9));
        ring.push(5, 1, Event::AdapterLoading { adapter, slot: 2 });
        ring.push(7, 1, Event::AdapterHot { adapter, slot: 2 });
        ring.push(9, 2, Event::Finished { request: 1, reason: FinishReason::Aborted });
        assert_eq!(
            ring.to_string(),
            "1 earlier events are gone\n\
             5 plan 1: adapter 4 loading slot 2\n\
             7 plan 1: adapter 4 hot slot 2\n\
             9 plan 2: 1 finished aborted\n"
        );
    }
}
