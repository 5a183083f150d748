//! A fleet of replicas on a virtual clock: the real [`lorad_fleet::Fleet`] routes and places, replicas serve one prompt at a time.
//!
//! Loads block the replica, as in the exercise that this is the answer to; a replica publishes with each request that comes to the
//! fleet, so the router knows all.

mod replica;
mod run;
mod scenario;

pub use run::{requests, run};
pub use scenario::{FleetReport, FleetScenario, Routing};
