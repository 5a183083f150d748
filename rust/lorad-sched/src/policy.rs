//! What may be chosen about order and memory. The defaults are the engine's; the others are there to be compared with.

/// Which waiting group comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Tenants by weighted service, their adapters likewise; a hot adapter keeps its turn for a quantum; nobody waits
    /// longer than the bound.
    #[default]
    Fair,
    /// By arrival, whoever asks; what can't run yet is passed over.
    Arrival,
    /// Hot adapters as long as anybody asks for them; a cold one only when there is room that nobody uses.
    Affinity,
}

/// Which idle pages are given up first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Least (time to bring back × chance of use ÷ pages).
    #[default]
    Cost,
    /// Least recently used.
    Lru,
}

/// How adapters and KV share the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// One pool, a boundary that moves.
    #[default]
    Unified,
    /// So many pages for adapters and never more; the rest is KV's.
    Fixed {
        /// Pages that adapters may have.
        adapter_pages: u32,
    },
    /// Buffers set aside at the start, one per adapter, each as large as the largest adapter: what vLLM does.
    Slots {
        /// Buffers.
        count: u32,
        /// Pages of each buffer, whatever the adapter's rank.
        pages: u32,
    },
}

/// The three together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Which waiting group comes next.
    pub order: Order,
    /// Which idle pages are given up first.
    pub eviction: Eviction,
    /// How adapters and KV share the pool.
    pub split: Split,
}
