//! The page table: one line per running request, one column per page.

use lorad_blocks::pool::PageId;
use lorad_blocks::prefix::NodeId;

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Nobody's.
    Free,
    /// A request's, until it's finished or preempted.
    Held {
        /// Entry of the request.
        request: u32,
        /// Pages in the line.
        pages: u32,
        /// How many of them the worker was told, from the left.
        told: u32,
        /// Was the worker told that this line is a new request's?
        opened: bool,
        /// How many of them the prefix cache has, from the left.
        cached: u32,
        /// The last of these, which the request holds.
        node: Option<NodeId>,
    },
}

/// All lines and their pages.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    lines: Vec<Line>,
    free: Vec<u32>,
    table: Vec<PageId>,
    cols: u32,
}

impl Lines {
    pub fn new(rows_max: u32, cols: u32) -> Self {
        Self {
            lines: vec![Line::Free; rows_max as usize],
            free: (0..rows_max).rev().collect(),
            table: vec![0; rows_max as usize * cols as usize],
            cols,
        }
    }

    /// Lines that are nobody's.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// All lines.
    pub fn all(&self) -> &[Line] {
        &self.lines
    }

    /// Takes a line for a request.
    pub fn take(&mut self, request: u32) -> Option<u32> {
        let line = self.free.pop()?;
        self.lines[line as usize] =
            Line::Held { request, pages: 0, told: 0, opened: false, cached: 0, node: None };
        Some(line)
    }

    /// Gives a line back; its pages went back before.
    pub fn give(&mut self, line: u32) {
        self.lines[line as usize] = Line::Free;
        self.free.push(line);
    }

    /// The pages of a line.
    pub fn pages(&self, line: u32) -> &[PageId] {
        let start = line as usize * self.cols as usize;
        &self.table[start..start + self.length(line) as usize]
    }

    /// Pages in a line.
    pub fn length(&self, line: u32) -> u32 {
        match self.lines[line as usize] {
            Line::Free => 0,
            Line::Held { pages, .. } => pages,
        }
    }

    /// Adds a page at the right; the caller has seen to it that the line isn't longer than a sequence may be.
    pub fn push(&mut self, line: u32, page: PageId) {
        if let Line::Held { pages, .. } = &mut self.lines[line as usize] {
            self.table[line as usize * self.cols as usize + *pages as usize] = page;
            *pages += 1;
        }
    }

    /// Replaces a page of a line; the worker is told again.
    pub fn set(&mut self, line: u32, col: u32, page: PageId) {
        if let Line::Held { pages, told, .. } = &mut self.lines[line as usize] {
            if col < *pages {
                self.table[line as usize * self.cols as usize + col as usize] = page;
                *told = col.min(*told);
            }
        }
    }

    /// Pages of a line that the prefix cache has, and the last of them.
    pub fn cached(&self, line: u32) -> (u32, Option<NodeId>) {
        match self.lines[line as usize] {
            Line::Free => (0, None),
            Line::Held { cached, node, .. } => (cached, node),
        }
    }

    /// Says how many pages of a line the prefix cache has, and which is the last of them.
    pub fn set_cached(&mut self, line: u32, count: u32, last: Option<NodeId>) {
        if let Line::Held { cached, node, .. } = &mut self.lines[line as usize] {
            (*cached, *node) = (count, last);
        }
    }

    /// Says what the worker wasn't told yet about a line (the first new column, whether it's new) and marks it told; `None`
    /// when it knows all, as most times.
    pub fn tell(&mut self, line: u32) -> Option<(u32, bool)> {
        match &mut self.lines[line as usize] {
            Line::Held { pages, told, opened, .. } if !*opened || *told < *pages => {
                Some((std::mem::replace(told, *pages), !std::mem::replace(opened, true)))
            }
            Line::Held { .. } | Line::Free => None,
        }
    }

    /// Compares the free list with the lines.
    pub fn check(&self) -> Result<(), String> {
        let free = self.lines.iter().filter(|line| **line == Line::Free).count();
        if free != self.free.len() || self.free.iter().any(|&line| self.lines[line as usize] != Line::Free) {
            return Err(format!("lines: {free} are free, {} on the free list", self.free.len()));
        }
        for (number, line) in self.lines.iter().enumerate() {
            if let Line::Held { pages, told, cached, node, .. } = line {
                if told > pages || cached > pages || *pages > self.cols || (*cached > 0) != node.is_some() {
                    return Err(format!("lines: line {number} has {line:?} of {} columns", self.cols));
                }
            }
        }
        Ok(())
    }
}
