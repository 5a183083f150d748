//! Where adapters live before anything was asked for, and the router's settings of a routing.

use lorad_fleet::{AdapterIndex, Fleet, FleetError, ReplicaIndex, Settings};

use super::scenario::Routing;
use crate::random::mix;

/// The router's settings.
pub(super) fn settings(routing: &Routing) -> Settings {
    let mut settings = Settings { policy: routing.policy(), ..Settings::default() };
    if let Routing::Cost { away_loads, .. } = *routing {
        settings.away_loads = away_loads;
    }
    settings
}

/// The first `everywhere` adapters live everywhere, each other one on the replica that its hash says.
pub(super) fn assign(
    fleet: &mut Fleet,
    adapters: &[AdapterIndex],
    replicas: &[ReplicaIndex],
    everywhere: usize,
    seed: u64,
) -> Result<(), FleetError> {
    for (number, &adapter) in adapters.iter().enumerate() {
        if number < everywhere {
            fleet.set_homes(adapter, replicas)?;
        } else {
            let hash = mix(seed ^ mix(number as u64 + 1));
            fleet.set_homes(adapter, &[replicas[(hash % replicas.len() as u64) as usize]])?;
        }
    }
    Ok(())
}
