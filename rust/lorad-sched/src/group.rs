//! Groups: the base (group 0) and each adapter (its entry + 1) wait in a queue of their own.
//!
//! A group with waiting requests is in exactly one place, or its adapter is loading and it's in none:
//!
//! ```text
//!   Cold ──load planned──▶ (loading) ──done──▶ Ready ◀──▶ Warm        Resume: its head was preempted
//!    ▲                                          │  lacks pages or a place in the step
//!    └────────────── evicted ◀──────────────────┘
//! ```
//!
//! `Ready`, `Warm` and `Resume` only hold the base and adapters that are (or were) hot, so what a step visits is bounded
//! by the configuration, not by the number of waiting requests or registered adapters.

use crate::list::Lists;

/// Where a group with waiting requests is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the round-robin ring.
    Ready,
    /// Its head was preempted: comes first.
    Resume,
    /// Its adapter is hot (or it's the base), but its head lacked pages or a place among the step's adapters.
    Warm,
    /// Its adapter must be paged in.
    Cold,
}

impl Place {
    pub const ALL: [Place; 4] = [Place::Ready, Place::Resume, Place::Warm, Place::Cold];

    pub fn list(self) -> u32 {
        match self {
            Place::Ready => 0,
            Place::Resume => 1,
            Place::Warm => 2,
            Place::Cold => 3,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Place::Ready => "ready",
            Place::Resume => "resume",
            Place::Warm => "warm",
            Place::Cold => "cold",
        }
    }
}

/// The groups' queues and places.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    /// Waiting requests by group: list = group, element = entry of the request.
    pub queues: Lists,
    /// Groups by place: list = place, element = group.
    places: Lists,
    /// Admissions at the time when the group's head was first passed over.
    tickets: Vec<Option<u64>>,
    /// The group for which the others wait.
    pub urgent: Option<u32>,
}

impl Groups {
    pub fn new() -> Self {
        let mut groups =
            Self { queues: Lists::new(0), places: Lists::new(4), tickets: Vec::new(), urgent: None };
        groups.grow(1);
        groups
    }

    /// Makes room for the groups 0 to `count`.
    pub fn grow(&mut self, count: usize) {
        self.queues.grow_lists(count);
        self.places.grow_elements(count);
        if count > self.tickets.len() {
            self.tickets.resize(count, None);
        }
    }

    /// Where a group is.
    pub fn place(&self, group: u32) -> Option<Place> {
        let list = self.places.list_of(group)?;
        Place::ALL.into_iter().find(|place| place.list() == list)
    }

    /// Puts a group at the back of a place, out of the one where it was.
    pub fn put(&mut self, group: u32, place: Place) {
        self.places.push_back(place.list(), group);
    }

    /// Takes a group out of its place.
    pub fn take_out(&mut self, group: u32) {
        self.places.remove(group);
    }

    /// The first group of a place.
    pub fn front(&self, place: Place) -> Option<u32> {
        self.places.front(place.list())
    }

    /// The group after this one in its place.
    pub fn after(&self, group: u32) -> Option<u32> {
        self.places.after(group)
    }

    /// Groups in a place.
    pub fn length(&self, place: Place) -> u32 {
        self.places.length(place.list())
    }

    /// The groups in a place.
    pub fn iter(&self, place: Place) -> impl Iterator<Item = u32> + '_ {
        self.places.iter(place.list())
    }

    /// Waiting requests of a group.
    pub fn waiting(&self, group: u32) -> u32 {
        self.queues.length(group)
    }

    /// When the group's head was first passed over, in admissions.
    pub fn ticket(&self, group: u32) -> Option<u64> {
        self.tickets[group as usize]
    }

    /// The group's head was passed over.
    pub fn draw_ticket(&mut self, group: u32, admissions: u64) {
        self.tickets[group as usize].get_or_insert(admissions);
    }

    /// The group's head was admitted, or nobody waits any more.
    pub fn settle_ticket(&mut self, group: u32) {
        self.tickets[group as usize] = None;
        if self.urgent == Some(group) {
            self.urgent = None;
        }
    }

    /// Of the groups at the front of the places where groups wait for something, the one that waits longest.
    pub fn oldest_blocked(&self) -> Option<(u32, u64)> {
        [Place::Resume, Place::Warm, Place::Cold]
            .into_iter()
            .filter_map(|place| self.front(place))
            .filter_map(|group| Some((group, self.ticket(group)?)))
            .min_by_key(|&(_, ticket)| ticket)
    }

    pub fn check(&self) -> Result<(), String> {
        self.queues.check("queues")?;
        self.places.check("places")?;
        match self.urgent {
            Some(group) if self.waiting(group) == 0 => {
                Err(format!("groups: urgent {group} has nobody waiting"))
            }
            Some(_) | None => Ok(()),
        }
    }
}
