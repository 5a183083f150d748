//! A dump as plain data, and as the same text again.
//!
//! [`Snapshot::parse`] reads what [`crate::Core::dump`] wrote, here or in a crash report; `to_string` gives that text. One
//! file per kind of line has what the line holds, how it's read and how it's written. A line of a kind that isn't known
//! here is kept as it is, in its place.

mod adapter;
mod cursor;
mod group;
mod head;
mod prefix;
mod queue;
mod request;
mod tenant;

use std::fmt;
use std::str::FromStr;

pub use adapter::{Adapter, AdapterState};
pub use group::{Group, Listed};
pub use head::{Pages, Rows, Time};
pub use prefix::{Cached, Domain, Prefix};
pub use queue::{Queue, Waiting};
pub use request::{Request, RequestState};
pub use tenant::{Tenant, TenantStanding};

use crate::group::Place;
use crate::plan::Numbers;
use cursor::{Cursor, Expected};

/// A line that isn't one of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpError {
    /// The line, counted from 1.
    pub line: u64,
    /// What should come.
    pub expected: &'static str,
    /// What comes.
    pub found: String,
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {:?}, found {:?}", self.line, self.expected, self.found)
    }
}

impl std::error::Error for DumpError {}

/// The state of a core, as its dump tells it. Everything is in the dump's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Time and plans.
    pub time: Time,
    /// Pages by owner.
    pub pages: Pages,
    /// How many rows run and requests wait.
    pub rows: Rows,
    /// Tenants.
    pub tenants: Vec<Tenant>,
    /// Adapters.
    pub adapters: Vec<Adapter>,
    /// Requests with a line.
    pub requests: Vec<Request>,
    /// Queues of the groups that somebody waits in.
    pub queues: Vec<Queue>,
    /// Groups by place.
    pub listed: Vec<Listed>,
    /// Groups that the others make way for.
    pub urgent: Vec<Group>,
    /// Adapters to be paged in although nobody waits.
    pub wanted: Vec<u32>,
    /// The prefix cache, when it has pages.
    pub prefix: Option<Prefix>,
    /// Slots that the next plan empties.
    pub clears: Vec<u32>,
    /// Lines of other kinds: their index in the text, and what they say.
    pub others: Vec<(usize, String)>,
}

impl Snapshot {
    /// From the text of a dump.
    pub fn parse(text: &str) -> Result<Self, DumpError> {
        let (mut snapshot, mut domain, mut count) = (Self::default(), Domain::default(), 0);
        for (index, line) in text.lines().enumerate() {
            count = index + 1;
            snapshot.line(index, line, &mut domain).map_err(|Expected { expected, found }| DumpError {
                line: count as u64,
                expected,
                found,
            })?;
        }
        match [Time::NAME, Pages::NAME, Rows::NAME].get(count) {
            Some(&expected) => Err(DumpError { line: count as u64 + 1, expected, found: String::new() }),
            None => Ok(snapshot),
        }
    }

    /// `domain`: whose pages of the prefix cache the next lines are.
    fn line(&mut self, index: usize, line: &str, domain: &mut Domain) -> Result<(), Expected> {
        let mut cursor = Cursor::new(line);
        let kind = line.split([' ', ':']).next().unwrap_or("");
        match (index, kind) {
            // every dump begins with these three
            (0, _) => self.time = Time::read(&mut cursor)?,
            (1, _) => self.pages = Pages::read(&mut cursor)?,
            (2, _) => self.rows = Rows::read(&mut cursor)?,
            (_, Tenant::NAME) => self.tenants.push(Tenant::read(&mut cursor)?),
            (_, Adapter::NAME) => self.adapters.push(Adapter::read(&mut cursor)?),
            (_, Request::NAME) => self.requests.push(Request::read(&mut cursor)?),
            (_, Queue::NAME) => self.queues.push(Queue::read(&mut cursor)?),
            (_, "urgent") => {
                cursor.word("urgent")?;
                self.urgent = Group::read_all(&mut cursor)?;
            }
            (_, "wanted") => {
                cursor.word("wanted adapters: ")?;
                self.wanted = cursor.list()?;
            }
            (_, Prefix::NAME) => self.prefix = Some(Prefix::read(&mut cursor)?),
            (_, Domain::NAME) => *domain = Domain::read(&mut cursor)?,
            (_, Cached::NAME | Cached::DOOMED) => {
                let cached = Cached::read(&mut cursor, *domain)?;
                match &mut self.prefix {
                    Some(prefix) => prefix.cached.push(cached),
                    None => return cursor.expected("the line of the prefix cache before this"),
                }
            }
            (_, "slots") => {
                cursor.word("slots to clear: ")?;
                self.clears = cursor.list()?;
            }
            (_, kind) if Place::ALL.into_iter().any(|place| place.name() == kind) => {
                self.listed.push(Listed::read(&mut cursor)?);
            }
            _ => {
                self.others.push((index, line.to_string()));
                return Ok(());
            }
        }
        cursor.end()
    }

    /// The known lines, in order.
    fn known(&self, line: &mut dyn FnMut(&dyn fmt::Display) -> fmt::Result) -> fmt::Result {
        line(&self.time)?;
        line(&self.pages)?;
        line(&self.rows)?;
        self.tenants.iter().try_for_each(|tenant| line(tenant))?;
        self.adapters.iter().try_for_each(|adapter| line(adapter))?;
        self.requests.iter().try_for_each(|request| line(request))?;
        self.queues.iter().try_for_each(|queue| line(queue))?;
        self.listed.iter().try_for_each(|listed| line(listed))?;
        if !self.urgent.is_empty() {
            line(&Listed { place: "urgent".to_string(), groups: self.urgent.clone() })?;
        }
        if !self.wanted.is_empty() {
            line(&format_args!("wanted adapters: {}", Numbers(&self.wanted)))?;
        }
        if let Some(prefix) = &self.prefix {
            line(prefix)?;
            let mut domain = None;
            for cached in &prefix.cached {
                // its domain is named by a line before, a doomed one's in its own
                if !cached.doomed && domain.replace(cached.domain) != Some(cached.domain) {
                    line(&cached.domain)?;
                }
                line(cached)?;
            }
        }
        if !self.clears.is_empty() {
            line(&format_args!("slots to clear: {}", Numbers(&self.clears)))?;
        }
        Ok(())
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut others, mut index) = (self.others.iter().peekable(), 0);
        self.known(&mut |line| {
            while let Some((_, other)) = others.next_if(|(place, _)| *place <= index) {
                writeln!(f, "{other}")?;
                index += 1;
            }
            index += 1;
            writeln!(f, "{line}")
        })?;
        others.try_for_each(|(_, other)| writeln!(f, "{other}"))
    }
}

impl FromStr for Snapshot {
    type Err = DumpError;

    fn from_str(text: &str) -> Result<Self, DumpError> {
        Self::parse(text)
    }
}
