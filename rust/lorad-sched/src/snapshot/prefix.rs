//! The lines of the prefix cache.
//!
//! ```text
//! prefix pages 3 of 32, evictable 1, least worth first: page 1
//! generation 0 tenant 0
//! page 0 first: column 0 tokens 4 holders 1 heat 3 used 1000
//! page 1 after page 0: column 1 tokens 4 holders 0 heat 3 used 4000
//! doomed page 4 of generation 7 tenant 0 first: column 0 tokens 4 holders 1 heat 1 used 2000
//! ```

use std::fmt;

use super::cursor::{Cursor, Expected};

/// The cache as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefix {
    /// Pages that it has.
    pub pages: u32,
    /// How many it may have.
    pub pages_max: u32,
    /// Pages that nobody holds and nothing comes after.
    pub evictable: u32,
    /// Which of them goes first: `least worth` or `least recent`.
    pub order: String,
    /// The page that goes next.
    pub next: Option<u32>,
    /// Its pages.
    pub cached: Vec<Cached>,
}

/// Whose beginnings: nothing is shared between two of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// The adapter's id, 0 for the base.
    pub generation: u64,
    /// The tenant; the largest number where tenants share the base's.
    pub tenant: u64,
}

/// A page of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Cached {
    /// The page.
    pub page: u32,
    /// Whose.
    pub domain: Domain,
    /// Its adapter is gone: nobody new finds it, and it goes when nobody holds it.
    pub doomed: bool,
    /// The page before it, `None` for a first one.
    pub above: Option<u32>,
    /// Its place in a sequence, in pages.
    pub col: u32,
    /// Tokens whose KV it holds.
    pub tokens: u32,
    /// Requests that read it as their last cached page.
    pub holders: u32,
    /// Uses of late.
    pub heat: f64,
    /// When it was last used, µs.
    pub used: u64,
}

impl Prefix {
    pub(crate) const NAME: &'static str = "prefix";

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        let (pages, pages_max) = (cursor.pair("prefix pages ")?, cursor.pair(" of ")?);
        let evictable = cursor.pair(", evictable ")?;
        cursor.word(", ")?;
        let order = if cursor.maybe("least worth") { "least worth" } else { "least recent" };
        cursor.maybe("least recent");
        cursor.word(" first")?;
        let (next, cached) = (cursor.maybe_pair(": page ")?, Vec::new());
        Ok(Self { pages, pages_max, evictable, order: order.to_string(), next, cached })
    }
}

impl Domain {
    pub(crate) const NAME: &'static str = "generation";

    pub(crate) fn read(cursor: &mut Cursor) -> Result<Self, Expected> {
        Ok(Self { generation: cursor.pair("generation ")?, tenant: cursor.pair(" tenant ")? })
    }
}

impl Cached {
    pub(crate) const NAME: &'static str = "page";
    pub(crate) const DOOMED: &'static str = "doomed";

    /// `domain`: of the last line that named one.
    pub(crate) fn read(cursor: &mut Cursor, domain: Domain) -> Result<Self, Expected> {
        let doomed = cursor.maybe("doomed ");
        let (page, mut domain) = (cursor.pair("page ")?, domain);
        if doomed {
            cursor.word(" of ")?;
            domain = Domain::read(cursor)?;
        }
        let above = if cursor.maybe(" first") { None } else { Some(cursor.pair(" after page ")?) };
        let (col, tokens) = (cursor.pair(": column ")?, cursor.pair(" tokens ")?);
        let holders = cursor.pair(" holders ")?;
        cursor.word(" heat ")?;
        let (heat, used) = (cursor.decimal()?, cursor.pair(" used ")?);
        Ok(Self { page, domain, doomed, above, col, tokens, holders, heat, used })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "prefix pages {} of {}", self.pages, self.pages_max)?;
        write!(f, ", evictable {}, {} first", self.evictable, self.order)?;
        self.next.map_or(Ok(()), |page| write!(f, ": page {page}"))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {} tenant {}", self.generation, self.tenant)
    }
}

impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.doomed {
            true => write!(f, "doomed page {} of {}", self.page, self.domain)?,
            false => write!(f, "page {}", self.page)?,
        }
        match self.above {
            Some(above) => write!(f, " after page {above}")?,
            None => write!(f, " first")?,
        }
        let (col, tokens, holders) = (self.col, self.tokens, self.holders);
        write!(f, ": column {col} tokens {tokens} holders {holders} heat {} used {}", self.heat, self.used)
    }
}
