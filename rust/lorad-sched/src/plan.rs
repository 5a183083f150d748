//! The plan: one flat `i32` buffer with sections at fixed offsets.
//!
//! The buffer belongs to the host. [`PlanLayout`] computes the sections from the capacities; `ARCHITECTURE.md` says what
//! each one means; [`PlanView`] reads them and prints them.

use std::fmt;
use std::ops::Range;

use crate::adapter::AdapterId;
use crate::config::Config;

/// A token that the plan in flight samples: the worker knows it, by the line, when this plan's turn comes.
pub const PENDING: i32 = -1;

/// A section of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // ARCHITECTURE.md has the table
pub enum Part {
    Header,
    RowLine,
    RowSlot,
    RowTag,
    RowStart,
    RowOffset,
    RowSample,
    TokenId,
    TokenPos,
    TokenLine,
    GroupSlot,
    GroupTag,
    GroupBegin,
    GroupEnd,
    EditLine,
    EditCol,
    EditPage,
    OpenLine,
    OpenRequestLo,
    OpenRequestHi,
    ClearSlot,
    CopySource,
    CopyTarget,
    PageinAdapter,
    PageinSlot,
    PageinTag,
    PageinBegin,
    PageinPage,
}

const PARTS: usize = 28;

impl Part {
    /// All sections in the order of the buffer.
    pub const ALL: [Part; PARTS] = [
        Part::Header,
        Part::RowLine,
        Part::RowSlot,
        Part::RowTag,
        Part::RowStart,
        Part::RowOffset,
        Part::RowSample,
        Part::TokenId,
        Part::TokenPos,
        Part::TokenLine,
        Part::GroupSlot,
        Part::GroupTag,
        Part::GroupBegin,
        Part::GroupEnd,
        Part::EditLine,
        Part::EditCol,
        Part::EditPage,
        Part::OpenLine,
        Part::OpenRequestLo,
        Part::OpenRequestHi,
        Part::ClearSlot,
        Part::CopySource,
        Part::CopyTarget,
        Part::PageinAdapter,
        Part::PageinSlot,
        Part::PageinTag,
        Part::PageinBegin,
        Part::PageinPage,
    ];

    /// The section's name.
    pub fn name(&self) -> &'static str {
        match self {
            Part::Header => "header",
            Part::RowLine => "row_line",
            Part::RowSlot => "row_slot",
            Part::RowTag => "row_tag",
            Part::RowStart => "row_start",
            Part::RowOffset => "row_offset",
            Part::RowSample => "row_sample",
            Part::TokenId => "token_id",
            Part::TokenPos => "token_pos",
            Part::TokenLine => "token_line",
            Part::GroupSlot => "group_slot",
            Part::GroupTag => "group_tag",
            Part::GroupBegin => "group_begin",
            Part::GroupEnd => "group_end",
            Part::EditLine => "edit_line",
            Part::EditCol => "edit_col",
            Part::EditPage => "edit_page",
            Part::OpenLine => "open_line",
            Part::OpenRequestLo => "open_request_lo",
            Part::OpenRequestHi => "open_request_hi",
            Part::ClearSlot => "clear_slot",
            Part::CopySource => "copy_source",
            Part::CopyTarget => "copy_target",
            Part::PageinAdapter => "pagein_adapter",
            Part::PageinSlot => "pagein_slot",
            Part::PageinTag => "pagein_tag",
            Part::PageinBegin => "pagein_begin",
            Part::PageinPage => "pagein_page",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// A counter in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // ARCHITECTURE.md has the list
pub enum Head {
    Step = 0,
    Rows = 1,
    Tokens = 2,
    Groups = 3,
    Edits = 4,
    Opened = 5,
    PageIns = 6,
    PageInPages = 7,
    Clears = 8,
    Samples = 9,
    Copies = 10,
}

/// Sections start at multiples of 16 elements: 64 bytes.
const ALIGN: usize = 16;

/// Offsets and lengths of the sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLayout {
    ranges: [(usize, usize); PARTS],
    length: usize,
}

impl PlanLayout {
    /// The layout for these limits.
    pub fn new(config: &Config) -> Self {
        let rows = config.rows_max as usize;
        let tokens = config.tokens_max as usize;
        let pages = config.pages_usable() as usize;
        // lines share cached pages
        let edits = rows.saturating_mul(config.cols() as usize);
        let loads = (config.page_ins_max as usize).min(config.slots_max as usize);
        let (mut ranges, mut offset) = ([(0, 0); PARTS], 0usize);
        for part in Part::ALL {
            let length = match part {
                Part::Header => 16,
                Part::RowLine | Part::RowSlot | Part::RowTag | Part::RowStart | Part::RowSample => rows,
                Part::RowOffset => rows + 1,
                Part::TokenId | Part::TokenPos | Part::TokenLine => tokens,
                Part::GroupSlot | Part::GroupTag | Part::GroupBegin | Part::GroupEnd => rows,
                Part::EditLine | Part::EditCol | Part::EditPage => edits,
                Part::OpenLine | Part::OpenRequestLo | Part::OpenRequestHi => rows,
                Part::ClearSlot => config.slots_max as usize,
                Part::CopySource | Part::CopyTarget => rows,
                Part::PageinAdapter | Part::PageinSlot | Part::PageinTag => loads,
                Part::PageinBegin => loads + 1,
                Part::PageinPage => pages,
            };
            ranges[part.index()] = (offset, length);
            offset += length.div_ceil(ALIGN) * ALIGN;
        }
        Self { ranges, length: offset }
    }

    /// Elements of the buffer.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Where a section lies.
    pub fn range(&self, part: Part) -> Range<usize> {
        let (offset, length) = self.ranges[part.index()];
        offset..offset + length
    }

    /// Name, offset and length of each section.
    pub fn sections(&self) -> impl Iterator<Item = (&'static str, usize, usize)> + '_ {
        Part::ALL.into_iter().map(|part| {
            let (offset, length) = self.ranges[part.index()];
            (part.name(), offset, length)
        })
    }

    /// Reads a plan.
    pub fn view<'a>(&'a self, plan: &'a [i32]) -> PlanView<'a> {
        PlanView { layout: self, plan }
    }

    pub(crate) fn set(&self, plan: &mut [i32], part: Part, index: usize, value: u32) {
        let (offset, length) = self.ranges[part.index()];
        debug_assert!(index < length, "{} has {length} elements, not {index}", part.name());
        if index < length {
            // the bits are what counts: tags and the halves of request ids use all 32
            plan[offset + index] = value as i32;
        }
    }

    pub(crate) fn part_mut<'a>(&self, plan: &'a mut [i32], part: Part) -> &'a mut [i32] {
        &mut plan[self.range(part)]
    }

    pub(crate) fn set_head(&self, plan: &mut [i32], head: Head, value: usize) {
        self.set(plan, Part::Header, head as usize, value as u32);
    }
}

/// A row of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowView {
    /// Line of the page table.
    pub line: u32,
    /// Slot and tag of the adapter, `None` for the base.
    pub adapter: Option<(u32, u32)>,
    /// Tokens computed before.
    pub start: u32,
    /// New tokens in this step.
    pub count: u32,
    /// Is a token sampled?
    pub sample: bool,
}

/// A page-in of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageInView<'a> {
    /// The adapter.
    pub adapter: AdapterId,
    /// Its slot.
    pub slot: u32,
    /// Its tag.
    pub tag: u32,
    /// Its pages in the image's order.
    pub pages: &'a [i32],
}

/// Reads a plan. A buffer that isn't one reads as zeros where it's too short.
#[derive(Clone, Copy, Debug)]
pub struct PlanView<'a> {
    layout: &'a PlanLayout,
    plan: &'a [i32],
}

impl<'a> PlanView<'a> {
    /// A section.
    pub fn part(&self, part: Part) -> &'a [i32] {
        self.plan.get(self.layout.range(part)).unwrap_or(&[])
    }

    fn at(&self, part: Part, index: usize) -> u32 {
        self.part(part).get(index).copied().unwrap_or(0) as u32
    }

    fn count(&self, head: Head, part: Part) -> usize {
        (self.at(Part::Header, head as usize) as usize).min(self.part(part).len())
    }

    /// The plan's number, its low 31 bits.
    pub fn number(&self) -> u32 {
        self.at(Part::Header, Head::Step as usize)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.count(Head::Rows, Part::RowLine)
    }

    /// New tokens.
    pub fn tokens(&self) -> usize {
        self.count(Head::Tokens, Part::TokenId)
    }

    /// Rows that sample a token.
    pub fn samples(&self) -> usize {
        self.count(Head::Samples, Part::RowLine)
    }

    /// One row.
    pub fn row(&self, row: usize) -> RowView {
        let slot = self.at(Part::RowSlot, row);
        RowView {
            line: self.at(Part::RowLine, row),
            adapter: (slot as i32 >= 0).then(|| (slot, self.at(Part::RowTag, row))),
            start: self.at(Part::RowStart, row),
            count: self.at(Part::RowOffset, row + 1).saturating_sub(self.at(Part::RowOffset, row)),
            sample: self.at(Part::RowSample, row) != 0,
        }
    }

    /// The page-ins.
    pub fn page_ins(&self) -> impl Iterator<Item = PageInView<'a>> + 'a {
        let view = *self;
        (0..self.count(Head::PageIns, Part::PageinAdapter)).map(move |index| {
            let begin = view.at(Part::PageinBegin, index) as usize;
            let end = view.at(Part::PageinBegin, index + 1) as usize;
            PageInView {
                adapter: AdapterId::from_number(view.at(Part::PageinAdapter, index)),
                slot: view.at(Part::PageinSlot, index),
                tag: view.at(Part::PageinTag, index),
                pages: view.part(Part::PageinPage).get(begin..end).unwrap_or(&[]),
            }
        })
    }

    /// Page-table edits: line, column, page.
    pub fn edits(&self) -> impl Iterator<Item = (u32, u32, u32)> + 'a {
        let view = *self;
        (0..self.count(Head::Edits, Part::EditLine)).map(move |index| {
            (view.at(Part::EditLine, index), view.at(Part::EditCol, index), view.at(Part::EditPage, index))
        })
    }

    /// Lines that a request took in this step.
    pub fn opened(&self) -> impl Iterator<Item = (u32, u64)> + 'a {
        let view = *self;
        (0..self.count(Head::Opened, Part::OpenLine)).map(move |index| {
            let low = u64::from(view.at(Part::OpenRequestLo, index));
            let high = u64::from(view.at(Part::OpenRequestHi, index));
            (view.at(Part::OpenLine, index), high << 32 | low)
        })
    }

    /// Pages to copy before the rows are computed: source and target.
    pub fn copies(&self) -> impl Iterator<Item = (u32, u32)> + 'a {
        let view = *self;
        (0..self.count(Head::Copies, Part::CopySource))
            .map(move |index| (view.at(Part::CopySource, index), view.at(Part::CopyTarget, index)))
    }

    /// Slots to empty.
    pub fn clears(&self) -> &'a [i32] {
        let count = self.count(Head::Clears, Part::ClearSlot);
        self.part(Part::ClearSlot).get(..count).unwrap_or(&[])
    }
}

impl fmt::Display for PlanView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan {}: rows {} tokens {}", self.number(), self.rows(), self.tokens())?;
        if !self.clears().is_empty() {
            write!(f, "\n  clear slots {}", Numbers(self.clears()))?;
        }
        for load in self.page_ins() {
            write!(
                f,
                "\n  page-in adapter {} slot {} pages {}",
                load.adapter,
                load.slot,
                Numbers(load.pages)
            )?;
        }
        for (source, target) in self.copies() {
            write!(f, "\n  copy page {source} to {target}")?;
        }
        for (line, request) in self.opened() {
            write!(f, "\n  open line {line} request {request}")?;
        }
        for row in 0..self.rows() {
            let RowView { line, adapter, start, count, sample } = self.row(row);
            write!(f, "\n  row {row}: line {line} ")?;
            match adapter {
                Some((slot, tag)) => write!(f, "slot {slot} tag {tag}")?,
                None => write!(f, "base")?,
            }
            write!(f, " tokens {start}..{}{}", start + count, if sample { " sample" } else { "" })?;
            let mut edits = self.edits().filter(|edit| edit.0 == line).peekable();
            if edits.peek().is_some() {
                write!(f, " edits")?;
                edits.try_for_each(|(_, col, page)| write!(f, " {col}={page}"))?;
            }
        }
        Ok(())
    }
}

/// Numbers with blanks between them.
pub(crate) struct Numbers<'a, T>(pub &'a [T]);

impl<T: fmt::Display> fmt::Display for Numbers<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for (index, number) in self.0.iter().enumerate() {
            write!(f, "{}{number}", if index == 0 { "" } else { " " })?;
        }
        write!(f, "]")
    }
}
