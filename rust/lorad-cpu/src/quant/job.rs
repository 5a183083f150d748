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
    /// Columns of y.
    width: usize,
    gate: Option<Gate>,
    delta: Option<Delta<'a>>,
}

thread_local! {
    /// What many adapters add, and both halves of what goes through a gate then.
    static MADE: RefCell<[Vec<f32>; 2]> = RefCell::default();
    static GATED: RefCell<Vec<f32>> = RefCell::default();
    static FETCH: RefCell<Fetch> = RefCell::default();
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
        Ok(Self { cpu, tokens, panel_rows, panels_max, tokens_max, steps, width, gate: along.gate, delta })
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
        let panels = self.width.div_ceil(self.panel_rows);
        let threads = self.cpu.pool.threads();
        let tasks = if threads == 1 { 1 } else { panels.min(threads * TASKS) };
        let columns = |task: usize| {
            let begin = panels * task / tasks * self.panel_rows;
            begin..self.width.min(panels * (task + 1) / tasks * self.panel_rows)
        };
        let Some(delta) = self.delta.as_ref().filter(|delta| delta.has_alone()) else {
            let y = Parts::new(y);
            self.cpu.pool.run(tasks, &|task| self.run_columns(&y, columns(task), None, product));
            return;
        };
        let (shares, width) = (delta.shares(tasks), self.width * self.halves());
        MADE.with_borrow_mut(|[made, both]| {
            let room = |buffer: &mut Vec<f32>| buffer.resize(buffer.len().max(self.tokens * width), 0.0);
            room(made);
            let made = Parts::new(made);
            let made = Target { y: &made, at: 0, stride: width };
            if self.steps == 0 || self.tokens > self.tokens_max {
                // SAFETY: each unit is in one share.
                self.cpu.pool.run(tasks, &|task| unsafe {
                    shares[task].iter().for_each(|unit| delta.run_unit(*unit, x, made, false));
                });
                let y = Parts::new(y);
                self.cpu.pool.run(tasks, &|task| self.run_columns(&y, columns(task), Some(made), product));
                return;
            }
            let Some(gate) = self.gate else {
                self.run_beside(delta, &shares, &Parts::new(y), x, made, &columns, product);
                return;
            };
            room(both);
            let both = Parts::new(both);
            self.run_beside(delta, &shares, &both, x, made, &columns, product);
            let y = Parts::new(y);
            self.cpu.pool.run(self.tokens, &|token| {
                // SAFETY: tasks have disjoint rows; `both` is complete.
                let (y, both) =
                    unsafe { (y.part(token * self.width, self.width), both.read(token * width, width)) };
                let (z, up) = both.split_at(self.width);
                gate_row(self.cpu.level, gate, y, z, up);
            });
        });
    }

    /// Makes some columns of y, to the end.
    fn run_columns(
        &self,
        y: &Parts<'_, f32>,
        columns: Range<usize>,
        made: Option<Target<'_, '_>>,
        product: &dyn Product,
    ) {
        product.enter();
        let kept = (self.panels_max / self.halves()).max(1);
        for first in columns.clone().step_by(kept * self.panel_rows) {
            let columns = first..columns.end.min(first + kept * self.panel_rows);
            for half in 0..self.halves() {
                for (slot, rows) in self.panels(half, &columns).enumerate() {
                    product.fill(half * kept + slot, rows, &mut Fetch::default());
                }
            }
            for begin in (0..self.tokens).step_by(self.tokens_max) {
                let tokens = begin..self.tokens.min(begin + self.tokens_max);
                let Some(gate) = self.gate else {
                    let to = Target { y, at: begin * self.width + columns.start, stride: self.width };
                    self.part(0, 0, &columns, tokens, to, made, product);
                    continue;
                };
                let (count, stride) = (columns.len(), columns.len() * 2);
                GATED.with_borrow_mut(|both| {
                    both.resize(both.len().max(tokens.len() * stride), 0.0);
                    let parts = Parts::new(both);
                    for half in 0..2 {
                        let to = Target { y: &parts, at: half * count, stride };
                        self.part(half, half * kept, &columns, tokens.clone(), to, made, product);
                    }
                    for (token, both) in tokens.zip(both.chunks_exact(stride)) {
                        let (z, up) = both.split_at(count);
                        // SAFETY: tasks have disjoint columns of y.
                        let y = unsafe { y.part(token * self.width + columns.start, count) };
                        gate_row(self.cpu.level, gate, y, z, up);
                    }
                });
            }
        }
        product.leave();
    }

    /// The rows of each panel of a half, of these columns of y.
    fn panels(&self, half: usize, columns: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (begin, columns, each) = (half * self.width, columns.clone(), self.panel_rows);
        columns.clone().step_by(each).map(move |first| begin + first..begin + columns.end.min(first + each))
    }

    /// Makes the products of panels from `slot` on, and what adapters add to them.
    fn part(
        &self,
        half: usize,
        slot: usize,
        columns: &Range<usize>,
        tokens: Range<usize>,
        to: Target<'_, '_>,
        made: Option<Target<'_, '_>>,
        product: &dyn Product,
    ) {
        for (number, rows) in self.panels(half, columns).enumerate() {
            let to = Target { at: to.at + number * self.panel_rows, ..to };
            product.multiply(slot + number, rows, tokens.clone(), to, &mut Fetch::default());
        }
        if let Some(delta) = &self.delta {
            let begin = half * self.width;
            let columns = begin + columns.start..begin + columns.end;
            // SAFETY: tasks have disjoint columns of y.
            unsafe {
                delta.expand(columns.clone(), tokens.clone(), to, made);
                if !product.takes_tiled() {
                    delta.expand_tiled(self.cpu.level, columns, tokens, to);
                }
            }
        }
    }

    /// Makes all of y but the gate, `[n, rows]`: tasks multiply panels and meanwhile fetch the weights of an adapter, which
    /// they take next. What adapters add is put aside and added at the end.
    fn run_beside(
        &self,
        delta: &Delta<'_>,
        shares: &[Vec<usize>],
        y: &Parts<'_, f32>,
        x: Input<'_>,
        made: Target<'_, '_>,
        columns: &(dyn Fn(usize) -> Range<usize> + Sync),
        product: &dyn Product,
    ) {
        let (width, tokens) = (self.width * self.halves(), 0..self.tokens);
        let whole = Target { y, at: 0, stride: width };
        self.cpu.pool.run(shares.len(), &|task| {
            let columns = columns(task);
            let panels: Vec<Range<usize>> =
                (0..self.halves()).flat_map(|half| self.panels(half, &columns)).collect();
            let units = &shares[task];
            let turns = panels.len().min(units.len()).max(1);
            product.enter();
            FETCH.with_borrow_mut(|fetch| {
                for turn in 0..turns {
                    let part = |length: usize| length * turn / turns..length * (turn + 1) / turns;
                    let (panels, units) = (&panels[part(panels.len())], &units[part(units.len())]);
                    fetch.clear();
                    units.iter().for_each(|unit| delta.fetch(*unit, fetch));
                    fetch.spread(panels.len() * self.steps);
                    for rows in panels {
                        product.fill(0, rows.clone(), fetch);
                        product.multiply(
                            0,
                            rows.clone(),
                            tokens.clone(),
                            Target { at: rows.start, ..whole },
                            fetch,
                        );
                    }
                    // SAFETY: each unit is in one share.
                    units.iter().for_each(|unit| unsafe { delta.run_unit(*unit, x, made, false) });
                }
            });
            product.leave();
        });
        self.cpu.pool.run(shares.len(), &|task| {
            for half in 0..self.halves() {
                let begin = half * self.width;
                let columns = begin + columns(task).start..begin + columns(task).end;
                let to = Target { at: columns.start, ..whole };
                // SAFETY: tasks have disjoint columns.
                unsafe {
                    delta.expand(columns.clone(), tokens.clone(), to, Some(made));
                    if !product.takes_tiled() {
                        delta.expand_tiled(self.cpu.level, columns, tokens.clone(), to);
                    }
                }
            }
        });
    }

    /// Parts of equal rows that the weight has.
    fn halves(&self) -> usize {
        if self.gate.is_some() {
            2
        } else {
            1
        }
    }

    /// Ends the call; see [`QuantMatrix::matmul`].
    pub fn end(self, y: &mut [f32]) -> Vec<usize> {
        self.delta.map_or_else(Vec::new, |delta| {
            delta.poison(y, self.width);
            delta.wrong()
        })
    }
}
