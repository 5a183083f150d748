//! Who owns each page.
//!
//! One table holds every page of the arena. The owner of a page is a variant that names the place that must name the
//! page in turn, so that a check can compare both sides:
//!
//! ```text
//!   pages   0 ........................................................ total
//!           | Reserved | Sequence{line, col} | Cached | Adapter{adapter, part} | Free |   in any order, each page exactly one
//!   equation: free + sequence + cached + adapter + reserved = total
//! ```
//!
//! All memory is taken by [`Pool::new`]. The order in which pages are handed out is fixed: the last page given back is
//! the first one taken, and a new pool hands out 0, 1, 2, …

use std::fmt;

/// A page of the arena.
pub type PageId = u32;

/// The owner of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody; the page is on the free list.
    Free,
    /// KV of a running sequence: column `col` of line `line` of the page table. Letting go means that the sequence
    /// must be recomputed.
    Sequence {
        /// Line of the page table.
        line: u32,
        /// Column of that line.
        col: u32,
    },
    /// KV that the prefix cache has, whoever reads it. Letting go means that it's computed again when somebody asks.
    Cached,
    /// Part of an adapter's image. Letting go means that the adapter must be paged in again.
    Adapter {
        /// The owner's own number of the adapter.
        adapter: u32,
        /// Which page of the image.
        part: u32,
    },
    /// Set aside by the host (scratch, padding); never handed out.
    Reserved,
}

impl Owner {
    /// The kind of this owner, without what it carries.
    pub fn kind(&self) -> OwnerKind {
        match self {
            Owner::Free => OwnerKind::Free,
            Owner::Sequence { .. } => OwnerKind::Sequence,
            Owner::Cached => OwnerKind::Cached,
            Owner::Adapter { .. } => OwnerKind::Adapter,
            Owner::Reserved => OwnerKind::Reserved,
        }
    }
}

/// The kinds of owner; each has a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// On the free list.
    Free,
    /// KV of running sequences, each its own.
    Sequence,
    /// The prefix cache.
    Cached,
    /// Images of adapters.
    Adapter,
    /// Set aside by the host.
    Reserved,
}

impl OwnerKind {
    /// All kinds, in the order of the counts in a dump.
    pub const ALL: [OwnerKind; 5] =
        [OwnerKind::Free, OwnerKind::Sequence, OwnerKind::Cached, OwnerKind::Adapter, OwnerKind::Reserved];

    /// The name used in dumps and statistics.
    pub fn name(&self) -> &'static str {
        match self {
            OwnerKind::Free => "free",
            OwnerKind::Sequence => "sequence",
            OwnerKind::Cached => "cached",
            OwnerKind::Adapter => "adapter",
            OwnerKind::Reserved => "reserved",
        }
    }

    fn index(self) -> usize {
        match self {
            OwnerKind::Free => 0,
            OwnerKind::Sequence => 1,
            OwnerKind::Cached => 2,
            OwnerKind::Adapter => 3,
            OwnerKind::Reserved => 4,
        }
    }
}

/// Why a call on the pool was refused; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// No page is free.
    Exhausted {
        /// Pages in the pool.
        total: u32,
    },
    /// The page isn't in the pool.
    NoSuchPage {
        /// The page that was named.
        page: PageId,
        /// Pages in the pool.
        total: u32,
    },
    /// The page belongs to somebody else.
    WrongOwner {
        /// The page that was named.
        page: PageId,
        /// The owner that the caller claimed.
        claimed: Owner,
        /// The owner in the table.
        found: Owner,
    },
    /// A page can't be taken for nobody.
    NoOwner,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Exhausted { total } => write!(f, "none of the {total} pages is free"),
            PoolError::NoSuchPage { page, total } => write!(f, "page {page} of a pool of {total}"),
            PoolError::WrongOwner { page, claimed, found } => {
                write!(f, "page {page} belongs to {found:?}, not to {claimed:?}")
            }
            PoolError::NoOwner => write!(f, "a page can't be taken for nobody"),
        }
    }
}

impl std::error::Error for PoolError {}

/// The slot table of all pages.
#[derive(Clone, Debug)]
pub struct Pool {
    owners: Vec<Owner>,
    free: Vec<PageId>,
    counts: [u32; 5],
}

impl Pool {
    /// A pool of `total` free pages.
    pub fn new(total: u32) -> Self {
        Self {
            owners: vec![Owner::Free; total as usize],
            free: (0..total).rev().collect(),
            counts: [total, 0, 0, 0, 0],
        }
    }

    /// Pages in the pool.
    pub fn total(&self) -> u32 {
        self.owners.len() as u32
    }

    /// Pages that nobody owns.
    pub fn free(&self) -> u32 {
        self.counts[OwnerKind::Free.index()]
    }

    /// Pages of one kind of owner.
    pub fn count(&self, kind: OwnerKind) -> u32 {
        self.counts[kind.index()]
    }

    /// The owner of a page.
    pub fn owner(&self, page: PageId) -> Result<Owner, PoolError> {
        self.owners.get(page as usize).copied().ok_or(PoolError::NoSuchPage { page, total: self.total() })
    }

    /// Takes the next free page for `owner`.
    pub fn take(&mut self, owner: Owner) -> Result<PageId, PoolError> {
        if owner == Owner::Free {
            return Err(PoolError::NoOwner);
        }
        let Some(page) = self.free.pop() else {
            return Err(PoolError::Exhausted { total: self.total() });
        };
        self.owners[page as usize] = owner;
        self.counts[OwnerKind::Free.index()] -= 1;
        self.counts[owner.kind().index()] += 1;
        Ok(page)
    }

    /// Gives a page back; `owner` must be its owner in the table.
    pub fn give(&mut self, page: PageId, owner: Owner) -> Result<(), PoolError> {
        let found = self.owner(page)?;
        if found != owner || owner == Owner::Free {
            return Err(PoolError::WrongOwner { page, claimed: owner, found });
        }
        self.owners[page as usize] = Owner::Free;
        self.free.push(page);
        self.counts[OwnerKind::Free.index()] += 1;
        self.counts[owner.kind().index()] -= 1;
        Ok(())
    }

    /// Passes a page from one owner to another; `from` must be its owner in the table.
    pub fn pass(&mut self, page: PageId, from: Owner, to: Owner) -> Result<(), PoolError> {
        let found = self.owner(page)?;
        if to == Owner::Free {
            return Err(PoolError::NoOwner);
        }
        if found != from || from == Owner::Free {
            return Err(PoolError::WrongOwner { page, claimed: from, found });
        }
        self.owners[page as usize] = to;
        self.counts[from.kind().index()] -= 1;
        self.counts[to.kind().index()] += 1;
        Ok(())
    }

    /// All pages with their owners, in order.
    pub fn pages(&self) -> impl Iterator<Item = (PageId, Owner)> + '_ {
        self.owners.iter().enumerate().map(|(page, owner)| (page as PageId, *owner))
    }

    /// Compares the counts with the table and the free list with both.
    pub fn check(&self) -> Result<(), String> {
        let mut counts = [0u32; 5];
        for owner in &self.owners {
            counts[owner.kind().index()] += 1;
        }
        if counts != self.counts {
            return Err(format!("pool: counts {:?}, table says {counts:?}", self.counts));
        }
        if counts.iter().sum::<u32>() != self.total() {
            return Err(format!("pool: free + held = {counts:?}, total {}", self.total()));
        }
        if self.free.len() != counts[0] as usize {
            return Err(format!("pool: {} pages on the free list, {} free", self.free.len(), counts[0]));
        }
        let mut seen = vec![false; self.owners.len()];
        for &page in &self.free {
            if self.owner(page).map_err(|error| format!("pool: {error}"))? != Owner::Free
                || seen[page as usize]
            {
                return Err(format!("pool: page {page} on the free list is owned or listed twice"));
            }
            seen[page as usize] = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_a_fixed_order() {
        let mut pool = Pool::new(3);
        let owner = |col| Owner::Sequence { line: 0, col };
        assert_eq!((0..3).map(|col| pool.take(owner(col)).unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(pool.take(owner(3)), Err(PoolError::Exhausted { total: 3 }));
        pool.give(1, owner(1)).unwrap();
        assert_eq!(pool.take(Owner::Adapter { adapter: 4, part: 0 }).unwrap(), 1);
        pool.check().unwrap();
        assert_eq!(pool.count(OwnerKind::Sequence), 2);
        assert_eq!(pool.count(OwnerKind::Adapter), 1);
    }

    #[test]
    fn a_refused_call_changes_nothing() {
        let mut pool = Pool::new(2);
        let page = pool.take(Owner::Reserved).unwrap();
        let before = pool.clone();
        let other = Owner::Sequence { line: 1, col: 0 };
        assert_eq!(
            pool.give(page, other),
            Err(PoolError::WrongOwner { page, claimed: other, found: Owner::Reserved })
        );
        assert_eq!(pool.give(7, other), Err(PoolError::NoSuchPage { page: 7, total: 2 }));
        assert!(pool.give(1, Owner::Free).is_err());
        assert_eq!(pool.take(Owner::Free), Err(PoolError::NoOwner));
        assert_eq!(format!("{before:?}"), format!("{pool:?}"));
        pool.check().unwrap();
    }

    /// Two owners, a seed, a hundred thousand rounds, a naive model beside it.
    #[test]
    fn random_takes_and_gives_match_a_naive_model() {
        let (mut pool, mut model, mut state) = (Pool::new(7), Vec::<(PageId, Owner)>::new(), 9u64);
        for round in 0..100_000u32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let roll = (state >> 33) as u32;
            if roll & 1 == 0 {
                let owner = if roll & 2 == 0 {
                    Owner::Sequence { line: roll % 3, col: round }
                } else {
                    Owner::Adapter { adapter: roll % 3, part: round }
                };
                match pool.take(owner) {
                    Ok(page) => {
                        assert!(model.iter().all(|(held, _)| *held != page), "page {page} in two hands");
                        model.push((page, owner));
                    }
                    Err(error) => assert_eq!((error, model.len()), (PoolError::Exhausted { total: 7 }, 7)),
                }
            } else if !model.is_empty() {
                let (page, owner) = model.swap_remove(roll as usize % model.len());
                pool.give(page, owner).unwrap();
            }
            assert_eq!(pool.free() as usize + model.len(), 7);
            pool.check().unwrap();
        }
    }
}
