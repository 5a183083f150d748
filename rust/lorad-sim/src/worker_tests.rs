use super::*;
use crate::step::Group;
use crate::trace::Ask;

const SIZES: Sizes = Sizes {
    pages: 8,
    page_tokens: 2,
    rows_max: 3,
    cols: 4,
    slots_max: 2,
    tokens_max: 6,
    prefill_chunk_max: 4,
    adapters_step_max: 2,
};

/// Request 5 on adapter 9 (tag 7, two pages) and request 6 on the base; both were admitted.
fn book() -> Book {
    let mut book = Book::default();
    for (id, tag, line) in [(5, 7, 0), (6, 0, 1)] {
        let ask = Ask { id, prompt: 3, max_tokens: 4, ..Ask::default() };
        book.open(ask, tag, vec![10, 11, 12], 0, None);
        book.admitted(id, line, 0).unwrap();
    }
    book
}

/// A worker with adapter 9 in slot 1, pages 6 and 7.
fn worker(book: &Book) -> Worker {
    let mut worker = Worker::new(SIZES, true);
    let load = PageIn { adapter: 9, slot: 1, tag: 7, pages: vec![6, 7] };
    let step = Step { page_ins: vec![load], ..Step::default() };
    worker.apply(&step, book, adapter).unwrap();
    worker.arrived(9, false).unwrap();
    worker
}

fn adapter(number: u32) -> Option<(u32, u32)> {
    (number == 9).then_some((7, 2))
}

/// The first step of request 5: three tokens in pages 0 and 1.
fn prompt() -> Step {
    Step {
        rows: vec![Row { line: 0, adapter: Some((1, 7)), start: 0, count: 3, sample: true }],
        tokens: vec![(10, 0, 0), (11, 1, 0), (12, 2, 0)],
        groups: vec![Group { slot: 1, tag: 7, begin: 0, end: 3 }],
        edits: vec![(0, 0, 0), (0, 1, 1)],
        opened: vec![(0, 5)],
        ..Step::default()
    }
}

/// Its next one, after a token 13.
fn decode() -> Step {
    Step {
        rows: vec![Row { line: 0, adapter: Some((1, 7)), start: 3, count: 1, sample: true }],
        tokens: vec![(13, 3, 0)],
        groups: vec![Group { slot: 1, tag: 7, begin: 0, end: 1 }],
        ..Step::default()
    }
}

/// The first step of request 6 on these pages.
fn base(pages: [u32; 2]) -> Step {
    Step {
        rows: vec![Row { line: 1, adapter: None, start: 0, count: 3, sample: true }],
        tokens: vec![(10, 0, 1), (11, 1, 1), (12, 2, 1)],
        edits: vec![(1, 0, pages[0]), (1, 1, pages[1])],
        opened: vec![(1, 6)],
        ..Step::default()
    }
}

/// Runs the prompt, books token 13, then a step between and the decode.
fn after(between: Step) -> Found {
    let mut book = book();
    let mut worker = worker(&book);
    worker.apply(&prompt(), &book, adapter)?;
    book.sampled(5, 13);
    book.promise(5, Some(13));
    book.token(5, 13, 1)?;
    worker.apply(&between, &book, adapter)?;
    worker.apply(&decode(), &book, adapter)
}

fn refused(found: Found, what: &str) {
    let text = found.expect_err(what);
    assert!(text.contains(what), "{text} instead of {what}");
}

#[test]
fn right_plans_pass() {
    after(Step::default()).unwrap();
    after(base([2, 3])).unwrap();
}

#[test]
fn a_token_that_the_core_doesnt_know_is_pending() {
    let mut book = book();
    let mut worker = worker(&book);
    worker.apply(&prompt(), &book, adapter).unwrap();
    book.sampled(5, 13);
    refused(worker.clone().apply(&decode(), &book, adapter), "the plan gives Some((13, 3, 0))");
    let pending = (lorad_sched::PENDING as u32, 3, 0);
    worker.apply(&Step { tokens: vec![pending], ..decode() }, &book, adapter).unwrap();
}

#[test]
fn pages_of_others_are_found() {
    refused(after(base([0, 3])), "page 0 doesn't hold its token 1");
    refused(after(base([2, 1])), "page 1 doesn't hold its token 2");
    refused(after(base([6, 3])), "page 6 of adapter 9 was written over");
    let moved = Step { edits: vec![(0, 0, 4)], ..Step::default() };
    refused(after(moved), "page 4 doesn't hold its token 1");
    let load = |pages| PageIn { adapter: 9, slot: 0, tag: 7, pages };
    let copied = Step { page_ins: vec![load(vec![1, 4])], ..Step::default() };
    refused(after(copied), "page 1 doesn't hold its token 2");
    let cleared = Step { clears: vec![1], ..Step::default() };
    refused(after(cleared), "wants tag 7, slot 1 has None");
}

#[test]
fn wrong_rows_are_found() {
    let run = |change: fn(&mut Step)| {
        let (book, mut step) = (book(), prompt());
        change(&mut step);
        worker(&book).apply(&step, &book, adapter)
    };
    refused(run(|step| step.rows[0].adapter = Some((1, 8))), "tokens by adapter");
    refused(
        run(|step| {
            step.rows[0].adapter = None;
            step.groups.clear();
        }),
        "wants tag 7, the row has None",
    );
    refused(run(|step| step.rows[0].sample = false), "3 of 3 tokens and sample false");
    refused(run(|step| step.tokens[1] = (12, 1, 0)), "the plan gives Some((12, 1, 0))");
    refused(run(|step| step.opened.clear()), "no request");
    refused(run(|step| step.opened[0].1 = 6), "is computed in line 0 and has Some(1)");
    refused(run(|step| step.edits[1] = (0, 1, 8)), "no edit of line 0");
    refused(run(|step| step.rows[0].count = 2), "the rows have [(1, 7, 0, 2)]");
    refused(run(|step| step.tokens.truncate(2)), "rows of 3 tokens, 2 are given");
    refused(run(|step| step.edits.truncate(1)), "position 2 has no page");
}

#[test]
fn wrong_page_ins_are_found() {
    let run = |slot, tag, pages: &[u32]| {
        let book = book();
        let load = PageIn { adapter: 9, slot, tag, pages: pages.to_vec() };
        worker(&book).apply(&Step { page_ins: vec![load], ..Step::default() }, &book, adapter)
    };
    run(0, 7, &[1, 2]).unwrap();
    refused(run(1, 7, &[1, 2]), "slot 1, which isn't empty");
    refused(run(0, 6, &[1, 2]), "another size or tag");
    refused(run(0, 7, &[1]), "another size or tag");
    refused(run(0, 7, &[1, 9]), "no page 9");
    refused(Worker::new(SIZES, true).arrived(9, false), "wasn't on its way");
}

#[test]
fn the_same_content_may_be_shared() {
    // request 6 with the adapter, tenant and tokens of request 5 begins with its first page
    let mut book = book();
    let ask = Ask { id: 8, prompt: 3, max_tokens: 4, ..Ask::default() };
    book.open(ask, 7, vec![10, 11, 99], 0, None);
    book.admitted(8, 2, 0).unwrap();
    let mut worker = worker(&book);
    worker.apply(&prompt(), &book, adapter).unwrap();
    let shared = |page| Step {
        rows: vec![Row { line: 2, adapter: Some((1, 7)), start: 2, count: 1, sample: true }],
        tokens: vec![(99, 2, 2)],
        groups: vec![Group { slot: 1, tag: 7, begin: 0, end: 1 }],
        edits: vec![(2, 0, page), (2, 1, 3)],
        opened: vec![(2, 8)],
        ..Step::default()
    };
    worker.apply(&shared(0), &book, adapter).unwrap();
    refused(worker.apply(&shared(1), &book, adapter), "page 1 doesn't hold its token 1");
}
