//! Reading a plan out of the core's buffer.

use lorad_sched::plan::{Head, Part, PlanView};

use crate::step::{Group, PageIn, Row, Step};

/// Reads a plan; the memory of `step` is used again.
pub fn read(number: u64, view: &PlanView<'_>, step: &mut Step) {
    let at = |part, index: usize| view.part(part).get(index).copied().unwrap_or(0) as u32;
    step.number = number;
    step.rows.clear();
    step.rows.extend((0..view.rows()).map(|row| {
        let row = view.row(row);
        Row { line: row.line, adapter: row.adapter, start: row.start, count: row.count, sample: row.sample }
    }));
    step.tokens.clear();
    step.tokens.extend(
        (0..view.tokens())
            .map(|token| (at(Part::TokenId, token), at(Part::TokenPos, token), at(Part::TokenLine, token))),
    );
    step.groups.clear();
    step.groups.extend((0..at(Part::Header, Head::Groups as usize) as usize).map(|group| Group {
        slot: at(Part::GroupSlot, group),
        tag: at(Part::GroupTag, group),
        begin: at(Part::GroupBegin, group),
        end: at(Part::GroupEnd, group),
    }));
    step.edits.clear();
    step.edits.extend(view.edits());
    step.opened.clear();
    step.opened.extend(view.opened());
    step.clears.clear();
    step.clears.extend(view.clears().iter().map(|&slot| slot as u32));
    step.copies.clear();
    step.copies.extend(view.copies());
    step.page_ins.clear();
    step.page_ins.extend(view.page_ins().map(|load| PageIn {
        adapter: load.adapter.number(),
        slot: load.slot,
        tag: load.tag,
        pages: load.pages.iter().map(|&page| page as u32).collect(),
    }));
}
