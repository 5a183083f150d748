//! What a plan says, as plain numbers: the world reads it out of the core's buffer, everything else reads this.

/// A row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Line of the page table.
    pub line: u32,
    /// Slot and tag of the adapter, `None` for the base.
    pub adapter: Option<(u32, u32)>,
    /// Tokens computed before.
    pub start: u32,
    /// New tokens.
    pub count: u32,
    /// Is a token sampled?
    pub sample: bool,
}

/// An adapter to copy into pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageIn {
    /// The core's number of the adapter.
    pub adapter: u32,
    /// Its slot.
    pub slot: u32,
    /// Its tag.
    pub tag: u32,
    /// Its pages in the image's order.
    pub pages: Vec<u32>,
}

/// Tokens of one adapter, adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its slot.
    pub slot: u32,
    /// Its tag.
    pub tag: u32,
    /// First token.
    pub begin: u32,
    /// One past the last.
    pub end: u32,
}

/// A plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The plan's number.
    pub number: u64,
    /// Its rows.
    pub rows: Vec<Row>,
    /// New tokens: id, position, line.
    pub tokens: Vec<(u32, u32, u32)>,
    /// Ranges of tokens by adapter.
    pub groups: Vec<Group>,
    /// Page-table edits: line, column, page.
    pub edits: Vec<(u32, u32, u32)>,
    /// Lines that a request took: line, request.
    pub opened: Vec<(u32, u64)>,
    /// Slots to empty.
    pub clears: Vec<u32>,
    /// Pages to copy before the rows are computed: source, target.
    pub copies: Vec<(u32, u32)>,
    /// Adapters to copy.
    pub page_ins: Vec<PageIn>,
}

/// A hash of all that the core said, for comparing two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Takes a number in.
    pub fn add(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    }

    /// Takes a text in.
    pub fn add_text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.add(byte.into()));
    }

    /// Takes a plan in.
    pub fn add_step(&mut self, step: &Step) {
        let Step { number, rows, tokens, groups, edits, opened, clears, copies, page_ins } = step;
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        self.add(*number);
        for row in rows {
            let (slot, tag) = row.adapter.unwrap_or((u32::MAX, 0));
            self.add(pair(row.line, slot));
            self.add(pair(tag, row.sample.into()));
            self.add(pair(row.start, row.count));
        }
        for &(id, position, line) in tokens {
            self.add(pair(id, position));
            self.add(line.into());
        }
        for group in groups {
            self.add(pair(group.slot, group.tag));
            self.add(pair(group.begin, group.end));
        }
        for &(line, col, page) in edits {
            self.add(pair(line, col));
            self.add(page.into());
        }
        for &(line, request) in opened {
            self.add(line.into());
            self.add(request);
        }
        for &slot in clears {
            self.add(slot.into());
        }
        copies.iter().for_each(|&(source, target)| self.add(pair(source, target)));
        for load in page_ins {
            self.add(pair(load.adapter, load.slot));
            self.add(load.tag.into());
            load.pages.iter().for_each(|&page| self.add(page.into()));
        }
    }

    /// The hash.
    pub fn value(&self) -> u64 {
        self.0
    }
}
