//! Which replica serves a request, and which adapters live where.
//!
//! A [`Fleet`] knows its replicas from the inventories that they publish, and how much each adapter is asked for from the
//! requests that it routes. Two questions are answered:
//!
//! - [`Fleet::route`]: where does this request go? By a [`Policy`]; lorad's own adds up, in microseconds, what the request
//!   would wait for on each replica ([`Cost`]), and says so with each answer.
//! - [`Fleet::rebalance`]: which adapters should live where? What is asked for everywhere lives everywhere, the rest has a
//!   home or a few by weighted rendezvous with bounded load; few adapters move when replicas come and go or popularity drifts.
//!
//! ```
//! use lorad_fleet::{Adapter, Fleet, Inventory, Policy, Request, Settings, Tier};
//!
//! let mut fleet = Fleet::new(Settings { policy: Policy::Cost, ..Settings::default() });
//! let adapter = fleet.add_adapter(Adapter { key: 37, kib: 160 << 10 });
//! let (near, far) = (fleet.add_replica(0, 1), fleet.add_replica(1, 1));
//! let whole = Inventory { adapter_kib_max: 1 << 24, ..Inventory::default() };
//! fleet.publish(near, 0, &Inventory { queue_us: 200_000, tiers: vec![(adapter, Tier::Hot)], ..whole.clone() })?;
//! fleet.publish(far, 0, &Inventory { tiers: vec![(adapter, Tier::Warm)], ..whole })?;
//! let choice = fleet.route(&Request { adapter: Some(adapter), tokens: 100, ..Request::default() }, 1000)?;
//! assert_eq!(choice.replica, far, "a load takes less than the queue");
//! # Ok::<(), lorad_fleet::FleetError>(())
//! ```
//!
//! # Rules
//!
//! - Time is an argument, in microseconds on the host's clock; sockets, threads and clocks are the host's.
//! - The same calls give the same answers on every platform: whole numbers, and the exact sums of [`lorad_blocks::heat`].
//! - A replica that hasn't been heard of for [`Settings::silent_us`], or has failed since, gets no request.
#![forbid(unsafe_code)]

mod adapter;
mod cost;
mod error;
mod fleet;
mod inventory;
mod placement;
mod policy;
mod prefix;
mod rebalance;
mod rendezvous;
mod replica;
mod settings;
mod tiers;

pub use crate::adapter::{Adapter, AdapterIndex};
pub use crate::cost::{Candidate, Cost};
pub use crate::error::FleetError;
pub use crate::fleet::{Choice, Fleet, Request};
pub use crate::inventory::{Inventory, LoadTime, LoadTimes, Tier};
pub use crate::policy::Policy;
pub use crate::rebalance::{Move, Reason};
pub use crate::replica::ReplicaIndex;
pub use crate::settings::Settings;
