//! Which replicas have computed a prompt's beginning.
//!
//! A block is so many tokens of a prompt; its hash covers the adapter's generation and all tokens before it, so equal hashes
//! mean equal KV. The index remembers where blocks were sent. It's a guess: a replica may have evicted them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;

use crate::replica::ReplicaIndex;

/// Blocks by hash: their keys need no other.
type Blocks = HashMap<u64, Vec<ReplicaIndex>, BuildHasherDefault<Hashed>>;

/// Takes a number that is a hash as its hash.
#[derive(Clone, Copy, Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, value: u64) {
        // the table looks at the highest and the lowest bits: a host whose hashes are poor in these does no harm
        self.0 = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }
}

/// Blocks and where they were sent. Two generations of half the room each: what isn't used while one fills is forgotten.
#[derive(Clone, Debug)]
pub(crate) struct PrefixIndex {
    young: Blocks,
    old: Blocks,
    half: usize,
}

impl PrefixIndex {
    pub fn new(blocks_max: usize) -> Self {
        Self { young: Blocks::default(), old: Blocks::default(), half: blocks_max.div_ceil(2) }
    }

    /// Sets `matched[replica]` to the blocks that it has, from the first on.
    pub fn look_up(&self, blocks: &[u64], matched: &mut [u32]) {
        matched.fill(0);
        for (index, block) in blocks.iter().enumerate() {
            let Some(holders) = self.young.get(block).or_else(|| self.old.get(block)) else { return };
            let mut any = false;
            for holder in holders {
                if let Some(count) = matched.get_mut(holder.number()).filter(|count| **count == index as u32)
                {
                    *count += 1;
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    }

    /// A replica computes these blocks.
    pub fn note(&mut self, blocks: &[u64], replica: ReplicaIndex) {
        if self.half == 0 {
            return;
        }
        for &block in blocks {
            if self.young.len() >= self.half && !self.young.contains_key(&block) {
                self.old = mem::take(&mut self.young);
            }
            let old = &mut self.old;
            let holders = self.young.entry(block).or_insert_with(|| old.remove(&block).unwrap_or_default());
            if !holders.contains(&replica) {
                holders.push(replica);
            }
        }
    }

    /// A replica has lost all its blocks.
    pub fn forget(&mut self, replica: ReplicaIndex) {
        for holders in self.young.values_mut().chain(self.old.values_mut()) {
            holders.retain(|&holder| holder != replica);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaIndex = ReplicaIndex(0);
    const B: ReplicaIndex = ReplicaIndex(1);

    fn found(index: &PrefixIndex, blocks: &[u64]) -> [u32; 2] {
        let mut matched = [9; 2];
        index.look_up(blocks, &mut matched);
        matched
    }

    #[test]
    fn only_blocks_from_the_first_on_count() {
        let mut index = PrefixIndex::new(100);
        index.note(&[1, 2, 3], A);
        index.note(&[1], B);
        index.note(&[3], B);
        assert_eq!(found(&index, &[1, 2, 3, 4]), [3, 1]);
        assert_eq!(found(&index, &[2, 3]), [2, 0]);
        index.forget(A);
        assert_eq!(found(&index, &[1, 2, 3]), [0, 1]);
    }

    #[test]
    fn what_isnt_used_is_forgotten() {
        let mut index = PrefixIndex::new(8);
        index.note(&[1, 2], A);
        for block in 10..14 {
            index.note(&[1], B);
            index.note(&[block], A);
        }
        assert_eq!(found(&index, &[1]), [1, 1], "used all the time");
        for block in 20..28 {
            index.note(&[block], A);
        }
        assert_eq!(found(&index, &[1]), [0, 0]);
        assert!(index.young.len() + index.old.len() <= 8);
        let mut off = PrefixIndex::new(0);
        off.note(&[1], A);
        assert_eq!(found(&off, &[1]), [0, 0]);
    }
}
