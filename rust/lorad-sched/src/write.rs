//! Writing the plan: the chosen rows and page-ins as arrays.

use crate::adapter::Residency;
use crate::core::Core;
use crate::plan::{Head, Part, PENDING};
use crate::step::Chosen;

impl Core {
    pub(crate) fn write(&mut self, number: u64, plan: &mut [i32]) {
        self.write_rows(plan);
        self.write_groups(plan);
        let tokens = self.write_tokens(plan);
        self.write_lines(plan);
        self.write_pages(plan);
        self.layout.set_head(plan, Head::Step, number as usize & 0x7fff_ffff);
        self.layout.set_head(plan, Head::Rows, self.chosen.len());
        self.layout.set_head(plan, Head::Tokens, tokens);
        self.layout.set_head(plan, Head::Samples, self.samples());
    }

    /// Rows of the plan that sample a token.
    pub(crate) fn samples(&self) -> usize {
        self.chosen.iter().filter(|row| row.sample).count()
    }

    /// Column by column, so that a section's bounds are looked up once.
    fn write_rows(&self, plan: &mut [i32]) {
        let mut write = |part: Part, value: fn(&Chosen) -> u32| {
            for (element, row) in self.layout.part_mut(plan, part).iter_mut().zip(&self.chosen) {
                *element = value(row) as i32;
            }
        };
        write(Part::RowLine, |row| row.line);
        write(Part::RowSlot, |row| row.adapter.map_or(-1i32 as u32, |(slot, _)| slot));
        write(Part::RowTag, |row| row.adapter.map_or(0, |(_, tag)| tag));
        write(Part::RowStart, |row| row.start);
        write(Part::RowSample, |row| row.sample.into());
        let mut tokens = 0;
        let offsets = self.layout.part_mut(plan, Part::RowOffset);
        for (offset, count) in
            offsets.iter_mut().zip([0].into_iter().chain(self.chosen.iter().map(|row| row.count)))
        {
            tokens += count;
            *offset = tokens as i32;
        }
    }

    /// Runs of rows of one adapter.
    fn write_groups(&self, plan: &mut [i32]) {
        let (mut groups, mut tokens) = (0usize, 0);
        for rows in self.chosen.chunk_by(|one, two| one.adapter == two.adapter) {
            let begin = tokens;
            tokens += rows.iter().map(|row| row.count).sum::<u32>();
            let Some((slot, tag)) = rows[0].adapter else { continue };
            self.layout.set(plan, Part::GroupSlot, groups, slot);
            self.layout.set(plan, Part::GroupTag, groups, tag);
            self.layout.set(plan, Part::GroupBegin, groups, begin);
            self.layout.set(plan, Part::GroupEnd, groups, tokens);
            groups += 1;
        }
        self.layout.set_head(plan, Head::Groups, groups);
    }

    fn write_tokens(&self, plan: &mut [i32]) -> usize {
        let mut first = 0;
        for row in &self.chosen {
            let (request, end) = (&self.requests[row.request], first + row.count as usize);
            let ids = &mut self.layout.part_mut(plan, Part::TokenId)[first..end];
            if row.start >= request.length() {
                ids.fill(PENDING);
            } else if let ([id], true) = (&mut *ids, row.sample) {
                *id = request.last as i32; // decoding; the others are out of the CPU's caches
            } else {
                let known = &request.tokens[row.start as usize..(row.start + row.count) as usize];
                ids.iter_mut().zip(known).for_each(|(id, &token)| *id = token as i32);
            }
            let places = &mut self.layout.part_mut(plan, Part::TokenPos)[first..end];
            places.iter_mut().zip(row.start..).for_each(|(place, position)| *place = position as i32);
            self.layout.part_mut(plan, Part::TokenLine)[first..end].fill(row.line as i32);
            first = end;
        }
        first
    }

    /// What the worker doesn't know yet about the rows' lines.
    fn write_lines(&mut self, plan: &mut [i32]) {
        let layout = &self.layout;
        let (mut edits, mut opened) = (0usize, 0usize);
        for row in &self.chosen {
            let Some((told, new)) = self.lines.tell(row.line) else { continue };
            let pages = self.lines.pages(row.line);
            for (col, &page) in pages.iter().enumerate().skip(told as usize) {
                layout.set(plan, Part::EditLine, edits, row.line);
                layout.set(plan, Part::EditCol, edits, col as u32);
                layout.set(plan, Part::EditPage, edits, page);
                edits += 1;
            }
            if new {
                let id = self.requests[row.request].id;
                layout.set(plan, Part::OpenLine, opened, row.line);
                layout.set(plan, Part::OpenRequestLo, opened, id as u32);
                layout.set(plan, Part::OpenRequestHi, opened, (id >> 32) as u32);
                opened += 1;
            }
        }
        layout.set_head(plan, Head::Edits, edits);
        layout.set_head(plan, Head::Opened, opened);
    }

    /// What happens to pages and slots before the rows are computed.
    fn write_pages(&mut self, plan: &mut [i32]) {
        let layout = &self.layout;
        for (index, &slot) in self.adapters.clears.iter().enumerate() {
            layout.set(plan, Part::ClearSlot, index, slot);
        }
        for (index, copy) in self.copies.iter().enumerate() {
            let target = self.lines.pages(copy.line)[copy.col as usize];
            layout.set(plan, Part::CopySource, index, copy.source.page());
            layout.set(plan, Part::CopyTarget, index, target);
        }
        let mut pages = 0usize;
        layout.set(plan, Part::PageinBegin, 0, 0);
        for (index, &entry) in self.page_ins.iter().enumerate() {
            let adapter = &self.adapters[entry];
            let Residency::Loading { slot, .. } = adapter.residency else { continue };
            layout.set(plan, Part::PageinAdapter, index, adapter.id.number());
            layout.set(plan, Part::PageinSlot, index, slot);
            layout.set(plan, Part::PageinTag, index, adapter.spec.tag);
            // a slot's padding holds nothing
            for &page in adapter.image.iter().take(adapter.spec.pages as usize) {
                layout.set(plan, Part::PageinPage, pages, page);
                pages += 1;
            }
            layout.set(plan, Part::PageinBegin, index + 1, pages as u32);
        }
        layout.set_head(plan, Head::PageIns, self.page_ins.len());
        layout.set_head(plan, Head::PageInPages, pages);
        layout.set_head(plan, Head::Clears, self.adapters.clears.len());
        layout.set_head(plan, Head::Copies, self.copies.len());
        self.adapters.clears.clear();
    }
}
