//! The line of an adapter.

use std::fmt;

use super::cursor::{Cursor, Expected};
use crate::plan::Numbers;
use crate::{AdapterId, FailReason};

/// `adapter 1 tag 101: hot slot 0 last-use 2000 pages [0 1], running 1 waiting 0`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its id.
    pub adapter: AdapterId,
    /// Its tag.
    pub tag: u32,
    /// Where its bytes are.
    pub state: AdapterState,
    /// Was it unregistered?
    pub draining: bool,
    /// Is it never evicted?
    pub pinned: bool,
    /// Its running requests.
    pub running: u32,
    /// Its waiting requests.
    pub waiting: u32,
}

/// Where an adapter's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // as the core's own: slot, time and pages
pub enum AdapterState {
    Remote { asked: bool },
    Cold,
    Loading { slot: u32, since: u64, layers: u32, layers_max: u32, dropped: bool, pages: Vec<u32> },
    Hot { slot: u32, last_use: u64, pages: Vec<u32> },
    Failed { why: FailReason },
}

impl AdapterState {
    /// The name in the dump.
    pub fn name(&self) -> &'static str {
        match self {
            AdapterState::Remote { .. } => "remote",
            AdapterState::Cold => "cold",
            AdapterState::Loading { .. } => "loading",
            AdapterState::Hot { .. } => "hot",
            AdapterState::Failed { why } => why.name(),
        }
    }

    /// Its slot, while loading or hot.
    pub fn slot(&self) -> Option<u32> {
        match self {
            AdapterState::Loading { slot, .. } | AdapterState::Hot { slot, .. } => Some(*slot),
            AdapterState::Remote { .. } | AdapterState::Cold | AdapterState::Failed { .. } => None,
        }
    }

    /// Its pages, while loading or hot.
    pub fn pages(&self) -> &[u32] {
        match self {
            AdapterState::Loading { pages, .. } | AdapterState::Hot { pages, .. } => pages,
            AdapterState::Remote { .. } | AdapterState::Cold | AdapterState::Failed { .. } => &[],
        }
    }

    fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        Ok(match cursor.name()? {
            "remote" => AdapterState::Remote { asked: cursor.maybe(" asked") },
            "cold" => AdapterState::Cold,
            "loading" => {
                let (slot, since) = (cursor.pair(" slot ")?, cursor.pair(" since ")?);
                let (layers, layers_max) = (cursor.pair(" layers ")?, cursor.pair(" of ")?);
                let dropped = cursor.maybe(" dropped");
                cursor.word(" pages ")?;
                AdapterState::Loading { slot, since, layers, layers_max, dropped, pages: cursor.list()? }
            }
            "hot" => {
                let (slot, last_use) = (cursor.pair(" slot ")?, cursor.pair(" last-use ")?);
                cursor.word(" pages ")?;
                AdapterState::Hot { slot, last_use, pages: cursor.list()? }
            }
            name => {
                let reasons = [
                    FailReason::PageIn,
                    FailReason::Row,
                    FailReason::Plan,
                    FailReason::Fetch,
                    FailReason::Deadline,
                ];
                match reasons.into_iter().find(|why| why.name() == name) {
                    Some(why) => AdapterState::Failed { why },
                    None => return cursor.expected("a state of an adapter before this"),
                }
            }
        })
    }
}

impl Adapter {
    pub(crate) const NAME: &'static str = "adapter";

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        let adapter = AdapterId::from_number(cursor.pair("adapter ")?);
        let tag = cursor.pair(" tag ")?;
        cursor.word(": ")?;
        Ok(Self {
            adapter,
            tag,
            state: AdapterState::read(cursor)?,
            draining: cursor.maybe(" draining"),
            pinned: cursor.maybe(" pinned"),
            running: cursor.pair(", running ")?,
            waiting: cursor.pair(" waiting ")?,
        })
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adapter {} tag {}: {}", self.adapter, self.tag, self.state.name())?;
        match &self.state {
            AdapterState::Cold | AdapterState::Failed { .. } => {}
            AdapterState::Remote { asked } => write!(f, "{}", if *asked { " asked" } else { "" })?,
            AdapterState::Loading { slot, since, layers, layers_max, dropped, pages } => {
                write!(f, " slot {slot} since {since} layers {layers} of {layers_max}")?;
                write!(f, "{} pages {}", if *dropped { " dropped" } else { "" }, Numbers(pages))?;
            }
            AdapterState::Hot { slot, last_use, pages } => {
                write!(f, " slot {slot} last-use {last_use} pages {}", Numbers(pages))?;
            }
        }
        write!(f, "{}", if self.draining { " draining" } else { "" })?;
        write!(f, "{}", if self.pinned { " pinned" } else { "" })?;
        write!(f, ", running {} waiting {}", self.running, self.waiting)
    }
}
