"""Every metric, once: name, kind, labels, what it says. The server and docs/metrics.md are made of this.

vLLM's names stand for what vLLM means by them; so do `model_name` (the base's) and `engine` (always "0").
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from lorad.engine.messages import PAGE_IN_SECONDS

FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
NEXT_TOKEN_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)


class Metric(NamedTuple):
    """One family of series. A counter's series are called `name` + `_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's classes; one more for all that is above."""

    @property
    def series(self) -> str:
        """What it's asked for by; of a histogram, `_bucket`, `_sum` and `_count` follow."""
        return self.name + "_total" if self.kind == "counter" else self.name

    def counter(self, registry: CollectorRegistry) -> Counter:
        """A counter that is kept here."""
        return Counter(self.name, self.help, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry | None) -> Histogram:
        """A histogram that is kept here. None: it's shown by somebody else."""
        return Histogram(self.name, self.help, self.labels, buckets=self.buckets, registry=registry)

    def family(self, *samples: tuple[tuple[str, ...], float]) -> Family:
        """A counter or gauge that was read just now: (label values, value) of each series."""
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(self.name, self.help, labels=self.labels)
        for labels, value in samples:
            family.add_metric(labels, value)
        return family


_MODEL = ("model_name", "engine")

RUNNING = Metric("vllm:num_requests_running", "gauge", "Sequences in the running batch.", _MODEL)
WAITING = Metric("vllm:num_requests_waiting", "gauge", "Sequences that wait.", _MODEL)
PAGES_USED = Metric("vllm:kv_cache_usage_perc", "gauge", "Part of the page pool that isn't free, 0 to 1.", _MODEL)
CACHE_CONFIG = Metric(
    "vllm:cache_config_info",
    "gauge",
    "1; what the page pool is: tokens in a page, pages, number type.",
    ("block_size", "num_gpu_blocks", "cache_dtype", "engine"),
)
LORA_REQUESTS = Metric(
    "vllm:lora_requests_info",
    "gauge",
    "Unix time of the scrape; labels: names of adapters that run and that wait, joined by commas, and how many may be "
    "in one step. For routers that read vLLM's; all others want `lorad:adapter_requests_running`.",
    ("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
)
FIRST_TOKEN = Metric(
    "vllm:time_to_first_token_seconds",
    "histogram",
    "From a request's arrival to a sequence's first token.",
    _MODEL,
    FIRST_TOKEN_SECONDS,
)
NEXT_TOKEN = Metric(
    "vllm:inter_token_latency_seconds", "histogram", "Between two tokens of one sequence.", _MODEL, NEXT_TOKEN_SECONDS
)
NEXT_TOKEN_BEFORE = NEXT_TOKEN._replace(
    name="vllm:time_per_output_token_seconds",
    help="The same as `vllm:inter_token_latency_seconds`, by the name that vLLM had before 0.11.",
)
TOKEN_MEAN = Metric(
    "vllm:request_time_per_output_token_seconds",
    "histogram",
    "Mean time between the tokens of a sequence, for each that made two.",
    _MODEL,
    NEXT_TOKEN_SECONDS,
)
WHOLE = Metric(
    "vllm:e2e_request_latency_seconds",
    "histogram",
    "From a request's arrival to a sequence's end, for each that ended by itself.",
    _MODEL,
    REQUEST_SECONDS,
)
QUEUED = Metric(
    "vllm:request_queue_time_seconds",
    "histogram",
    "From a sequence's arrival in the engine until it first ran, page-in included.",
    _MODEL,
    REQUEST_SECONDS,
)
PROMPT_SIZES = Metric("vllm:request_prompt_tokens", "histogram", "Prompt tokens of a sequence.", _MODEL, TOKENS)
MADE_SIZES = Metric("vllm:request_generation_tokens", "histogram", "Tokens that a sequence made.", _MODEL, TOKENS)
PROMPT = Metric("vllm:prompt_tokens", "counter", "Prompt tokens of sequences that have ended.", _MODEL)
MADE = Metric("vllm:generation_tokens", "counter", "Tokens made by sequences that have ended.", _MODEL)
ENDS = Metric(
    "vllm:request_success",
    "counter",
    "Sequences that have ended, by reason: stop, length, abort, error.",
    (*_MODEL, "finished_reason"),
)
CACHE_QUERIES = Metric(
    "vllm:prefix_cache_queries",
    "counter",
    "Prompt tokens that the prefix cache was asked for, of sequences that have ended.",
    _MODEL,
)
CACHE_HITS = Metric("vllm:prefix_cache_hits", "counter", "Of them, tokens that it had.", _MODEL)
PREEMPTIONS = Metric("vllm:num_preemptions", "counter", "Sequences that lost their pages and began again.", _MODEL)

ENGINE_UP = Metric("lorad:engine_up", "gauge", "1 while the engine answers.")
ENGINE_STARTS = Metric("lorad:engine_restarts", "counter", "Times that the engine was started again after it had died.")
IN_FLIGHT = Metric("lorad:requests_in_flight", "gauge", "Sequences taken in and not yet answered.")
COMBINED = Metric("lorad:combined_adapters", "gauge", "Combinations of adapters that are kept.")
ANSWERS = Metric(
    "lorad:http_requests",
    "counter",
    "Answers, by route and status; 499: the client left before its answer was complete.",
    ("route", "status"),
)
REFUSALS = Metric(
    "lorad:refusals",
    "counter",
    "Answers with an error, by status and code; status 200: it came after a stream had begun.",
    ("status", "code"),
)
STEPS = Metric("lorad:steps", "counter", "Steps of the engine.")
MEMORY = Metric(
    "lorad:process_resident_memory_bytes", "gauge", "Memory of the front's and of the engine's process.", ("process",)
)
BUILD = Metric(
    "lorad:build_info",
    "gauge",
    "1; what runs here: version, the base's architecture, digest and number type.",
    ("version", "architecture", "digest", "dtype"),
)

PAGES = Metric("lorad:pages", "gauge", "Pages of the pool, by owner: free, sequences, adapters, prefixes.", ("owner",))
ADAPTERS = Metric(
    "lorad:adapters",
    "gauge",
    "Registered adapters (generations), by where they are: hot is in the pool.",
    ("tier",),
)
PAGE_INS = Metric("lorad:page_ins", "counter", "Page-ins of adapters that were begun.")
PAGE_INS_FAILED = Metric("lorad:page_ins_failed", "counter", "Page-ins that failed.")
PAGE_IN_BYTES = Metric("lorad:page_in_bytes", "counter", "Bytes copied by page-ins.")
PAGE_IN_TIMES = Metric(
    "lorad:page_in_duration_seconds", "histogram", "How long a page-in's copy took.", (), PAGE_IN_SECONDS
)
EVICTIONS = Metric("lorad:evictions", "counter", "Adapters whose pages were taken for others.")
LOAD_WAITS = Metric(
    "lorad:request_load_wait_seconds",
    "histogram",
    "Of the queue time: while the sequence's adapter was paged in. Only of those that met it not in the pool.",
    (),
    REQUEST_SECONDS,
)
CHANGES = Metric(
    "lorad:generation_changes",
    "counter",
    "Names of adapters that mean something else than before: added, replaced by another generation, removed.",
    ("change",),
)

ADAPTER_RUNNING = Metric("lorad:adapter_requests_running", "gauge", "Running sequences, by adapter.", ("adapter",))
ADAPTER_WAITING = Metric("lorad:adapter_requests_waiting", "gauge", "Waiting sequences, by adapter.", ("adapter",))
ADAPTER_STATE = Metric(
    "lorad:adapter_state",
    "gauge",
    "1 for where the adapter is, 0 for where it isn't; of `other`, how many are there.",
    ("adapter", "state"),
)
ADAPTER_PAGES = Metric("lorad:adapter_pages", "gauge", "Pages that the adapter holds.", ("adapter",))
ADAPTER_INFO = Metric(
    "lorad:adapter_info",
    "gauge",
    "1; what a name means. `other` has none.",
    ("adapter", "generation", "rank"),
)
ADAPTER_REQUESTS = Metric("lorad:adapter_requests", "counter", "Sequences that have ended, by adapter.", ("adapter",))
ADAPTER_PROMPT = Metric(
    "lorad:adapter_prompt_tokens", "counter", "Prompt tokens of sequences that have ended, by adapter.", ("adapter",)
)
ADAPTER_MADE = Metric(
    "lorad:adapter_generation_tokens", "counter", "Tokens made by sequences that have ended, by adapter.", ("adapter",)
)

TENANT_REQUESTS = Metric("lorad:tenant_requests", "counter", "Requests that its usage counts, by tenant.", ("tenant",))
TENANT_PROMPT = Metric("lorad:tenant_prompt_tokens", "counter", "Their prompt tokens.", ("tenant",))
TENANT_CACHED = Metric("lorad:tenant_cached_tokens", "counter", "Of them, tokens from the prefix cache.", ("tenant",))
TENANT_MADE = Metric("lorad:tenant_generation_tokens", "counter", "Tokens made for them.", ("tenant",))
TENANT_RUNNING = Metric("lorad:tenant_requests_running", "gauge", "Running sequences, by tenant.", ("tenant",))
TENANT_WAITING = Metric("lorad:tenant_requests_waiting", "gauge", "Waiting sequences, by tenant.", ("tenant",))
TENANT_PAGES = Metric("lorad:tenant_pages", "gauge", "Pages that count against a tenant's limit.", ("tenant",))
TENANT_SERVICE = Metric(
    "lorad:tenant_service_seconds",
    "gauge",
    "What a tenant was charged over its weight, in the cost model's time: the least one is next, who comes back rises "
    "to the others'. Of `other`: the least among them.",
    ("tenant",),
)

SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    (
        "vLLM's names",
        (
            RUNNING, WAITING, PAGES_USED, CACHE_CONFIG, LORA_REQUESTS, FIRST_TOKEN, NEXT_TOKEN, NEXT_TOKEN_BEFORE,
            TOKEN_MEAN, WHOLE, QUEUED, PROMPT_SIZES, MADE_SIZES, PROMPT, MADE, ENDS, CACHE_QUERIES, CACHE_HITS,
            PREEMPTIONS,
        ),
    ),
    ("The server", (ENGINE_UP, ENGINE_STARTS, IN_FLIGHT, COMBINED, ANSWERS, REFUSALS, STEPS, MEMORY, BUILD)),
    (
        "Pool and adapters",
        (
            PAGES, ADAPTERS, PAGE_INS, PAGE_INS_FAILED, PAGE_IN_BYTES, PAGE_IN_TIMES, EVICTIONS, LOAD_WAITS, CHANGES,
        ),
    ),
    (
        "Each adapter",
        (
            ADAPTER_RUNNING, ADAPTER_WAITING, ADAPTER_STATE, ADAPTER_PAGES, ADAPTER_INFO, ADAPTER_REQUESTS,
            ADAPTER_PROMPT, ADAPTER_MADE,
        ),
    ),
    (
        "Each tenant",
        (
            TENANT_REQUESTS, TENANT_PROMPT, TENANT_CACHED, TENANT_MADE, TENANT_RUNNING, TENANT_WAITING, TENANT_PAGES,
            TENANT_SERVICE,
        ),
    ),
)  # fmt: skip
"""All of them, as the document lists them."""
