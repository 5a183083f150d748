//! Many adapters: each is taken by itself, so that its weights are read once and in order, its A beside the product, its B by
//! rows of y that are there.

use std::cell::RefCell;
use std::ops::Range;

use lorad_blocks::layout::Chunk;

use super::delta::{shrink_unit, Delta, Input, Target};
use super::units::Unit;
use crate::fetch::Fetch;
use crate::shared::Parts;

/// Columns for which a part of what comes next is fetched.
const STEP_COLUMNS: usize = 128;

thread_local! {
    /// s of the one unit that a thread is at.
    static UNIT: RefCell<Vec<f32>> = RefCell::default();
}

/// Units by the rows of y that they add to.
pub struct Runs {
    units: Vec<usize>,
    /// For each run its rows, and where its units end.
    rows: Vec<(Range<usize>, usize)>,
    /// What each costs.
    pub costs: Vec<usize>,
}

impl Runs {
    /// Units in the runs before one.
    fn units_before(&self, run: usize) -> usize {
        run.checked_sub(1).map_or(0, |run| self.rows[run].1)
    }

    /// The units of some runs.
    fn units_of(&self, some: Range<usize>) -> &[usize] {
        &self.units[self.units_before(some.start)..self.units_before(some.end)]
    }
}

impl<'a> Delta<'a> {
    /// Whether units are taken by themselves.
    pub fn has_alone(&self) -> bool {
        self.units.all.iter().any(|unit| unit.alone)
    }

    /// Whether all are.
    pub fn is_alone(&self) -> bool {
        self.units.all.iter().all(|unit| unit.alone)
    }

    /// The units that are taken by themselves.
    fn alone(&self) -> impl Iterator<Item = (usize, &Unit<'a>)> {
        self.units.all.iter().enumerate().filter(|(_, unit)| unit.alone)
    }

    /// Of those the share that is the first of some parts of about equal cost.
    pub fn share(&self, of: Range<usize>) -> Vec<usize> {
        let cost = |unit: &Unit<'_>| unit.cost(unit.span.shape.in_features);
        let total: usize = self.alone().map(|(_, unit)| cost(unit)).sum();
        let mut before = 0;
        let mut part = |unit: &Unit<'_>| {
            before += cost(unit);
            (before - cost(unit) / 2) * of.end / total.max(1)
        };
        self.alone().filter(|(_, unit)| part(unit) == of.start).map(|(number, _)| number).collect()
    }

    /// Length of their s.
    pub fn floats(&self) -> usize {
        self.units.floats
    }

    /// Names the A of a unit.
    pub fn fetch_a(&self, unit: usize, fetch: &mut Fetch) {
        let unit = &self.units.all[unit];
        self.fetch(unit, unit.a_chunks(), fetch);
    }

    fn fetch(&self, unit: &Unit<'_>, chunks: &[Chunk], fetch: &mut Fetch) {
        chunks.iter().for_each(|chunk| fetch.add(unit.weights(self.arena, chunk)));
    }

    /// Computes s of a unit that is taken by itself.
    ///
    /// # Safety
    /// Nobody else may use this unit's part of s meanwhile.
    pub unsafe fn shrink_alone(&self, unit: usize, input: Input<'_>, s: &Parts<'_, f32>) {
        let unit = &self.units.all[unit];
        // SAFETY: the caller's promise.
        let s = unsafe { s.part(unit.s_begin, unit.tokens.len() * unit.rank()) };
        shrink_unit(self.cpu, self.arena, unit, 0..unit.rank(), input, s);
    }

    /// Whether anything of what is taken by itself adds to a token's row.
    pub fn waits(&self, token: usize) -> bool {
        self.units.waits.get(token).is_some_and(|waits| *waits)
    }

    /// What is taken by itself, by rows of y.
    pub fn runs(&self) -> Runs {
        let mut runs =
            Runs { units: self.alone().map(|(number, _)| number).collect(), rows: vec![], costs: vec![] };
        let unit = |number: &usize| &self.units.all[*number];
        runs.units.sort_by_key(|number| unit(number).tokens.start);
        for run in runs.units.chunk_by(|a, b| unit(a).tokens.start == unit(b).tokens.start) {
            let end = runs.rows.last().map_or(0, |(_, end)| *end) + run.len();
            runs.rows.push((unit(&run[0]).tokens.clone(), end));
            runs.costs
                .push(run.iter().map(|number| unit(number).cost(unit(number).span.shape.out_features)).sum());
        }
        runs
    }

    /// Adds to some runs' rows of y; then each run's have `expanded`.
    ///
    /// # Safety
    /// Nobody else may use these rows of y, or write s, meanwhile.
    pub unsafe fn expand_runs(
        &self,
        runs: &Runs,
        some: Range<usize>,
        s: &Parts<'_, f32>,
        to: Target<'_, '_>,
        fetch: &mut Fetch,
        expanded: &dyn Fn(Range<usize>),
    ) {
        let units = runs.units_of(some.clone());
        fetch.clear();
        let later = units.iter().skip(1).map(|unit| &self.units.all[*unit]);
        later.for_each(|unit| self.fetch(unit, unit.b_chunks(), fetch));
        let columns = |unit: &usize| self.units.all[*unit].columns().len();
        fetch.spread(units.iter().map(columns).sum::<usize>().div_ceil(STEP_COLUMNS));
        let mut at = runs.units_before(some.start);
        for (tokens, end) in &runs.rows[some] {
            for unit in &runs.units[at..*end] {
                let unit = &self.units.all[*unit];
                let to = Target { at: to.at + tokens.start * to.stride + unit.column, ..to };
                // SAFETY: the caller's promise; s is complete.
                unsafe {
                    let s = s.read(unit.s_begin, unit.tokens.len() * unit.rank());
                    self.expand_unit(unit, s, 0..unit.columns().len(), unit.tokens.clone(), to, fetch);
                    self.finish_unit(unit, 0..unit.columns().len(), unit.tokens.len(), to);
                }
            }
            at = *end;
            expanded(tokens.clone());
        }
    }

    /// Computes what a unit adds and adds it, `to` being all of y.
    ///
    /// # Safety
    /// Nobody else may use the elements of y that this unit meets meanwhile.
    pub unsafe fn run_unit(&self, unit: usize, input: Input<'_>, to: Target<'_, '_>) {
        let unit = &self.units.all[unit];
        let shrink = |s: &mut [f32]| shrink_unit(self.cpu, self.arena, unit, 0..unit.rank(), input, s);
        // SAFETY: the caller's promise.
        unsafe { self.run_whole(unit, &shrink, to) }
    }

    /// Has s of a unit computed and adds what the unit adds, likewise.
    ///
    /// # Safety
    /// As for [`Delta::run_unit`].
    pub(super) unsafe fn run_whole(&self, unit: &Unit<'_>, shrink: &dyn Fn(&mut [f32]), to: Target<'_, '_>) {
        UNIT.with_borrow_mut(|s| {
            let length = unit.tokens.len() * unit.rank();
            if s.len() < length {
                s.resize(length, 0.0);
            }
            let s = &mut s[..length];
            shrink(s);
            let to = Target { at: to.at + unit.tokens.start * to.stride + unit.column, ..to };
            let (wanted, rows) = (0..unit.columns().len(), unit.tokens.clone());
            // SAFETY: the caller's promise.
            unsafe {
                self.expand_unit(unit, s, wanted.clone(), rows, to, &mut Fetch::default());
                self.finish_unit(unit, wanted, unit.tokens.len(), to);
            }
        });
    }
}
