//! The first three lines: time, pages, rows.

use std::fmt;

use super::cursor::{Cursor, Expected};

/// `now 3000 plans 3 in-flight 3`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// The core's time.
    pub now: u64,
    /// Plans made.
    pub plans: u64,
    /// Number of the plan in flight that is committed next.
    pub in_flight: Option<u64>,
    /// Number of the plan that was made ahead of its commit.
    pub ahead: Option<u64>,
}

impl Time {
    pub(crate) const NAME: &'static str = "now";

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        Ok(Self {
            now: cursor.pair("now ")?,
            plans: cursor.pair(" plans ")?,
            in_flight: cursor.maybe_pair(" in-flight ")?,
            ahead: cursor.maybe_pair(" ahead ")?,
        })
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "now {} plans {}", self.now, self.plans)?;
        self.in_flight.map_or(Ok(()), |number| write!(f, " in-flight {number}"))?;
        self.ahead.map_or(Ok(()), |number| write!(f, " ahead {number}"))
    }
}

/// `pages 12: free 8 sequence 2 adapter 2 reserved 0`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// All pages.
    pub total: u32,
    /// How many each kind of owner has, by its name.
    pub owners: Vec<(String, u32)>,
}

impl Pages {
    pub(crate) const NAME: &'static str = "pages";

    /// Pages of a kind of owner; 0 when the dump knows no such kind.
    pub fn of(&self, owner: &str) -> u32 {
        self.owners.iter().find(|(name, _)| name == owner).map_or(0, |(_, count)| *count)
    }

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        let (total, mut owners) = (cursor.pair("pages ")?, Vec::new());
        cursor.word(":")?;
        while cursor.maybe(" ") {
            owners.push((cursor.name()?.to_string(), cursor.pair(" ")?));
        }
        Ok(Self { total, owners })
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages {}:", self.total)?;
        self.owners.iter().try_for_each(|(name, count)| write!(f, " {name} {count}"))
    }
}

/// `rows 2 of 4, waiting 1 of 8`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Running requests.
    pub running: u32,
    /// How many may run.
    pub rows_max: u32,
    /// Waiting requests.
    pub waiting: u32,
    /// How many may wait.
    pub waiting_max: u32,
}

impl Rows {
    pub(crate) const NAME: &'static str = "rows";

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        Ok(Self {
            running: cursor.pair("rows ")?,
            rows_max: cursor.pair(" of ")?,
            waiting: cursor.pair(", waiting ")?,
            waiting_max: cursor.pair(" of ")?,
        })
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { running, rows_max, waiting, waiting_max } = self;
        write!(f, "rows {running} of {rows_max}, waiting {waiting} of {waiting_max}")
    }
}
