//! A replica that serves one prompt at a time, in the order in which they come.

/// Its queue, as the moment when it's empty, and the adapters that it holds.
#[derive(Clone, Debug)]
pub(super) struct Fifo {
    /// When it has served all that was sent to it.
    free_at: u64,
    /// Adapters that it holds, the one used longest ago first.
    held: Vec<usize>,
    room: usize,
    /// The most that it held.
    pub held_max: usize,
    pub served: u64,
}

impl Fifo {
    /// `room`: adapters that it can hold, 0 for all.
    pub fn new(room: usize) -> Self {
        Self { free_at: 0, held: Vec::new(), room, held_max: 0, served: 0 }
    }

    pub fn holds(&self, adapter: usize) -> bool {
        self.held.contains(&adapter)
    }

    pub fn queue_us(&self, now: u64) -> u64 {
        self.free_at.saturating_sub(now)
    }

    /// Holds an adapter from now on, and says which one goes for it.
    pub fn hold(&mut self, adapter: usize) -> Option<usize> {
        self.held.retain(|&other| other != adapter);
        let gone = (self.room > 0 && self.held.len() == self.room).then(|| self.held.remove(0));
        self.held.push(adapter);
        self.held_max = self.held_max.max(self.held.len());
        gone
    }

    /// Takes a request that needs so long once it's its turn; how long it takes from now to its first token.
    pub fn serve(&mut self, now: u64, needs_us: u64) -> u64 {
        self.free_at = self.free_at.max(now) + needs_us;
        self.served += 1;
        self.free_at - now
    }

    /// Likewise where its load goes on beside others: it's begun when both are ready, and others are while it isn't.
    pub fn serve_beside(&mut self, now: u64, load_us: u64, needs_us: u64) -> u64 {
        let begun = self.free_at.max(now + load_us);
        self.free_at = self.free_at.max(now) + needs_us;
        self.served += 1;
        begun + needs_us - now
    }
}
