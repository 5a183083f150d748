//! The line of a tenant.

use std::fmt;

use super::cursor::{Cursor, Expected};
use crate::TenantId;

/// `tenant 3: weight 100 service 7000 running 1 waiting 2 pages 4 clock 1000 runs`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its number.
    pub tenant: TenantId,
    /// Its share.
    pub weight: u32,
    /// What it was charged, in nanoseconds over its weight.
    pub service: u64,
    /// Its running requests.
    pub running: u32,
    /// Its waiting requests.
    pub waiting: u32,
    /// Pages of its running requests and of its adapters that run or load.
    pub pages: u32,
    /// What the clock of its waits shows, µs.
    pub clock: u64,
    /// Whether that clock runs.
    pub standing: TenantStanding,
}

/// Whether a tenant's clock runs, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantStanding {
    /// It waits inside its share and below its limits.
    Runs,
    /// It's at one of its own limits.
    AtItsLimit,
    /// It doesn't wait, or takes more than its share.
    Stands,
}

impl TenantStanding {
    /// The name in the dump; nothing for a clock that stands.
    pub fn name(&self) -> &'static str {
        match self {
            TenantStanding::Runs => "runs",
            TenantStanding::AtItsLimit => "at its limit",
            TenantStanding::Stands => "",
        }
    }
}

impl Tenant {
    pub(crate) const NAME: &'static str = "tenant";

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        Ok(Self {
            tenant: cursor.pair("tenant ")?,
            weight: cursor.pair(": weight ")?,
            service: cursor.pair(" service ")?,
            running: cursor.pair(" running ")?,
            waiting: cursor.pair(" waiting ")?,
            pages: cursor.pair(" pages ")?,
            clock: cursor.pair(" clock ")?,
            standing: if cursor.maybe(" runs") {
                TenantStanding::Runs
            } else if cursor.maybe(" at its limit") {
                TenantStanding::AtItsLimit
            } else {
                TenantStanding::Stands
            },
        })
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant {}: weight {} service {}", self.tenant, self.weight, self.service)?;
        let (running, waiting, pages) = (self.running, self.waiting, self.pages);
        write!(f, " running {running} waiting {waiting} pages {pages} clock {}", self.clock)?;
        match self.standing {
            TenantStanding::Stands => Ok(()),
            TenantStanding::Runs | TenantStanding::AtItsLimit => write!(f, " {}", self.standing.name()),
        }
    }
}
