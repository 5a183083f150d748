"""Metrics in Prometheus form, in a registry of our own. vLLM's names where boards and routers read them.

Counters and histograms are kept here as requests pass. Gauges are read from the engine at each scrape, so they can't
drift. An adapter has one series per metric from the moment it has a name until the name is taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lorad.engine.messages import Stats
from lorad.server.gate import Gate
from lorad.server.recent import Recent
from lorad.server.registry import Registry

FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
NEXT_TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0,
)  # fmt: skip

ADAPTER_STATES = ("cold", "loading", "hot", "draining", "failed")


class Metrics:
    """All metrics of one server."""

    def __init__(self, registry: Registry, gate: Gate, combined: Callable[[], int]) -> None:
        """`combined`: how many combinations of adapters there are."""
        self._names = registry
        self._combined = combined
        self._gate = gate
        self._stats: Stats | None = None
        self._in_flight: dict[str, list[int]] = {}
        """By name: sequences without a token yet, and with one."""
        self.recent = Recent()
        self.registry = CollectorRegistry(auto_describe=False)
        model = {"model_name": registry.base_name}
        labels = tuple(model)
        self._first_token = Histogram(
            "vllm:time_to_first_token_seconds",
            "Time from the request's arrival to its first token.",
            labels,
            buckets=FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        ).labels(**model)
        self._next_token = Histogram(
            "vllm:time_per_output_token_seconds",
            "Time between two tokens of one sequence.",
            labels,
            buckets=NEXT_TOKEN_BUCKETS,
            registry=self.registry,
        ).labels(**model)
        self._prompt = Counter(
            "vllm:prompt_tokens", "Prompt tokens of sequences that have ended.", labels, registry=self.registry
        ).labels(**model)
        self._made = Counter(
            "vllm:generation_tokens", "Tokens made by sequences that have ended.", labels, registry=self.registry
        ).labels(**model)
        self._ends = Counter(
            "vllm:request_success",
            "Sequences that have ended, by reason.",
            (*labels, "finished_reason"),
            registry=self.registry,
        )
        self._model_name = registry.base_name
        self._http = Counter(
            "lorad:http_requests", "Answers, by route and status.", ("route", "status"), registry=self.registry
        )
        self._adapter_prompt = Counter(
            "lorad:adapter_prompt_tokens", "Prompt tokens, by adapter.", ("adapter",), registry=self.registry
        )
        self._adapter_made = Counter(
            "lorad:adapter_generation_tokens", "Tokens made, by adapter.", ("adapter",), registry=self.registry
        )
        self.registry.register(_Gauges(self))
        registry.on_withdrawn(self.forget)

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

    def ended(self, name: str, started: bool, reason: str, prompt_tokens: int, made_tokens: int) -> None:
        """A sequence has ended, one way or another."""
        counts = self._in_flight[name]
        counts[1 if started else 0] -= 1
        if counts == [0, 0]:
            del self._in_flight[name]
        self._ends.labels(self._model_name, reason).inc()
        self._prompt.inc(prompt_tokens)
        self._made.inc(made_tokens)
        if name in self._names.adapters:
            self._adapter_prompt.labels(name).inc(prompt_tokens)
            self._adapter_made.labels(name).inc(made_tokens)

    def answered(self, route: str, status: int) -> None:
        """An HTTP answer was given."""
        self._http.labels(route, str(status)).inc()

    def forget(self, name: str) -> None:
        """An adapter's name was taken away; its series go."""
        for counter in (self._adapter_prompt, self._adapter_made):
            counter.remove_by_labels({"adapter": name})

    def exposition(self, stats: Stats | None) -> bytes:
        """The text of a scrape; `stats` are the engine's numbers now, None if it gives none."""
        self._stats = stats
        return generate_latest(self.registry)

    def gauges(self) -> Iterator[Metric]:
        """What is read at the scrape."""
        stats, model = self._stats, [self._model_name]
        yield _gauge("lorad:engine_up", "1 while the engine answers.", [], [([], 0 if stats is None else 1)])
        yield _gauge(
            "lorad:requests_in_flight", "Sequences taken in and not yet answered.", [], [([], self._gate.inside)]
        )
        yield _gauge("lorad:combined_adapters", "Combinations of adapters that are kept.", [], [([], self._combined())])
        if stats is None:
            return
        for name, help_text, value in (
            ("vllm:num_requests_running", "Sequences in the running batch.", stats.running),
            ("vllm:num_requests_waiting", "Sequences that wait.", stats.waiting),
            ("vllm:kv_cache_usage_perc", "Part of the page pool that isn't free, 0 to 1.", _used(stats)),
        ):
            yield _gauge(name, help_text, ["model_name"], [(model, value)])
        yield _gauge(
            "lorad:pages",
            "Pages of the pool, by owner.",
            ["owner"],
            [
                (["free"], stats.pages_free),
                (["sequences"], stats.pages_sequences),
                (["adapters"], stats.pages_adapters),
                (["prefixes"], stats.pages_cached),
            ],
        )
        for name, help_text, value in (
            ("lorad:preemptions", "Sequences that lost their pages, since the start.", stats.preemptions),
            ("lorad:evictions", "Adapters whose pages were taken, since the start.", stats.evictions),
            ("lorad:page_ins", "Adapters copied into pages, since the start.", stats.page_ins),
            ("lorad:steps", "Steps, since the start.", stats.steps),
        ):
            yield _gauge(name, help_text, [], [([], value)])
        yield from self._adapter_gauges(stats)

    def _adapter_gauges(self, stats: Stats) -> Iterator[Metric]:
        running, waiting, state, pages, info = [], [], [], [], []
        adapters = self._names.adapters
        names_of: dict[str, int] = {}
        for adapter in adapters.values():
            names_of[adapter.generation] = names_of.get(adapter.generation, 0) + 1
        for name, adapter in adapters.items():
            told = stats.adapters.get(adapter.generation)
            counts = self._in_flight.get(name, [0, 0])
            # The engine counts by generation. Two names for one content are told apart by what the front has sent.
            shared = names_of[adapter.generation] > 1 or told is None
            running.append(([name], counts[1] if shared or told is None else told.running))
            waiting.append(([name], counts[0] if shared or told is None else told.waiting))
            now = told.state if told is not None else "cold"
            state += [([name, each], 1 if each == now else 0) for each in ADAPTER_STATES]
            pages.append(([name], told.pages if told is not None else 0))
            info.append(([name, adapter.generation, str(adapter.rank)], 1))
        yield _gauge("lorad:adapter_requests_running", "Running sequences, by adapter.", ["adapter"], running)
        yield _gauge("lorad:adapter_requests_waiting", "Waiting sequences, by adapter.", ["adapter"], waiting)
        yield _gauge(
            "lorad:adapter_state", "1 for where the adapter is: hot is in the pool.", ["adapter", "state"], state
        )
        yield _gauge("lorad:adapter_pages", "Pages that the adapter holds.", ["adapter"], pages)
        yield _gauge("lorad:adapter_info", "What a name means.", ["adapter", "generation", "rank"], info)


class _Gauges(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.gauges()


def _gauge(name: str, help_text: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _used(stats: Stats) -> float:
    return 1.0 - stats.pages_free / stats.pages_total if stats.pages_total else 0.0
