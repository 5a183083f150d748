//! A naive worker: it keeps what a real one would have in its pages, lines and slots, and finds every row that would
//! have been computed from something else.
//!
//! A page's KV is kept as one number per token, a hash of all that it depends on: adapter, tenant and the tokens before.
//! So pages may be shared by whoever has the same content.

use std::collections::HashMap;

use lorad_sched::PENDING;

use crate::book::Book;
use crate::step::{PageIn, Row, Step};

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    /// KV of so many tokens from its start on.
    Kv {
        filled: u32,
    },
    /// A part of an adapter, perhaps still being copied.
    Weights {
        adapter: u32,
        part: u32,
    },
}

/// An adapter whose bytes are there.
#[derive(Clone, Debug)]
struct Loaded {
    adapter: u32,
    tag: u32,
    pages: Vec<u32>,
}

/// The sizes that the worker knows.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Pages of the arena.
    pub pages: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Lines of the page table.
    pub rows_max: u32,
    /// Columns of the page table.
    pub cols: u32,
    /// Slots of the device table.
    pub slots_max: u32,
    /// New tokens of a step.
    pub tokens_max: u32,
    /// New tokens of a row.
    pub prefill_chunk_max: u32,
    /// Distinct adapters of a step.
    pub adapters_step_max: u32,
}

/// The worker.
#[derive(Clone, Debug)]
pub struct Worker {
    sizes: Sizes,
    /// Look at pages too: most of the time of a step.
    audit: bool,
    pages: Vec<Held>,
    /// Content of each token's KV, by page and place in it.
    kv: Vec<u64>,
    table: Vec<u32>,
    lines: Vec<Option<u64>>,
    slots: Vec<Option<Loaded>>,
    loading: HashMap<u32, PageIn>,
}

type Found = Result<(), String>;

impl Worker {
    /// All empty.
    pub fn new(sizes: Sizes, audit: bool) -> Self {
        let cells = if audit { sizes.pages as usize * sizes.page_tokens as usize } else { 0 };
        Self {
            sizes,
            audit,
            pages: vec![Held::Nothing; sizes.pages as usize],
            kv: vec![0; cells],
            table: vec![u32::MAX; sizes.rows_max as usize * sizes.cols as usize],
            lines: vec![None; sizes.rows_max as usize],
            slots: vec![None; sizes.slots_max as usize],
            loading: HashMap::new(),
        }
    }

    /// The request that has a row's line.
    pub fn request(&self, row: &Row) -> Option<u64> {
        self.lines.get(row.line as usize).copied().flatten()
    }

    /// The adapter in a slot.
    pub fn adapter(&self, slot: u32) -> Option<u32> {
        self.slots.get(slot as usize)?.as_ref().map(|loaded| loaded.adapter)
    }

    /// The bytes of an adapter arrived, or didn't. Until now the copy may have written into its pages.
    pub fn arrived(&mut self, adapter: u32, fails: bool) -> Found {
        let load = self.loading.remove(&adapter).ok_or(format!("adapter {adapter} wasn't on its way"))?;
        self.hold(&load)?;
        if !fails {
            let PageIn { adapter, slot, tag, pages } = load;
            self.slots[slot as usize] = Some(Loaded { adapter, tag, pages });
        }
        Ok(())
    }

    fn hold(&mut self, load: &PageIn) -> Found {
        for (&page, part) in load.pages.iter().zip(0..) {
            let held = self.pages.get_mut(page as usize).ok_or(format!("there is no page {page}"))?;
            *held = Held::Weights { adapter: load.adapter, part };
        }
        Ok(())
    }

    /// Does what a plan says. `adapter` gives tag and pages of an adapter that lives.
    pub fn apply(&mut self, step: &Step, book: &Book, adapter: impl Fn(u32) -> Option<(u32, u32)>) -> Found {
        for &slot in &step.clears {
            *self.slots.get_mut(slot as usize).ok_or(format!("there is no slot {slot} to clear"))? = None;
        }
        for load in &step.page_ins {
            let PageIn { adapter: id, slot, tag, .. } = *load;
            // a fixed buffer may be larger than its adapter
            let right =
                adapter(id).is_some_and(|(own, pages)| own == tag && load.pages.len() >= pages as usize);
            if !right {
                return Err(format!("the page-in of adapter {id} with tag {tag} is of another size or tag"));
            }
            let vacant = self.slots.get(slot as usize).is_some_and(Option::is_none);
            if !vacant || self.loading.values().any(|other| other.slot == slot) {
                return Err(format!("adapter {id} is loaded into slot {slot}, which isn't empty"));
            }
            self.hold(load)?;
            self.loading.insert(id, load.clone());
        }
        let cols = self.sizes.cols as usize;
        for &(line, request) in &step.opened {
            *self.lines.get_mut(line as usize).ok_or(format!("there is no line {line}"))? = Some(request);
            self.table[line as usize * cols..][..cols].fill(u32::MAX);
        }
        for &(line, col, page) in &step.edits {
            if line >= self.sizes.rows_max || col >= self.sizes.cols || page >= self.sizes.pages {
                return Err(format!("no edit of line {line} column {col} to page {page} is possible"));
            }
            self.table[line as usize * cols + col as usize] = page;
        }
        self.copies(step)?;
        self.limits(step)?;
        let (mut token, mut last) = (0, None);
        for row in &step.rows {
            self.row(step, row, token, book)?;
            if let Some((slot, tag)) = row.adapter.filter(|_| row.adapter != last) {
                self.weights(slot, tag)?;
            }
            last = row.adapter;
            token += row.count as usize;
        }
        Ok(())
    }

    fn copies(&mut self, step: &Step) -> Found {
        for &(source, target) in step.copies.iter().filter(|_| self.audit) {
            let held = self.pages.get(source as usize).copied();
            let Some(held @ Held::Kv { .. }) = held.filter(|_| target < self.sizes.pages) else {
                return Err(format!("page {source}, to be copied to {target}, holds {held:?}"));
            };
            self.pages[target as usize] = held;
            let size = self.sizes.page_tokens as usize;
            let from = source as usize * size;
            self.kv.copy_within(from..from + size, target as usize * size);
        }
        Ok(())
    }

    fn limits(&self, step: &Step) -> Found {
        let tokens: u64 = step.rows.iter().map(|row| u64::from(row.count)).sum();
        let mut found: Vec<(u32, u32, u32, u32)> = Vec::new();
        let mut begin = 0;
        for row in &step.rows {
            let end = begin + row.count;
            if let Some((slot, tag)) = row.adapter {
                match found.last_mut().filter(|group| (group.0, group.1) == (slot, tag)) {
                    Some(group) => group.3 = end,
                    None => found.push((slot, tag, begin, end)),
                }
            }
            begin = end;
        }
        let groups: Vec<_> =
            step.groups.iter().map(|group| (group.slot, group.tag, group.begin, group.end)).collect();
        let mut slots: Vec<u32> = found.iter().map(|group| group.0).collect();
        slots.sort_unstable();
        slots.dedup();
        if found != groups || slots.len() != groups.len() {
            return Err(format!("tokens by adapter are {groups:?}, the rows have {found:?}"));
        }
        let sizes = self.sizes;
        let limits = [
            ("rows", step.rows.len() as u64, sizes.rows_max),
            ("tokens", tokens, sizes.tokens_max),
            ("adapters", groups.len() as u64, sizes.adapters_step_max),
        ];
        if tokens != step.tokens.len() as u64 {
            return Err(format!("rows of {tokens} tokens, {} are given", step.tokens.len()));
        }
        match limits.into_iter().find(|&(_, value, limit)| value > u64::from(limit)) {
            Some((name, value, limit)) => Err(format!("{value} {name} in a step, at most {limit}")),
            None => Ok(()),
        }
    }

    fn row(&mut self, step: &Step, row: &Row, first: usize, book: &Book) -> Found {
        let id = self.request(row).ok_or(format!("line {} has a row and no request", row.line))?;
        let record = book.find(id).ok_or(format!("request {id} has a row and doesn't live"))?;
        let (known, end) = (record.known(), row.start + row.count);
        if record.line != Some(row.line) {
            return Err(format!("request {id} is computed in line {} and has {:?}", row.line, record.line));
        }
        if row.count == 0 || row.count > self.sizes.prefill_chunk_max || end > known {
            return Err(format!("request {id}: tokens {}..{end} of {known} in one step", row.start));
        }
        if row.sample != (end == known) {
            return Err(format!("request {id}: {end} of {known} tokens and sample {}", row.sample));
        }
        match (record.tag, row.adapter) {
            (0, None) => {}
            (tag, Some((_, given))) if tag == given => {}
            (tag, given) => return Err(format!("request {id} wants tag {tag}, the row has {given:?}")),
        }
        for (place, position) in (first..).zip(row.start..end) {
            // what a plan in flight samples the core doesn't know yet
            let pending = position >= record.told();
            let token = if pending { Some(PENDING as u32) } else { record.token(position) };
            let expected = token.map(|token| (token, position, row.line));
            if step.tokens.get(place).copied() != expected {
                return Err(format!(
                    "request {id}: the plan gives {:?} for {expected:?}",
                    step.tokens.get(place)
                ));
            }
        }
        if !self.audit {
            return Ok(());
        }
        let (size, cols) = (self.sizes.page_tokens, self.sizes.cols as usize);
        let line = row.line as usize * cols;
        let page_of = |worker: &Self, position: u32| {
            let col = (position / size) as usize;
            let page = worker.table.get(line + col).copied().filter(|_| col < cols);
            page.filter(|&page| page < worker.sizes.pages)
                .ok_or(format!("request {id}: position {position} has no page"))
        };
        // the last token of each page before the row: it depends on all tokens up to it
        let mut position = 0;
        while position < row.start {
            let last = ((position / size + 1) * size).min(row.start) - 1;
            let page = page_of(self, last)?;
            let held = self.pages[page as usize];
            let there = matches!(held, Held::Kv { filled } if filled > last % size);
            if !there || Some(self.kv[(page * size + last % size) as usize]) != record.content(last) {
                return Err(format!("request {id}: page {page} doesn't hold its token {last} but {held:?}"));
            }
            position = last + 1;
        }
        for position in row.start..end {
            let page = page_of(self, position)?;
            let (cell, place) = ((page * size + position % size) as usize, position % size);
            let content = record.content(position).unwrap_or(0);
            let filled = match self.pages[page as usize] {
                // the same again changes nothing for those who share the page
                Held::Kv { filled } if filled > place && self.kv[cell] == content => filled,
                _ => place + 1,
            };
            self.kv[cell] = content;
            self.pages[page as usize] = Held::Kv { filled };
        }
        Ok(())
    }

    /// Looks at the bytes of an adapter that rows use.
    fn weights(&self, slot: u32, tag: u32) -> Found {
        let loaded = self.slots.get(slot as usize).and_then(Option::as_ref);
        let Some(loaded) = loaded.filter(|loaded| loaded.tag == tag) else {
            return Err(format!("a row wants tag {tag}, slot {slot} has {loaded:?}"));
        };
        for (&page, part) in loaded.pages.iter().zip(0..).filter(|_| self.audit) {
            let held = self.pages[page as usize];
            if held != (Held::Weights { adapter: loaded.adapter, part }) {
                return Err(format!("page {page} of adapter {} was written over: {held:?}", loaded.adapter));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
