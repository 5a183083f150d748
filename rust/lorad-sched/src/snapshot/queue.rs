//! The queue of a group.

use std::fmt;

use super::cursor::{Cursor, Expected};
use super::group::Group;
use crate::RequestId;

/// `queue tenant 1 adapter 2: 7(preempted, answer 1 of 4) 9, waits 3000 of 60769`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Tenant, weights, priority.
    pub group: Group,
    /// Who waits, in order.
    pub waiting: Vec<Waiting>,
    /// How long the first of them has waited on its tenant's clock, and how long it can at most, µs. `None` while it
    /// waits for bytes that aren't on the host.
    pub waits: Option<(u64, u64)>,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its id.
    pub request: RequestId,
    /// If it was preempted: tokens of its answer so far, and at most.
    pub preempted: Option<(u32, u32)>,
}

impl Queue {
    pub(crate) const NAME: &'static str = "queue";

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        cursor.word("queue ")?;
        let (group, mut waiting) = (Group::read(cursor)?, Vec::new());
        cursor.word(":")?;
        while cursor.maybe(" ") {
            waiting.push(Waiting::read(cursor)?);
        }
        let waits = match cursor.maybe_pair(", waits ")? {
            Some(waited) => Some((waited, cursor.pair(" of ")?)),
            None => None,
        };
        Ok(Self { group, waiting, waits })
    }
}

impl Waiting {
    fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        let (request, mut preempted) = (cursor.number()?, None);
        if cursor.maybe("(") {
            preempted = Some((cursor.pair("preempted, answer ")?, cursor.pair(" of ")?));
            cursor.word(")")?;
        }
        Ok(Self { request, preempted })
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.request)?;
        match self.preempted {
            Some((answered, most)) => write!(f, "(preempted, answer {answered} of {most})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}:", self.group)?;
        self.waiting.iter().try_for_each(|waiting| write!(f, " {waiting}"))?;
        self.waits.map_or(Ok(()), |(waited, bound)| write!(f, ", waits {waited} of {bound}"))
    }
}
