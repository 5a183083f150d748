//! What requests change of their logits before a token is chosen: single tokens' logits, and masks over all of them.

use crate::error::{index, length, require};
use crate::OpError;

/// Numbers of one edit: what is added, what divides a positive logit and multiplies another, what is subtracted; in this
/// order.
pub const CHANGE: usize = 3;
/// Tokens in a word of a mask.
const WORD: usize = 32;
/// A row without a mask.
pub const NO_MASK: i32 = -1;

/// Edits of the rows of one call. Rows without any are sampled from their logits as they are, and cost nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edits<'a> {
    /// `[rows + 1]`, where each row's tokens begin; or empty: no row has any.
    pub offset: &'a [i32],
    /// Tokens, each at most once in a row.
    pub token: &'a [i32],
    /// `[tokens, CHANGE]`.
    pub change: &'a [f32],
    /// `[rows]`, each row's mask or [`NO_MASK`]; or empty: no row has one.
    pub mask_row: &'a [i32],
    /// `[masks, vocab / 32 rounded up]`, bits of the tokens that may be chosen, the lowest first.
    pub mask: &'a [i32],
}

impl Edits<'_> {
    /// Refuses arrays that don't fit each other or these logits.
    pub fn check(&self, rows: usize, vocab: usize) -> Result<(), OpError> {
        if !self.offset.is_empty() {
            length("edit offset", rows + 1, self.offset.len())?;
            let mut before = 0;
            for offset in self.offset {
                before = index("edit offset", *offset, self.token.len() + 1)?.max(before);
                require(*offset as usize == before, "edit offset: must not descend", *offset as usize)?;
            }
            require(self.offset[0] == 0, "edit offset: must begin at 0", self.offset[0] as usize)?;
            length("edit token", before, self.token.len())?;
        }
        length("edit change", self.token.len() * CHANGE, self.change.len())?;
        for token in self.token {
            index("edit token", *token, vocab)?;
        }
        if !self.mask_row.is_empty() {
            length("mask row", rows, self.mask_row.len())?;
        }
        let words = vocab.div_ceil(WORD);
        require(
            self.mask.len().is_multiple_of(words),
            "mask: rows of the vocabulary's bits",
            self.mask.len(),
        )?;
        for row in self.mask_row.iter().filter(|row| **row != NO_MASK) {
            index("mask row", *row, self.mask.len() / words)?;
        }
        Ok(())
    }

    /// Whether this row's logits are changed.
    pub fn touch(&self, row: usize) -> bool {
        self.mask_row.get(row).is_some_and(|mask| *mask != NO_MASK)
            || (!self.offset.is_empty() && self.offset[row] < self.offset[row + 1])
    }

    /// Writes this row's changed logits over `out`.
    pub fn apply(&self, row: usize, logits: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(logits);
        if !self.offset.is_empty() {
            let (begin, end) = (self.offset[row] as usize, self.offset[row + 1] as usize);
            let changes = self.change[begin * CHANGE..end * CHANGE].chunks_exact(CHANGE);
            for (token, change) in self.token[begin..end].iter().zip(changes) {
                let logit = &mut out[*token as usize];
                *logit += change[0];
                *logit = if *logit > 0.0 { *logit / change[1] } else { *logit * change[1] };
                *logit -= change[2];
            }
        }
        if let Some(mask) = self.mask_row.get(row).and_then(|mask| usize::try_from(*mask).ok()) {
            let words = logits.len().div_ceil(WORD);
            for (word, part) in self.mask[mask * words..][..words].iter().zip(out.chunks_mut(WORD)) {
                // Most words of a grammar's mask are empty, or, inside a string, full.
                match *word {
                    0 => part.fill(f32::NEG_INFINITY),
                    -1 => {}
                    word => {
                        for (bit, logit) in part.iter_mut().enumerate() {
                            if word >> bit & 1 == 0 {
                                *logit = f32::NEG_INFINITY;
                            }
                        }
                    }
                }
            }
        }
    }
}
