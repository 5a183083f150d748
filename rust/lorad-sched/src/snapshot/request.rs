//! The line of a request that has pages.

use std::fmt;

use super::cursor::{Cursor, Expected};
use super::group::Group;
use crate::plan::Numbers;
use crate::RequestId;

/// `request 3 adapter 1: running line 0 computed 5 of 6 answer 2 of 4 pages [0 5]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its id.
    pub request: RequestId,
    /// Tenant, weights, priority.
    pub group: Group,
    /// Where it stands.
    pub state: RequestState,
}

/// Where a request with pages stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Has a line and pages.
    Running {
        /// Line of the page table.
        line: u32,
        /// Tokens whose KV is in the pages.
        computed: u32,
        /// Tokens known: prompt and answer so far.
        length: u32,
        /// New tokens in the plan in flight.
        planned: u32,
        /// Tokens of the answer so far.
        answered: u32,
        /// Tokens of the answer at most.
        max_tokens: u32,
        /// Its pages.
        pages: Vec<u32>,
        /// How many of them, from the left, are the prefix cache's.
        cached: u32,
    },
    /// Ended; line and pages go back with the plan in flight.
    Ending {
        /// Line of the page table.
        line: u32,
        /// Its pages.
        pages: Vec<u32>,
    },
}

impl RequestState {
    fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        match cursor.name()? {
            "running" => {
                let line = cursor.pair(" line ")?;
                let (computed, length) = (cursor.pair(" computed ")?, cursor.pair(" of ")?);
                let planned = cursor.maybe_pair(" planned ")?.unwrap_or(0);
                let (answered, max_tokens) = (cursor.pair(" answer ")?, cursor.pair(" of ")?);
                cursor.word(" pages ")?;
                let pages = cursor.list()?;
                let cached = cursor.maybe_pair(" cached ")?.unwrap_or(0);
                Ok(Self::Running { line, computed, length, planned, answered, max_tokens, pages, cached })
            }
            "ending" => {
                let line = cursor.pair(" line ")?;
                cursor.word(" pages ")?;
                Ok(Self::Ending { line, pages: cursor.list()? })
            }
            _ => cursor.expected("a state of a request before this"),
        }
    }
}

impl Request {
    pub(crate) const NAME: &'static str = "request";

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        let request = cursor.pair("request ")?;
        cursor.word(" ")?;
        let group = Group::read(cursor)?;
        cursor.word(": ")?;
        Ok(Self { request, group, state: RequestState::read(cursor)? })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} {}: ", self.request, self.group)?;
        match &self.state {
            RequestState::Running {
                line,
                computed,
                length,
                planned,
                answered,
                max_tokens,
                pages,
                cached,
            } => {
                write!(f, "running line {line} computed {computed} of {length}")?;
                if *planned > 0 {
                    write!(f, " planned {planned}")?;
                }
                write!(f, " answer {answered} of {max_tokens} pages {}", Numbers(pages))?;
                match cached {
                    0 => Ok(()),
                    cached => write!(f, " cached {cached}"),
                }
            }
            RequestState::Ending { line, pages } => {
                write!(f, "ending line {line} pages {}", Numbers(pages))
            }
        }
    }
}
