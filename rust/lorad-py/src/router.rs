//! The router for Python: `Fleet`, `FleetRefused`.

use lorad_fleet::{
    Adapter, AdapterIndex, Candidate, Cost, Fleet as Router, FleetError, Inventory, LoadTime, LoadTimes,
    Policy, ReplicaIndex, Request, Settings, Tier,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use crate::simulation::errors::exception;

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Fleet>()?;
    module.add("FLEET_POLICIES", Policy::ALL.map(|policy| policy.name()).to_vec())?;
    module.add("FleetRefused", refused_type(module.py())?)
}

/// `class FleetRefused(ValueError)` with a `code`.
fn refused_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let doc = "The fleet refused a call; nothing changed. Field: code.";
    exception(py, &TYPE, "FleetRefused", doc, py.get_type::<PyValueError>(), &["code"])
}

fn refused(py: Python<'_>, error: FleetError) -> PyErr {
    let build = || {
        let made = refused_type(py)?.call1((error.to_string(),))?;
        made.setattr("code", error.code())?;
        Ok::<_, PyErr>(PyErr::from_value(made))
    };
    build().unwrap_or_else(|error| error)
}

fn cost_dict<'py>(py: Python<'py>, cost: &Cost) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let terms = [
        ("queue", cost.queue),
        ("prefix", cost.prefix),
        ("load", cost.load),
        ("risk", cost.risk),
        ("displaced", cost.displaced),
    ];
    for (name, us) in terms {
        dict.set_item(name, us)?;
    }
    Ok(dict)
}

/// Replica, whether the adapter lives there, terms.
type Told<'py> = (usize, bool, Bound<'py, PyDict>);

fn told<'py>(py: Python<'py>, candidate: &Candidate) -> PyResult<Told<'py>> {
    Ok((candidate.replica.number(), candidate.is_home, cost_dict(py, &candidate.cost)?))
}

/// µs for each load and ns for each KiB of it.
type LoadPair = (u64, u64);

/// `lorad_fleet::Fleet`.
#[pyclass(module = "lorad._core")]
struct Fleet {
    fleet: Router,
}

impl Fleet {
    fn replica(&self, py: Python<'_>, number: usize) -> PyResult<ReplicaIndex> {
        let found = self.fleet.replica(number);
        found.ok_or_else(|| coded(py, &format!("there is no replica {number}"), "unknown_replica"))
    }

    fn adapter(&self, py: Python<'_>, number: usize) -> PyResult<AdapterIndex> {
        let found = self.fleet.adapter(number);
        found.ok_or_else(|| coded(py, &format!("there is no adapter {number}"), "unknown_adapter"))
    }
}

/// A refusal by a number that the crate can't be asked with, as it makes its numbers itself.
fn coded(py: Python<'_>, text: &str, code: &str) -> PyErr {
    let build = || {
        let made = refused_type(py)?.call1((text,))?;
        made.setattr("code", code)?;
        Ok::<_, PyErr>(PyErr::from_value(made))
    };
    build().unwrap_or_else(|error| error)
}

#[pymethods]
impl Fleet {
    #[new]
    #[pyo3(signature = (policy, **settings))]
    fn new(policy: &str, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let policy = Policy::named(policy)
            .ok_or_else(|| PyValueError::new_err(format!("there is no policy {policy:?}")))?;
        let mut made = Settings { policy, ..Settings::default() };
        for (name, value) in settings.into_iter().flatten() {
            let name: String = name.extract()?;
            match name.as_str() {
                "silent_us" => made.silent_us = value.extract()?,
                "half_life_us" => made.half_life_us = value.extract()?,
                "retry_us" => made.retry_us = value.extract()?,
                "away_loads" => made.away_loads = value.extract()?,
                "block_tokens" => made.block_tokens = value.extract()?,
                "blocks_max" => made.blocks_max = value.extract()?,
                _ => return Err(PyTypeError::new_err(format!("there is no setting named {name}"))),
            }
        }
        Ok(Self { fleet: Router::new(made) })
    }

    // replicas

    fn add_replica(&mut self, key: u64, weight: u32) -> usize {
        self.fleet.add_replica(key, weight).number()
    }

    fn remove_replica(&mut self, py: Python<'_>, replica: usize, now: u64) -> PyResult<()> {
        let index = self.replica(py, replica)?;
        self.fleet.remove_replica(index, now).map_err(|error| refused(py, error))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (replica, now, *, number, base, seen, queue_us, token_ns, adapter_kib_max, draining, tiers, warm = None, cold = None, absent = None))]
    fn publish(
        &mut self,
        py: Python<'_>,
        replica: usize,
        now: u64,
        number: u64,
        base: Option<u64>,
        seen: u64,
        queue_us: u64,
        token_ns: u64,
        adapter_kib_max: u64,
        draining: bool,
        tiers: Vec<(usize, String)>,
        warm: Option<LoadPair>,
        cold: Option<LoadPair>,
        absent: Option<LoadPair>,
    ) -> PyResult<()> {
        let index = self.replica(py, replica)?;
        let tiers = tiers
            .into_iter()
            .map(|(adapter, name)| {
                let tier = Tier::named(&name)
                    .ok_or_else(|| PyValueError::new_err(format!("there is no tier {name:?}")))?;
                Ok((self.adapter(py, adapter)?, tier))
            })
            .collect::<PyResult<_>>()?;
        let usual = LoadTimes::default();
        let time = |given: Option<LoadPair>, usual: LoadTime| {
            given.map_or(usual, |(us, ns_kib)| LoadTime { us, ns_kib })
        };
        let loads = LoadTimes {
            warm: time(warm, usual.warm),
            cold: time(cold, usual.cold),
            absent: time(absent, usual.absent),
        };
        let inventory = Inventory {
            number,
            base,
            seen,
            queue_us,
            loads_wait_us: 0,
            token_ns,
            adapter_kib_max,
            draining,
            loads,
            tiers,
        };
        self.fleet.publish(index, now, &inventory).map_err(|error| refused(py, error))
    }

    fn fail(&mut self, py: Python<'_>, replica: usize, now: u64) -> PyResult<()> {
        let index = self.replica(py, replica)?;
        self.fleet.fail(index, now).map_err(|error| refused(py, error))
    }

    fn is_live(&self, replica: usize, now: u64) -> bool {
        self.fleet.replica(replica).is_some_and(|index| self.fleet.is_live(index, now))
    }

    // adapters

    fn add_adapter(&mut self, key: u64, kib: u64) -> usize {
        // numbers are given in order, and never again
        self.fleet.add_adapter(Adapter { key, kib }).number()
    }

    fn remove_adapter(&mut self, py: Python<'_>, adapter: usize) -> PyResult<()> {
        let index = self.adapter(py, adapter)?;
        self.fleet.remove_adapter(index).map_err(|error| refused(py, error))
    }

    fn homes(&self, py: Python<'_>, adapter: usize) -> PyResult<Vec<usize>> {
        let homes = self.fleet.homes(self.adapter(py, adapter)?).map_err(|error| refused(py, error))?;
        Ok(homes.iter().map(|home| home.number()).collect())
    }

    fn heat(&self, py: Python<'_>, adapter: usize, now: u64) -> PyResult<f64> {
        self.fleet.heat(self.adapter(py, adapter)?, now).map_err(|error| refused(py, error))
    }

    // routing

    #[pyo3(signature = (now, *, adapter, tokens, blocks))]
    fn route<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        adapter: Option<usize>,
        tokens: u32,
        blocks: Vec<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let adapter = adapter.map(|number| self.adapter(py, number)).transpose()?;
        let request = Request { adapter, tokens, blocks: &blocks };
        let choice = self.fleet.route(&request, now).map_err(|error| refused(py, error))?;
        let dict = PyDict::new(py);
        dict.set_item("number", choice.number)?;
        dict.set_item("replica", choice.replica.number())?;
        dict.set_item("cost", cost_dict(py, &choice.cost)?)?;
        dict.set_item("runner_up", choice.runner_up.map(|one| told(py, &one)).transpose()?)?;
        Ok(dict)
    }

    #[pyo3(signature = (now, *, adapter, tokens, blocks))]
    fn candidates<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        adapter: Option<usize>,
        tokens: u32,
        blocks: Vec<u64>,
    ) -> PyResult<Vec<Told<'py>>> {
        let adapter = adapter.map(|number| self.adapter(py, number)).transpose()?;
        let request = Request { adapter, tokens, blocks: &blocks };
        let found = self.fleet.candidates(&request, now).map_err(|error| refused(py, error))?;
        found.iter().map(|one| told(py, one)).collect()
    }

    // placement

    /// (adapter, the home that it loses, the one that it gets, why) of each move.
    fn rebalance(
        &mut self,
        now: u64,
        moves_max: usize,
    ) -> Vec<(usize, Option<usize>, Option<usize>, &'static str)> {
        let number = |home: Option<ReplicaIndex>| home.map(|index| index.number());
        let moves = self.fleet.rebalance(now, moves_max);
        moves
            .iter()
            .map(|one| (one.adapter.number(), number(one.from), number(one.to), one.reason.name()))
            .collect()
    }
}
