//! Groups: the base or an adapter, and where each waits.

use std::fmt;

use super::cursor::{Cursor, Expected};
use crate::AdapterId;

/// `base` or `adapter 3`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Requests without an adapter.
    Base,
    /// Requests for one adapter.
    Adapter(AdapterId),
}

impl Group {
    /// The adapter, `None` for the base.
    pub fn adapter(&self) -> Option<AdapterId> {
        match self {
            Group::Base => None,
            Group::Adapter(adapter) => Some(*adapter),
        }
    }

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        if cursor.maybe("base") {
            return Ok(Group::Base);
        }
        Ok(Group::Adapter(AdapterId::from_number(cursor.pair("adapter ")?)))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Group::Base => write!(f, "base"),
            Group::Adapter(adapter) => write!(f, "adapter {adapter}"),
        }
    }
}

/// `ready: base adapter 3`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The place: `ready`, `resume`, `warm`, `cold`.
    pub place: String,
    /// The groups in it, in their order.
    pub groups: Vec<Group>,
}

impl Listed {
    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        let (place, mut groups) = (cursor.name()?.to_string(), Vec::new());
        cursor.word(":")?;
        while cursor.maybe(" ") {
            groups.push(Group::read(cursor)?);
        }
        Ok(Self { place, groups })
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.place)?;
        self.groups.iter().try_for_each(|group| write!(f, " {group}"))
    }
}
