//! What an operator refuses before it writes anything.

use std::fmt;

/// A call that can't be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpError {
    /// An array whose length or width doesn't fit the others.
    Length {
        /// Argument.
        what: &'static str,
        /// Length needed.
        expected: usize,
        /// Length given.
        got: usize,
    },
    /// A dimension that must be positive, or a multiple of something.
    Dimension {
        /// What must hold.
        what: &'static str,
        /// Value given.
        got: usize,
    },
    /// An index out of range.
    Index {
        /// Argument.
        what: &'static str,
        /// Value given.
        got: i64,
        /// One past the largest.
        limit: usize,
    },
    /// A name that isn't known.
    Name {
        /// Argument.
        what: &'static str,
        /// Value given.
        got: String,
    },
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpError::Length { what, expected, got } => {
                write!(f, "{what}: {expected} elements needed, got {got}")
            }
            OpError::Dimension { what, got } => write!(f, "{what}, got {got}"),
            OpError::Index { what, got, limit } => {
                write!(f, "{what}: {got} is out of range, the limit is {limit}")
            }
            OpError::Name { what, got } => write!(f, "{what}: unknown {got:?}"),
        }
    }
}

impl std::error::Error for OpError {}

/// `got` elements where `expected` are needed.
pub(crate) fn length(what: &'static str, expected: usize, got: usize) -> Result<(), OpError> {
    if expected == got {
        Ok(())
    } else {
        Err(OpError::Length { what, expected, got })
    }
}

/// `got` as an index below `limit`.
pub(crate) fn index(what: &'static str, got: i32, limit: usize) -> Result<usize, OpError> {
    match usize::try_from(got) {
        Ok(index) if index < limit => Ok(index),
        _ => Err(OpError::Index { what, got: i64::from(got), limit }),
    }
}

/// `holds`, or `what` about `got`.
pub(crate) fn require(holds: bool, what: &'static str, got: usize) -> Result<(), OpError> {
    if holds {
        Ok(())
    } else {
        Err(OpError::Dimension { what, got })
    }
}
