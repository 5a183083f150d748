//! The queue of a group.

use std::fmt;

use super::cursor::{Cursor, Expected};
use super::group::Group;
use crate::RequestId;

/// `queue adapter 2: 7(preempted, answer 1 of 4) 9, since 12000, passed over 0`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The base or an adapter.
    pub group: Group,
    /// Who waits, in order.
    pub waiting: Vec<Waiting>,
    /// When the first of them came.
    pub since: Option<u64>,
    /// Others that were admitted past the first one since it was first passed over.
    pub passed_over: Option<u64>,
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
        Ok(Self {
            group,
            waiting,
            since: cursor.maybe_pair(", since ")?,
            passed_over: cursor.maybe_pair(", passed over ")?,
        })
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
        self.since.map_or(Ok(()), |since| write!(f, ", since {since}"))?;
        self.passed_over.map_or(Ok(()), |count| write!(f, ", passed over {count}"))
    }
}
