//! What can be refused.

use std::fmt;

use crate::adapter::AdapterIndex;
use crate::replica::ReplicaIndex;

/// Why a call was refused. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetError {
    /// No replica was heard of lately that hasn't failed or drains.
    NoReplica {
        /// Replicas that are registered.
        registered: usize,
    },
    /// No such replica, or it was removed.
    UnknownReplica {
        /// What was named.
        replica: ReplicaIndex,
    },
    /// No such adapter, or it was removed.
    UnknownAdapter {
        /// What was named.
        adapter: AdapterIndex,
    },
    /// Changes on an inventory that this one isn't: the replica has to publish a whole one.
    InventoryGap {
        /// The inventory that is known, 0 for none.
        known: u64,
        /// The one that the changes are on.
        base: u64,
    },
}

impl FleetError {
    /// A stable name.
    pub fn code(&self) -> &'static str {
        match self {
            FleetError::NoReplica { .. } => "no_replica",
            FleetError::UnknownReplica { .. } => "unknown_replica",
            FleetError::UnknownAdapter { .. } => "unknown_adapter",
            FleetError::InventoryGap { .. } => "inventory_gap",
        }
    }
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FleetError::NoReplica { registered } => write!(f, "none of {registered} replicas can be sent to"),
            FleetError::UnknownReplica { replica } => write!(f, "there is no replica {}", replica.number()),
            FleetError::UnknownAdapter { adapter } => write!(f, "there is no adapter {}", adapter.number()),
            FleetError::InventoryGap { known, base } => {
                write!(f, "changes on inventory {base}, but the last one known is {known}")
            }
        }
    }
}

impl std::error::Error for FleetError {}
