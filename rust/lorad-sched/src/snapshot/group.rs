//! Groups: the base or an adapter, and where each waits.

use std::fmt;

use super::cursor::{Cursor, Expected};
use crate::{AdapterId, Priority, TenantId};

/// `base`, `adapter 3` or `tenant 2 adapter 3 high`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Who asks.
    pub tenant: TenantId,
    /// Whose weights, `None` for the base's.
    pub adapter: Option<AdapterId>,
    /// In which class.
    pub priority: Priority,
}

impl Group {
    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        let tenant = match cursor.maybe_pair("tenant ")? {
            Some(tenant) => {
                cursor.word(" ")?;
                tenant
            }
            None => 0,
        };
        let adapter = match cursor.maybe("base") {
            true => None,
            false => Some(AdapterId::from_number(cursor.pair("adapter ")?)),
        };
        let priority = if cursor.maybe(" low") {
            Priority::Low
        } else if cursor.maybe(" high") {
            Priority::High
        } else {
            Priority::Normal
        };
        Ok(Self { tenant, adapter, priority })
    }

    /// Groups after a colon, each behind a blank.
    pub(crate) fn read_all(cursor: &mut Cursor) -> Result<Vec<Self>, Expected> {
        let mut groups = Vec::new();
        cursor.word(":")?;
        while cursor.maybe(" ") {
            groups.push(Self::read(cursor)?);
        }
        Ok(groups)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tenant != 0 {
            write!(f, "tenant {} ", self.tenant)?;
        }
        match self.adapter {
            None => write!(f, "base")?,
            Some(adapter) => write!(f, "adapter {adapter}")?,
        }
        match self.priority {
            Priority::Normal => Ok(()),
            Priority::Low | Priority::High => write!(f, " {}", self.priority.name()),
        }
    }
}

/// `ready: base adapter 3`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The place: `resume`, `ready`, `cold`.
    pub place: String,
    /// The groups in it, in their order.
    pub groups: Vec<Group>,
}

impl Listed {
    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        Ok(Self { place: cursor.name()?.to_string(), groups: Group::read_all(cursor)? })
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.place)?;
        self.groups.iter().try_for_each(|group| write!(f, " {group}"))
    }
}
