//! A fleet of replicas on a virtual clock: the real [`lorad_fleet::Fleet`] routes and places.
//!
//! [`run`]: replicas serve one prompt at a time. Loads block the replica, as in the exercise that this is the answer to; a
//! replica publishes with each request that comes to the fleet, so the router knows all.
//! [`run_cores`]: each replica is a real core with its own pages, rows and page-ins; the router knows what was published a
//! while ago, and replicas die and join.

mod cores;
mod homes;
mod live;
mod node;
mod replica;
mod run;
mod scenario;

pub use cores::{CoresScenario, Down};
pub use live::run as run_cores;
pub use run::{requests, run};
pub use scenario::{FleetReport, FleetScenario, Routing};
