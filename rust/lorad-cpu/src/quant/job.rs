//! A product in tasks: each makes some columns of y, panel by panel, adds what adapters add to them, and puts them through
//! the gate, all while they are near.

use std::cell::RefCell;
use std::ops::Range;

use super::{Along, QuantMatrix};
use crate::activation::{gate_row, Gate};
use crate::cpu::Cpu;
use crate::error::{length, require};
use crate::fetch::Fetch;
use crate::lora::{Delta, Input, Target};
use crate::pool::bundles;
use crate::shared::Parts;
use crate::OpError;

/// Tasks that each thread gets.
const TASKS: usize = 4;
/// Widened panels that a thread keeps at once: what stays in the second-level cache beside activations.
pub(super) const PANEL_BYTES: usize = 160 << 10;
/// And their number at most.
pub(super) const PANELS_MAX: usize = 16;
/// Columns of the gate and of what it multiplies are cut alike, at whole panels.
pub const GATED_ROWS: usize = 64;

/// How panels are multiplied. A thread keeps some of them, by slots.
pub(super) trait Product: Sync {
    /// Begins a thread's work on some panels.
    fn enter(&self) {}
    /// Ends it.
    fn leave(&self) {}
    /// Widens the rows of a panel, fetching something else meanwhile.
    fn fill(&self, slot: usize, rows: Range<usize>, fetch: &mut Fetch);
    /// Whether what adapters leave to tiles is part of the product.
    fn takes_tiled(&self) -> bool {
        false
    }
    /// Multiplies some tokens with them, likewise.
    fn multiply(
        &self,
        slot: usize,
        rows: Range<usize>,
        tokens: Range<usize>,
        to: Target<'_, '_>,
        fetch: &mut Fetch,
    );
}

/// The panel of a slot.
pub(super) fn at<T: Default>(panels: &mut Vec<T>, slot: usize) -> &mut T {
    while panels.len() <= slot {
        panels.push(T::default());
    }
    &mut panels[slot]
}

/// A call.
pub(super) struct Job<'a> {
    cpu: &'a Cpu,
    /// Rows of x.
    pub tokens: usize,
    /// Rows of a panel.
    pub panel_rows: usize,
    /// Panels that are kept at once, and tokens that pass by them.
    pub panels_max: usize,
    /// See `panels_max`.
    pub tokens_max: usize,
    /// Steps that a panel has, for what is fetched meanwhile; 0: it takes nothing along.
    pub steps: usize,
    /// Rows of the weight.
    rows: usize,
    gate: Option<Gate>,
    delta: Option<Delta<'a>>,
}

thread_local! {
    /// s of what is taken by itself, and both halves of what goes through a gate then.
    static SHRUNK: RefCell<[Vec<f32>; 2]> = RefCell::default();
    static GATED: RefCell<Vec<f32>> = RefCell::default();
    static FETCH: RefCell<Fetch> = RefCell::default();
}

/// What a task does while it multiplies panels.
struct Beside<'a> {
    /// Where rows go that don't go through the gate yet, `[n, rows]`; empty if all do.
    aside: Option<&'a Parts<'a, f32>>,
    /// Units to shrink.
    units: Vec<usize>,
    /// Of what, with what, and where to.
    of: Option<(&'a Delta<'a>, Input<'a>, &'a Parts<'a, f32>)>,
}

impl Beside<'_> {
    const NOTHING: Self = Self { aside: None, units: Vec::new(), of: None };

    /// Those for a turn.
    fn part(&self, turn: usize, turns: usize) -> Range<usize> {
        self.units.len() * turn / turns..self.units.len() * (turn + 1) / turns
    }

    /// Names what they read.
    fn fetch(&self, part: Range<usize>, fetch: &mut Fetch) {
        if let Some((delta, ..)) = self.of {
            self.units[part].iter().for_each(|unit| delta.fetch_a(*unit, fetch));
        }
    }

    /// Does it.
    fn run(&self, part: Range<usize>) {
        if let Some((delta, x, s)) = self.of {
            // SAFETY: each unit is in one task.
            self.units[part].iter().for_each(|unit| unsafe { delta.shrink_alone(*unit, x, s) });
        }
    }
}

impl<'a> Job<'a> {
    /// Checks shapes. `tiled`: see [`Delta::new`].
    pub fn new(
        cpu: &'a Cpu,
        matrix: &QuantMatrix,
        y: usize,
        x: usize,
        along: &Along<'a>,
        tiled: usize,
    ) -> Result<Self, OpError> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let tokens = x / cols;
        length("x", tokens * cols, x)?;
        let whole = along.gate.is_none() || rows.is_multiple_of(GATED_ROWS);
        require(whole, "a gated product needs rows in multiples of 64: rows", rows)?;
        let width = if along.gate.is_some() { rows / 2 } else { rows };
        length("y", tokens * width, y)?;
        let delta = match &along.adapters {
            Some((adapters, modules)) => Some(Delta::new(cpu, adapters, modules, tokens, cols, rows, tiled)?),
            None => None,
        };
        let (panel_rows, panels_max, tokens_max, steps) = (1, 1, 1, 0);
        Ok(Self { cpu, tokens, panel_rows, panels_max, tokens_max, steps, rows, gate: along.gate, delta })
    }

    /// What adapters add.
    pub fn delta(&self) -> Option<&Delta<'a>> {
        self.delta.as_ref()
    }

    /// The first of what adapters need, and `others` other tasks.
    pub fn shrink(&mut self, input: Input<'_>, others: usize, other: &(dyn Fn(usize) + Sync)) {
        match &mut self.delta {
            Some(delta) => delta.shrink(input, others, other),
            None => self.cpu.pool.run(others, other),
        }
    }

    /// Makes y of x, `product` being what multiplies a panel.
    pub fn run(&self, y: &mut [f32], x: Input<'_>, product: &dyn Product) {
        match self.delta.as_ref().filter(|delta| delta.has_alone()) {
            Some(delta) => self.run_beside(delta, y, x, product),
            None => {
                let y = Parts::new(y);
                self.run_all(&y, &|_| Beside::NOTHING, product);
            }
        }
    }

    /// All columns of y, through the gate if there is one, in tasks, each of which does something `beside`.
    fn run_all<'b>(
        &self,
        y: &Parts<'_, f32>,
        beside: &(dyn Fn(Range<usize>) -> Beside<'b> + Sync),
        product: &dyn Product,
    ) {
        let width = self.width();
        let panels = width.div_ceil(self.panel_rows);
        let threads = self.cpu.pool.threads();
        let tasks = if threads == 1 { 1 } else { panels.min(threads * TASKS) };
        self.cpu.pool.run(tasks, &|task| {
            let begin = panels * task / tasks * self.panel_rows;
            let columns = begin..width.min(panels * (task + 1) / tasks * self.panel_rows);
            product.enter();
            FETCH.with_borrow_mut(|fetch| {
                self.run_columns(y, columns, &beside(task..tasks), fetch, product);
            });
            product.leave();
        });
    }

    /// Units that are taken by themselves: their A beside the product, their B after it, row by row. What goes through the
    /// gate is put aside for that.
    fn run_beside(&self, delta: &Delta<'_>, y: &mut [f32], x: Input<'_>, product: &dyn Product) {
        let runs = delta.runs();
        SHRUNK.with_borrow_mut(|[s, aside]| {
            let room = |buffer: &mut Vec<f32>, len: usize| buffer.resize(buffer.len().max(len), 0.0);
            room(s, delta.floats());
            room(aside, if self.gate.is_some() { self.tokens * self.rows } else { 0 });
            let (s, y, aside) = (Parts::new(s), Parts::new(y), Parts::new(aside));
            let beside = |task: Range<usize>| Beside {
                aside: self.gate.is_some().then_some(&aside),
                units: delta.share(task),
                of: Some((delta, x, &s)),
            };
            self.run_all(&y, &beside, product);
            let made = Target { y: if self.gate.is_some() { &aside } else { &y }, at: 0, stride: self.rows };
            let bundles = bundles(&runs.costs, self.cpu.pool.threads() * TASKS);
            self.cpu.pool.run(bundles.len(), &|task| {
                let gate = |tokens: Range<usize>| {
                    for token in tokens {
                        // SAFETY: tasks have disjoint rows, and this one has ended writing it.
                        unsafe {
                            self.gate(token, aside.read(token * self.rows, self.rows), 0..self.width(), &y)
                        };
                    }
                };
                let expanded: &dyn Fn(Range<usize>) = if self.gate.is_some() { &gate } else { &|_| () };
                // SAFETY: the product is complete; tasks have disjoint rows.
                FETCH.with_borrow_mut(|fetch| unsafe {
                    delta.expand_runs(&runs, bundles[task].clone(), &s, made, fetch, expanded);
                });
            });
        });
    }

    /// Puts both halves of some columns of a token through the gate.
    ///
    /// # Safety
    /// Nobody else may use these columns of y's row meanwhile.
    unsafe fn gate(&self, token: usize, both: &[f32], columns: Range<usize>, y: &Parts<'_, f32>) {
        let (z, up) = both.split_at(columns.len());
        // SAFETY: the caller's promise.
        let y = unsafe { y.part(token * self.width() + columns.start, columns.len()) };
        if let Some(gate) = self.gate {
            gate_row(self.cpu.level, gate, y, z, up);
        }
    }

    /// Keeps both halves of some columns of a token.
    ///
    /// # Safety
    /// Nobody else may use these columns of both halves meanwhile.
    unsafe fn put_aside(&self, token: usize, both: &[f32], columns: Range<usize>, aside: &Parts<'_, f32>) {
        for (half, values) in both.chunks_exact(columns.len()).enumerate() {
            let at = token * self.rows + half * self.width() + columns.start;
            // SAFETY: the caller's promise.
            unsafe { aside.part(at, values.len()) }.copy_from_slice(values);
        }
    }

    /// Whether something is added to a token's row once the product is complete.
    fn waits(&self, token: usize) -> bool {
        self.delta.as_ref().is_some_and(|delta| delta.waits(token))
    }

    /// Columns of y.
    fn width(&self) -> usize {
        self.rows / self.halves()
    }

    /// Parts of equal rows that the weight has.
    fn halves(&self) -> usize {
        if self.gate.is_some() {
            2
        } else {
            1
        }
    }

    /// Makes some columns of y, to the end.
    fn run_columns(
        &self,
        y: &Parts<'_, f32>,
        columns: Range<usize>,
        beside: &Beside<'_>,
        fetch: &mut Fetch,
        product: &dyn Product,
    ) {
        let (width, halves) = (self.width(), self.halves());
        // What is fetched should be used soon.
        let few = !beside.units.is_empty() && self.tokens <= self.tokens_max;
        let kept = if few { 1 } else { (self.panels_max / halves).max(1) };
        let turns = columns.len().div_ceil(kept * self.panel_rows);
        for turn in 0..turns {
            let first = columns.start + turn * kept * self.panel_rows;
            let columns = first..columns.end.min(first + kept * self.panel_rows);
            let units = beside.part(turn, turns);
            fetch.clear();
            if self.steps > 0 {
                beside.fetch(units.clone(), fetch);
                fetch.spread(self.steps * halves * columns.len().div_ceil(self.panel_rows));
            }
            for half in 0..halves {
                for (slot, rows) in self.panels(half * width, &columns).enumerate() {
                    product.fill(half * kept + slot, rows, fetch);
                }
            }
            for begin in (0..self.tokens).step_by(self.tokens_max) {
                let tokens = begin..self.tokens.min(begin + self.tokens_max);
                if halves == 1 {
                    let to = Target { y, at: begin * width + columns.start, stride: width };
                    self.part(0, 0, &columns, tokens, to, fetch, product);
                    continue;
                }
                let (count, stride) = (columns.len(), columns.len() * 2);
                GATED.with_borrow_mut(|both| {
                    both.resize(both.len().max(tokens.len() * stride), 0.0);
                    let parts = Parts::new(both);
                    for half in 0..2 {
                        let to = Target { y: &parts, at: half * count, stride };
                        self.part(half * width, half * kept, &columns, tokens.clone(), to, fetch, product);
                    }
                    for (token, both) in tokens.zip(both.chunks_exact(stride)) {
                        let aside = beside.aside.filter(|_| self.waits(token));
                        // SAFETY: tasks have disjoint columns.
                        unsafe {
                            match aside {
                                None => self.gate(token, both, columns.clone(), y),
                                Some(aside) => self.put_aside(token, both, columns.clone(), aside),
                            }
                        }
                    }
                });
            }
            beside.run(units);
        }
    }

    /// The rows of each panel of these columns of y, of which the first is row `begin`.
    fn panels(&self, begin: usize, columns: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (columns, each) = (columns.clone(), self.panel_rows);
        columns.clone().step_by(each).map(move |first| begin + first..begin + columns.end.min(first + each))
    }

    /// Makes the products of panels from `slot` on, and what adapters add to them by columns.
    fn part(
        &self,
        begin: usize,
        slot: usize,
        columns: &Range<usize>,
        tokens: Range<usize>,
        to: Target<'_, '_>,
        fetch: &mut Fetch,
        product: &dyn Product,
    ) {
        for (number, rows) in self.panels(begin, columns).enumerate() {
            let to = Target { at: to.at + number * self.panel_rows, ..to };
            product.multiply(slot + number, rows, tokens.clone(), to, fetch);
        }
        if let Some(delta) = &self.delta {
            let columns = begin + columns.start..begin + columns.end;
            // SAFETY: tasks have disjoint columns of y.
            unsafe {
                delta.expand(columns.clone(), tokens.clone(), to);
                if !product.takes_tiled() {
                    delta.expand_tiled(self.cpu.level, columns.clone(), tokens.clone(), to);
                }
                delta.finish(columns, tokens, to);
            }
        }
    }

    /// Ends the call; see [`QuantMatrix::matmul`].
    pub fn end(self, y: &mut [f32]) -> Vec<usize> {
        let width = self.width();
        self.delta.map_or_else(Vec::new, |delta| {
            delta.poison(y, width);
            delta.wrong()
        })
    }
}
