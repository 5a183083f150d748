//! Numbers for token ids: a permutation that depends on a key and on what came before.

/// What a redaction depends on. Whoever has it can take the redaction back.
#[derive(Clone)]
pub struct Key(pub [u64; 2]);

/// Rounds of the Feistel network; domains are small, so more than the usual four.
const ROUNDS: u64 = 8;

impl Key {
    /// SipHash-2-4 of three words. Not the standard library's, whose keyed form isn't promised to stay the same.
    pub(crate) fn mix(&self, words: [u64; 3]) -> u64 {
        let [a, b] = self.0;
        let mut v = [
            a ^ 0x736f_6d65_7073_6575,
            b ^ 0x646f_7261_6e64_6f6d,
            a ^ 0x6c79_6765_6e65_7261,
            b ^ 0x7465_6462_7974_6573,
        ];
        // the last word is the length in bytes, as the definition has it
        for word in [words[0], words[1], words[2], 24 << 56] {
            v[3] ^= word;
            round(&mut v);
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        (0..4).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }

    /// Where `value` goes in a permutation of the numbers below `count`; each `context` has a permutation of its own.
    pub(crate) fn permute(&self, context: u64, value: u32, count: u32) -> u32 {
        if count < 2 || value >= count {
            return value;
        }
        // two halves of equal width, together at least as wide as the largest number and at most four times the domain
        let half = (u32::BITS - (count - 1).leading_zeros()).div_ceil(2);
        let mask = (1u64 << half) - 1;
        let mut number = u64::from(value);
        loop {
            let (mut left, mut right) = (number >> half, number & mask);
            for turn in 0..ROUNDS {
                (left, right) = (right, left ^ (self.mix([context, turn, right]) & mask));
            }
            number = left << half | right;
            // a permutation of the larger domain comes back into the smaller one on every cycle that started there
            if number < u64::from(count) {
                return number as u32;
            }
        }
    }
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// The key doesn't get into logs.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn siphash_is_the_known_one() {
        // the definition's key, and the bytes 0 to 23 as its vectors have them
        let key = Key([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let words: [u64; 3] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 0x1716_1514_1312_1110];
        #[allow(deprecated)] // the standard library's old one is the definition's
        let mut known = std::hash::SipHasher::new_with_keys(key.0[0], key.0[1]);
        for word in words {
            std::hash::Hasher::write(&mut known, &word.to_le_bytes());
        }
        assert_eq!(key.mix(words), std::hash::Hasher::finish(&known));
    }

    #[test]
    fn each_context_has_a_permutation() {
        let key = Key([1, 2]);
        for count in [1, 2, 3, 4, 5, 16, 17, 100, 1000] {
            for context in 0..5 {
                let mut seen = vec![false; count as usize];
                for value in 0..count {
                    let place = key.permute(context, value, count) as usize;
                    assert!(!std::mem::replace(&mut seen[place], true), "{place} twice below {count}");
                }
            }
        }
        let told = |context| (0..100).map(|value| key.permute(context, value, 100)).collect::<Vec<_>>();
        assert_ne!(told(0), told(1));
        assert_eq!(key.permute(7, 5, 5), 5, "what isn't in the domain stays");
        assert!(key.permute(7, i32::MAX as u32 - 1, i32::MAX as u32) < i32::MAX as u32);
    }
}
