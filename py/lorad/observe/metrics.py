"""`Metrics`: what is counted as requests pass, in a registry of our own, and the text of a scrape.

Counters and histograms are kept here. Gauges are read from the engine at each scrape (`gauges.py`): they can't drift.
What has an adapter's or a tenant's name for a label has a bounded number of them (`busiest.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from lorad import __version__
from lorad.engine.messages import ModelInfo, Stats, Waits
from lorad.observe import catalog, gauges
from lorad.observe.busiest import Busiest, BusiestCounters
from lorad.observe.recent import Recent
from lorad.server.gate import Gate
from lorad.server.registry import Change, Registry


class Ended(NamedTuple):
    """A sequence that has ended, one way or another. Times in seconds."""

    model: str
    reason: str
    """stop, length, abort, error."""
    prompt_tokens: int
    made_tokens: int
    cached_tokens: int
    seconds: float
    """Since its request arrived."""
    making_seconds: float
    """From its first token to its last."""
    waits: Waits | None


class Used(NamedTuple):
    """What a request used, whose it was."""

    tenant: str
    prompt_tokens: int
    cached_tokens: int
    made_tokens: int


class Metrics:
    """All metrics of one server."""

    def __init__(
        self,
        registry: Registry,
        gate: Gate,
        model: ModelInfo,
        combined: Callable[[], int],
        *,
        labels_max: int = 100,
        step_adapters_max: int = 64,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`combined`: how many combinations of adapters there are. `labels_max`: adapters, and tenants, with series of
        their own. `step_adapters_max`: told as `max_lora`."""
        self._names = registry
        self._gate = gate
        self._model = model
        self._combined = combined
        self._step_adapters_max = step_adapters_max
        self._stats: Stats | None = None
        self.tenants: Callable[[], Mapping[int, str]] = dict
        """Names of all tenants by number, where there are any."""
        self._in_flight: dict[str, list[int]] = {}
        """By name: sequences without a token yet, and with one."""
        self.recent = Recent()
        # A series of the start time beside each counter: twice as many, and Prometheus' text form has no use for them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self._labels = labels = registry.base_name, "0"

        def histogram(metric: catalog.Metric) -> Histogram:
            made = metric.histogram(self.registry)
            return made.labels(*labels) if metric.labels else made

        def counter(metric: catalog.Metric) -> Counter:
            return metric.counter(self.registry).labels(*labels)

        self._first_token = histogram(catalog.FIRST_TOKEN)
        next_tokens = catalog.NEXT_TOKEN.histogram(self.registry)
        self._next_token = next_tokens.labels(*labels)
        self.registry.register(_Again(next_tokens, catalog.NEXT_TOKEN_BEFORE))
        self._token_mean = histogram(catalog.TOKEN_MEAN)
        self._whole = histogram(catalog.WHOLE)
        self._queued = histogram(catalog.QUEUED)
        self._load_wait = histogram(catalog.LOAD_WAITS)
        self._prompt_sizes = histogram(catalog.PROMPT_SIZES)
        self._made_sizes = histogram(catalog.MADE_SIZES)
        self._prompt = counter(catalog.PROMPT)
        self._made = counter(catalog.MADE)
        self._queries = counter(catalog.CACHE_QUERIES)
        self._hits = counter(catalog.CACHE_HITS)
        self._ends = catalog.ENDS.counter(self.registry)
        self._answers = catalog.ANSWERS.counter(self.registry)
        self._refusals = catalog.REFUSALS.counter(self.registry)
        self._engine_starts = catalog.ENGINE_STARTS.counter(self.registry)
        self._changes = catalog.CHANGES.counter(self.registry)
        for change in ("added", "replaced", "removed"):
            self._changes.labels(change)
        self._busy_adapters = Busiest(labels_max, now=now)
        self._adapter_use = BusiestCounters(
            (catalog.ADAPTER_REQUESTS, catalog.ADAPTER_PROMPT, catalog.ADAPTER_MADE), self._busy_adapters
        )
        self._busy_tenants = Busiest(labels_max, now=now)
        self._tenant_use = BusiestCounters(
            (catalog.TENANT_REQUESTS, catalog.TENANT_PROMPT, catalog.TENANT_CACHED, catalog.TENANT_MADE),
            self._busy_tenants,
        )
        self.registry.register(_Read(self._read))
        registry.on_changed(self._changed)

    def began(self, name: str) -> None:
        """A sequence was handed to the engine."""
        self._in_flight.setdefault(name, [0, 0])[0] += 1

    def first_token(self, name: str, seconds: float, now: float, tenant: int = 0) -> None:
        """A sequence has its first token, `seconds` after its request came; `now` on the loop's clock."""
        counts = self._in_flight[name]
        counts[0] -= 1
        counts[1] += 1
        self._first_token.observe(seconds)
        self.recent.token(now)
        self.recent.first_token(now, seconds, tenant)

    def next_token(self, seconds: float, now: float) -> None:
        """A sequence has one more token."""
        self._next_token.observe(seconds)
        self.recent.token(now)

    def ended(self, end: Ended) -> None:
        """A sequence has ended."""
        name, prompt, made = end.model, end.prompt_tokens, end.made_tokens
        counts = self._in_flight[name]
        counts[1 if made else 0] -= 1
        if counts == [0, 0]:
            del self._in_flight[name]
        self._ends.labels(*self._labels, end.reason).inc()
        self._prompt.inc(prompt)
        self._made.inc(made)
        self._prompt_sizes.observe(prompt)
        self._made_sizes.observe(made)
        if made or end.reason in ("stop", "length"):  # it ran
            self._queries.inc(prompt)
            self._hits.inc(end.cached_tokens)
        if end.reason in ("stop", "length"):
            self._whole.observe(end.seconds)
        if made > 1:
            self._token_mean.observe(end.making_seconds / (made - 1))
        if end.waits is not None:
            self._queued.observe(end.waits.queue_s)
            if end.waits.tier not in ("hot", "base"):
                self._load_wait.observe(end.waits.load_s)
        if self._names.is_adapter(name):
            self._adapter_use.add(name, 1, prompt, made)

    def answered(self, route: str, status: int, code: str) -> None:
        """An HTTP answer was given; `code`: of its error, "" if there was none."""
        self._answers.labels(route, str(status)).inc()
        if code:
            self._refusals.labels(str(status), code).inc()

    def engine_started_again(self) -> None:
        """The engine had died."""
        self._engine_starts.inc()

    def used(self, used: Used) -> None:
        """A tenant's request has ended."""
        self._tenant_use.add(used.tenant, 1, used.prompt_tokens, used.cached_tokens, used.made_tokens)

    def exposition(self, stats: Stats | None) -> bytes:
        """The text of a scrape; `stats` are the engine's numbers now, None if it gives none."""
        self._stats = stats
        return generate_latest(self.registry)

    def _changed(self, change: Change) -> None:
        self._changes.labels(change.kind).inc()
        if change.after is None:
            self._adapter_use.forget(change.name)

    def _read(self) -> Iterator[Family]:
        """What is read at the scrape."""
        stats, adapters, tenants = self._stats, self._names.adapters, self.tenants()
        self._busy_adapters.review(adapters)
        self._busy_tenants.review(tenants.values())
        yield from self._adapter_use.families()
        yield from self._tenant_use.families()
        yield catalog.IN_FLIGHT.family(((), self._gate.inside))
        yield catalog.COMBINED.family(((), self._combined()))
        yield catalog.ENGINE_UP.family(((), 0 if stats is None else 1))
        yield gauges.build(__version__, self._model)
        yield gauges.cache_config(self._model)
        yield gauges.memory(stats)
        if stats is None:
            return
        yield from gauges.engine(stats, self._labels)
        yield from gauges.pool(stats)
        by_name = gauges.adapters_now(adapters, stats, self._in_flight)
        yield gauges.lora_requests(by_name, self._step_adapters_max)
        yield from gauges.each_adapter(by_name, self._busy_adapters)
        yield from gauges.each_tenant(stats, tenants, self._busy_tenants)


class _Read(Collector):
    """What is read when it's asked for."""

    def __init__(self, read: Callable[[], Iterable[Family]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Family]:
        return self._read()


class _Again(Collector):
    """A histogram by another name."""

    def __init__(self, histogram: Histogram, metric: catalog.Metric) -> None:
        self._histogram = histogram
        self._metric = metric

    def collect(self) -> Iterable[Family]:
        for family in self._histogram.collect():
            again = Family(self._metric.name, self._metric.help, family.type)
            for sample in family.samples:
                again.samples.append(sample._replace(name=sample.name.replace(family.name, again.name)))
            yield again
