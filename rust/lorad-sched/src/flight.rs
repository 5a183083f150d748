//! Plans in flight: what the worker was given and hasn't answered, oldest first.

use crate::config::Config;
use crate::reuse::Copy;
use crate::step::Chosen;

/// A plan that the worker has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flight {
    pub number: u64,
    /// Its rows, in the plan's order.
    pub rows: Vec<Chosen>,
    /// Its copies, whose sources are held.
    pub copies: Vec<Copy>,
}

impl Flight {
    /// Rows that sample a token.
    pub fn samples(&self) -> usize {
        self.rows.iter().filter(|row| row.sample).count()
    }
}

/// Places for as many plans as may be in flight; those that are, come first.
#[derive(Clone, Debug)]
pub(crate) struct Flights {
    places: Vec<Flight>,
    flying: usize,
}

impl Flights {
    pub fn new(config: &Config) -> Self {
        let rows = config.rows_max as usize;
        let place = || Flight { number: 0, rows: Vec::with_capacity(rows), copies: Vec::with_capacity(rows) };
        Self { places: (0..config.plans_max).map(|_| place()).collect(), flying: 0 }
    }

    /// Plans in flight, the one that is committed next first.
    pub fn flying(&self) -> &[Flight] {
        &self.places[..self.flying]
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.flying > 0
    }

    /// Whether there may be no more.
    pub fn full(&self) -> bool {
        self.flying == self.places.len()
    }

    /// A plan goes to the worker. Its rows and copies are taken, empty lists with room are left.
    pub fn start(&mut self, number: u64, rows: &mut Vec<Chosen>, copies: &mut Vec<Copy>) {
        let Some(place) = self.places.get_mut(self.flying) else { return };
        place.number = number;
        std::mem::swap(&mut place.rows, rows);
        std::mem::swap(&mut place.copies, copies);
        rows.clear();
        copies.clear();
        self.flying += 1;
    }

    /// Takes the oldest one, to be given back by [`Flights::end`].
    pub fn take(&mut self) -> Flight {
        self.places.first_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The oldest one is committed: gives its lists back.
    pub fn end(&mut self, mut flight: Flight) {
        flight.rows.clear();
        flight.copies.clear();
        self.places[0] = flight;
        self.places.rotate_left(1);
        self.flying -= 1;
    }
}
