//! The scheduler for Python: `Core`, `Refused`, `run_script`.

use lorad_sched::trace::{Log, Recorder};
use lorad_sched::{
    AdapterId, AdapterSpec, CommitError, Config, ConfigError, Event, Eviction, Order, PageInError, Priority,
    Refusal, RequestSpec, Split, StepError, TenantSpec,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use crate::buffers::{View, ViewMut};
use crate::costs::set_costs;
use crate::events::event_list;
use crate::trace::Replay;

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Core>()?;
    module.add_function(wrap_pyfunction!(run_script, module)?)?;
    module.add("Refused", refused_type(module.py())?)?;
    module.add("SAMPLE_FAILED", lorad_sched::SAMPLE_FAILED)?;
    module.add("REFUSAL_CODES", Refusal::CODES.to_vec())?;
    Ok(())
}

/// `class Refused(ValueError)` with `code`, `limit`, `value` and, for a limit of a configuration, `field`. Built as a plain Python class: an abi3 module can't
/// subclass a built-in exception with fields of its own.
fn refused_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static TYPE: pyo3::sync::PyOnceLock<Py<PyType>> = pyo3::sync::PyOnceLock::new();
    let made = TYPE.get_or_try_init(py, || {
        let fields = PyDict::new(py);
        fields.set_item("__module__", "lorad._core")?;
        fields.set_item(
            "__doc__",
            "The core refused a call; nothing changed. Fields: code, limit, value, field.",
        )?;
        for field in ["code", "limit", "value", "field"] {
            fields.set_item(field, py.None())?;
        }
        let bases = PyTuple::new(py, [py.get_type::<PyValueError>()])?;
        let made = py.get_type::<PyType>().call1(("Refused", bases, fields))?;
        Ok::<_, PyErr>(made.cast_into::<PyType>()?.unbind())
    })?;
    Ok(made.bind(py).clone())
}

fn refused(py: Python<'_>, text: String, code: &str, limit: Option<u64>, value: Option<u64>) -> PyErr {
    let build = || {
        let error = refused_type(py)?.call1((text,))?;
        error.setattr("code", code)?;
        error.setattr("limit", limit)?;
        error.setattr("value", value)?;
        Ok::<_, PyErr>(PyErr::from_value(error))
    };
    build().unwrap_or_else(|error| error)
}

fn from_refusal(py: Python<'_>, error: Refusal) -> PyErr {
    let (limit, value) = error.numbers();
    refused(py, error.to_string(), error.code(), limit, value)
}

fn from_config(py: Python<'_>, error: ConfigError) -> PyErr {
    let (code, field, limit, value) = match error {
        ConfigError::TooSmall { field, limit, value } => ("config_too_small", field, limit, value),
        ConfigError::TooLarge { field, limit, value } => ("config_too_large", field, limit, value),
    };
    let refusal = refused(py, error.to_string(), code, Some(limit), Some(value));
    match refusal.value(py).setattr("field", field) {
        Ok(()) => refusal,
        Err(error) => error,
    }
}

fn from_step(py: Python<'_>, error: StepError) -> PyErr {
    let (code, limit, value) = match error {
        StepError::PlanInFlight { number } => ("plan_in_flight", None, number),
        StepError::BufferLength { needed, given } => ("buffer_length", Some(needed), given),
    };
    refused(py, error.to_string(), code, limit, Some(value))
}

fn from_commit(py: Python<'_>, error: CommitError) -> PyErr {
    let (code, limit, value) = match error {
        CommitError::NothingInFlight { given } => ("nothing_in_flight", None, Some(given)),
        CommitError::WrongPlan { expected, given } => ("wrong_plan", Some(expected), Some(given)),
        CommitError::WrongCount { expected, given } => ("wrong_count", Some(expected), Some(given)),
        CommitError::TokenOutOfRange { index: _, limit, token } => {
            ("token_out_of_range", Some(limit.into()), u64::try_from(token).ok())
        }
    };
    refused(py, error.to_string(), code, limit, value)
}

fn from_page_in(py: Python<'_>, error: PageInError) -> PyErr {
    let (code, adapter) = match error {
        PageInError::UnknownAdapter { adapter } => ("unknown_adapter", adapter),
        PageInError::NotLoading { adapter } => ("not_loading", adapter),
        PageInError::NotRemote { adapter } => ("not_remote", adapter),
        PageInError::NotDropped { adapter } => ("not_dropped", adapter),
    };
    refused(py, error.to_string(), code, None, Some(adapter.number().into()))
}

/// Token ids from a buffer of 32-bit unsigned integers, or from any sequence of integers.
fn token_ids(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<u32>> {
    if let Ok(view) = View::<u32>::new(object, name) {
        return Ok(view.as_slice().to_vec());
    }
    object.extract().map_err(|error| PyTypeError::new_err(format!("{name}: token ids expected ({error})")))
}

/// Runs a text script and returns it with the state that each command printed.
#[pyfunction]
fn run_script(text: &str) -> String {
    lorad_sched::script::run(text)
}

/// The scheduler: a value that is stepped. See ARCHITECTURE.md for the calls and the plan.
#[pyclass(module = "lorad._core")]
struct Core {
    /// Writes its inputs when it was made so, else nothing; reads go straight to the core.
    core: Recorder<String>,
    events: Vec<Event>,
}

/// Limits with others from keywords: counts, times, `order`, `eviction`, `split` and `costs` by name.
fn with_limits(mut config: Config, limits: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    for (key, value) in limits.into_iter().flatten() {
        let key: String = key.extract()?;
        if let Some((_, field)) = config.fields_mut().into_iter().find(|(name, _)| *name == key) {
            *field = value.extract()?;
            continue;
        }
        if let Some((_, field)) = config.times_mut().into_iter().find(|(name, _)| *name == key) {
            *field = value.extract()?;
            continue;
        }
        if let Some((_, field)) = config.switches_mut().into_iter().find(|(name, _)| *name == key) {
            *field = value.is_truthy()?;
            continue;
        }
        match key.as_str() {
            "order" => config.policy.order = named(&value, "order", &ORDERS)?,
            "eviction" => config.policy.eviction = named(&value, "eviction", &EVICTIONS)?,
            "adapter_pages" => config.policy.split = Split::Fixed { adapter_pages: value.extract()? },
            "slots" => {
                let (count, pages) = value.extract()?;
                config.policy.split = Split::Slots { count, pages };
            }
            "costs" => set_costs(&mut config.costs, value.cast::<PyDict>()?)?,
            _ => return Err(PyTypeError::new_err(format!("Core() has no limit named {key}"))),
        }
    }
    Ok(config)
}

const ORDERS: [(&str, Order); 3] =
    [("fair", Order::Fair), ("arrival", Order::Arrival), ("affinity", Order::Affinity)];
const EVICTIONS: [(&str, Eviction); 2] = [("cost", Eviction::Cost), ("lru", Eviction::Lru)];
const PRIORITIES: [(&str, Priority); 3] =
    [("low", Priority::Low), ("normal", Priority::Normal), ("high", Priority::High)];

/// One of a few named values.
fn named<T: Copy>(value: &Bound<'_, PyAny>, what: &str, known: &[(&str, T)]) -> PyResult<T> {
    let text: String = value.extract()?;
    known.iter().find(|(name, _)| *name == text).map(|(_, found)| *found).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        PyValueError::new_err(format!("{what} = {text:?}: one of {}", names.join(", ")))
    })
}

#[pymethods]
impl Core {
    #[new]
    #[pyo3(signature = (**limits))]
    fn new(py: Python<'_>, limits: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let config = with_limits(Config::default(), limits)?;
        let core = Recorder::off(config, String::new()).map_err(|error| from_config(py, error))?;
        Ok(Self { core, events: Vec::new() })
    }

    /// A core that writes its inputs, for `take_trace`; limits that aren't given are those of `like`.
    #[staticmethod]
    #[pyo3(signature = (like = None, bytes_max = None, **limits))]
    fn recorded(
        py: Python<'_>,
        like: Option<&Replay>,
        bytes_max: Option<u64>,
        limits: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let config =
            with_limits(like.map_or_else(Config::default, |replay| replay.limits().clone()), limits)?;
        let core = Recorder::new(config, String::new(), bytes_max).map_err(|error| from_config(py, error))?;
        Ok(Self { core, events: Vec::new() })
    }

    /// The limits that are counts or times, by name.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (mut config, dict) = (self.core.config().clone(), PyDict::new(py));
        for (name, field) in config.fields_mut() {
            dict.set_item(name, *field)?;
        }
        for (name, field) in config.times_mut() {
            dict.set_item(name, *field)?;
        }
        for (name, field) in config.switches_mut() {
            dict.set_item(name, u8::from(*field))?;
        }
        Ok(dict)
    }

    /// Name → (offset, length) of each section of the plan, in elements.
    fn plan_layout<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, offset, length) in self.core.plan_layout().sections() {
            dict.set_item(name, (offset, length))?;
        }
        Ok(dict)
    }

    /// Elements of the plan's int32 buffer.
    fn plan_length(&self) -> usize {
        self.core.plan_layout().length()
    }

    /// A plan as text.
    fn plan_text(&self, plan: &Bound<'_, PyAny>) -> PyResult<String> {
        let plan = View::<i32>::new(plan, "plan")?;
        Ok(self.core.plan_layout().view(plan.as_slice()).to_string())
    }

    /// Registers an adapter, cold (or remote); returns its id.
    #[pyo3(signature = (tag, pages, layers, *, tenant = 0, weight = 100, remote = false))]
    fn register(
        &mut self,
        py: Python<'_>,
        tag: u32,
        pages: u32,
        layers: u32,
        tenant: u32,
        weight: u32,
        remote: bool,
    ) -> PyResult<u32> {
        let adapter = self.core.register(AdapterSpec { tag, pages, layers, tenant, weight, remote });
        Ok(adapter.map_err(|error| from_refusal(py, error))?.number())
    }

    /// Sets a tenant's share and limits; what isn't given is unlimited, the weight 100.
    #[pyo3(signature = (tenant, *, weight = 100, pages_max = u32::MAX, adapters_max = u32::MAX, running_max = u32::MAX, waiting_max = u32::MAX))]
    fn set_tenant(
        &mut self,
        py: Python<'_>,
        tenant: u32,
        weight: u32,
        pages_max: u32,
        adapters_max: u32,
        running_max: u32,
        waiting_max: u32,
    ) -> PyResult<()> {
        let spec = TenantSpec { weight, pages_max, adapters_max, running_max, waiting_max };
        self.core.set_tenant(tenant, spec).map_err(|error| from_refusal(py, error))
    }

    /// Keeps an adapter in its pages once it's there, and pages it in.
    #[pyo3(signature = (now, adapter, pinned = true))]
    fn pin(&mut self, py: Python<'_>, now: u64, adapter: u32, pinned: bool) -> PyResult<()> {
        let adapter = AdapterId::from_number(adapter);
        self.core.pin(now, adapter, pinned).map_err(|error| from_refusal(py, error))
    }

    /// Pages an adapter in as soon as there is room that nobody uses.
    fn prewarm(&mut self, py: Python<'_>, now: u64, adapter: u32) -> PyResult<()> {
        self.core.prewarm(now, AdapterId::from_number(adapter)).map_err(|error| from_refusal(py, error))
    }

    /// Takes no new requests for an adapter; it is forgotten when the last one has ended.
    fn unregister(&mut self, now: u64, adapter: u32) {
        self.core.unregister(now, AdapterId::from_number(adapter));
    }

    /// Takes a request into its queue.
    #[pyo3(signature = (now, id, adapter, prompt, max_tokens, stop_tokens = None, *, tenant = 0, priority = None, deadline = None, after = None, fresh = false))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn add(
        &mut self,
        now: u64,
        id: u64,
        adapter: Option<u32>,
        prompt: &Bound<'_, PyAny>,
        max_tokens: u32,
        stop_tokens: Option<&Bound<'_, PyAny>>,
        tenant: u32,
        priority: Option<&Bound<'_, PyAny>>,
        deadline: Option<u64>,
        after: Option<u64>,
        fresh: bool,
    ) -> PyResult<()> {
        let spec = RequestSpec {
            id,
            tenant,
            adapter: adapter.map(AdapterId::from_number),
            prompt: token_ids(prompt, "prompt")?,
            max_tokens,
            stop_tokens: stop_tokens.map_or(Ok(Vec::new()), |tokens| token_ids(tokens, "stop_tokens"))?,
            priority: priority.map_or(Ok(Priority::Normal), |value| named(value, "priority", &PRIORITIES))?,
            deadline,
            after,
            fresh,
        };
        self.core.add(now, spec).map_err(|error| from_refusal(prompt.py(), error))
    }

    /// Ends a request, in any state; unknown ids are ignored.
    fn abort(&mut self, now: u64, id: u64) {
        self.core.abort(now, id);
    }

    /// Makes the next plan in place; its number, or None when nothing can run now.
    fn step(&mut self, now: u64, plan: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let mut view = ViewMut::<i32>::new(plan, "plan")?;
        self.core.step(now, view.as_mut_slice()).map_err(|error| from_step(plan.py(), error))
    }

    /// Applies plan n: one token per row that samples, in the plan's order; SAMPLE_FAILED ends that row's request.
    fn commit(&mut self, now: u64, n: u64, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let result = match View::<i32>::new(tokens, "tokens") {
            Ok(view) => self.core.commit(now, n, view.as_slice()),
            Err(_) => self.core.commit(now, n, &tokens.extract::<Vec<i32>>()?),
        };
        result.map_err(|error| from_commit(tokens.py(), error))
    }

    /// The worker lost plan n: its requests end as failed.
    fn commit_failed(&mut self, py: Python<'_>, now: u64, n: u64) -> PyResult<()> {
        self.core.commit_failed(now, n).map_err(|error| from_commit(py, error))
    }

    /// The adapter's bytes are in its pages.
    fn page_in_done(&mut self, py: Python<'_>, now: u64, adapter: u32) -> PyResult<()> {
        let adapter = AdapterId::from_number(adapter);
        self.core.page_in_done(now, adapter).map_err(|error| from_page_in(py, error))
    }

    /// The adapter's bytes didn't arrive: its waiting requests end as failed.
    fn page_in_failed(&mut self, py: Python<'_>, now: u64, adapter: u32) -> PyResult<()> {
        let adapter = AdapterId::from_number(adapter);
        self.core.page_in_failed(now, adapter).map_err(|error| from_page_in(py, error))
    }

    /// The host has stopped a page-in that `adapter_dropped` was said of.
    fn page_in_dropped(&mut self, py: Python<'_>, now: u64, adapter: u32) -> PyResult<()> {
        let adapter = AdapterId::from_number(adapter);
        self.core.page_in_dropped(now, adapter).map_err(|error| from_page_in(py, error))
    }

    /// So many layers of an adapter are in its pages.
    fn page_in_reached(&mut self, py: Python<'_>, now: u64, adapter: u32, layers: u32) -> PyResult<()> {
        let adapter = AdapterId::from_number(adapter);
        self.core.page_in_reached(now, adapter, layers).map_err(|error| from_page_in(py, error))
    }

    /// The bytes of a remote adapter are on the host.
    fn arrived(&mut self, py: Python<'_>, now: u64, adapter: u32) -> PyResult<()> {
        let adapter = AdapterId::from_number(adapter);
        self.core.arrived(now, adapter).map_err(|error| from_page_in(py, error))
    }

    /// The bytes of a remote adapter can't be brought: its waiting requests end as failed.
    fn fetch_failed(&mut self, py: Python<'_>, now: u64, adapter: u32) -> PyResult<()> {
        let adapter = AdapterId::from_number(adapter);
        self.core.fetch_failed(now, adapter).map_err(|error| from_page_in(py, error))
    }

    /// All events since the last call, as (kind, id of request or adapter, value).
    fn drain_events<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.core.drain_events(&mut self.events);
        event_list(py, self.events.drain(..))
    }

    /// The last events as text, a line each with its time and plan, drained ones too.
    fn recent(&self) -> String {
        self.core.recent().to_string()
    }

    /// The lines that were recorded since the last call.
    fn take_trace(&mut self) -> String {
        std::mem::take(self.core.sink_mut())
    }

    /// Writes a remark into the trace.
    fn remark(&mut self, text: &str) {
        self.core.remark(text);
    }

    /// Whether it still records: "off", "open", "full" or "broken".
    #[getter]
    fn recording(&self) -> &'static str {
        match self.core.log() {
            Log::Off => "off",
            Log::Open => "open",
            Log::Full => "full",
            Log::Broken => "broken",
        }
    }

    /// Does any request live, or any page-in run?
    fn has_work(&self) -> bool {
        self.core.has_work()
    }

    /// Adapters that were pinned or prewarmed and wait for room that nobody uses.
    fn wishes(&self) -> usize {
        self.core.wishes()
    }

    /// Number of the plan in flight.
    #[getter]
    fn in_flight(&self) -> Option<u64> {
        self.core.in_flight()
    }

    /// Compares everything with everything; None, or what doesn't agree.
    fn check(&self) -> Option<String> {
        self.core.check().err()
    }

    /// The whole state as stable text.
    fn dump(&self) -> String {
        self.core.dump()
    }

    /// Why a request that lives, or one of the last that ended, took as long as it did.
    fn explain<'py>(&self, py: Python<'py>, request: u64) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(found) = self.core.explain(request) else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("request", found.request)?;
        dict.set_item("tenant", found.tenant)?;
        dict.set_item("adapter", found.adapter.map(|(adapter, _)| adapter.number()))?;
        dict.set_item("tag", found.adapter.map(|(_, tag)| tag))?;
        dict.set_item("tier", found.tier)?;
        dict.set_item("arrived", found.arrived)?;
        dict.set_item("admitted", found.admitted)?;
        dict.set_item("first_token", found.first_token)?;
        dict.set_item("finished", found.finished)?;
        dict.set_item("waited_for", found.waited_for)?;
        dict.set_item("passed_by", found.passed_by)?;
        dict.set_item("preemptions", found.preemptions)?;
        dict.set_item("cached_tokens", found.cached_tokens)?;
        Ok(Some(dict))
    }

    /// Figures: running, waiting, pages by owner, counters; `adapters`: id → (state, running, waiting, pages); `tenants`: number → (service in ns,
    /// running, waiting, pages).
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, dict) = (self.core.stats(), PyDict::new(py));
        let figures = [
            ("running", stats.running),
            ("waiting", stats.waiting),
            ("adapters_loading", stats.adapters_loading),
            ("adapters_active", stats.adapters_active),
            ("slots_free", stats.slots_free),
            ("pages", stats.pages_total),
            ("pages_free", stats.pages_free),
            ("pages_sequences", stats.pages_sequence),
            ("pages_adapters", stats.pages_adapter),
            ("pages_cached", stats.pages_cached),
            ("pages_reserved", stats.pages_reserved),
        ];
        for (name, figure) in figures {
            dict.set_item(name, figure)?;
        }
        for (name, figure) in stats.counters.named() {
            dict.set_item(name, figure)?;
        }
        let adapters = PyDict::new(py);
        for adapter in self.core.adapter_stats() {
            let figures = (adapter.state, adapter.running, adapter.waiting, adapter.pages);
            adapters.set_item(adapter.adapter.number(), figures)?;
        }
        dict.set_item("adapters", adapters)?;
        let tenants = PyDict::new(py);
        for tenant in self.core.tenant_stats() {
            tenants
                .set_item(tenant.tenant, (tenant.service, tenant.running, tenant.waiting, tenant.pages))?;
        }
        dict.set_item("tenants", tenants)?;
        Ok(dict)
    }
}
