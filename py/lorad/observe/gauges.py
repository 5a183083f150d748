"""What is read at a scrape, from the engine's numbers of that moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from lorad.engine.messages import PAGE_IN_SECONDS, AdapterInfo, ModelInfo, Stats
from lorad.observe import catalog
from lorad.observe.busiest import OTHER, Busiest
from lorad.observe.memory import resident_bytes

TIERS = ("cold", "loading", "hot", "draining", "failed")


class AdapterNow(NamedTuple):
    """One name at this moment."""

    info: AdapterInfo
    state: str
    running: int
    waiting: int
    pages: int


def build(version: str, model: ModelInfo) -> Family:
    """What runs here."""
    return catalog.BUILD.family(((version, model.architecture, model.digest, model.dtype), 1))


def cache_config(model: ModelInfo) -> Family:
    """The pool, as vLLM tells it."""
    return catalog.CACHE_CONFIG.family(((str(model.page_tokens), str(model.pages), model.dtype, "0"), 1))


def memory(stats: Stats | None) -> Family:
    """Of both processes, where the system tells."""
    found = {"front": resident_bytes(), "engine": 0 if stats is None else stats.resident_bytes}
    return catalog.MEMORY.family(*(((process,), size) for process, size in found.items() if size))


def engine(stats: Stats, labels: tuple[str, str]) -> Iterator[Family]:
    """What has no labels but the model's."""
    used = 1.0 - stats.pages_free / stats.pages_total if stats.pages_total else 0.0
    yield catalog.RUNNING.family((labels, stats.running))
    yield catalog.WAITING.family((labels, stats.waiting))
    yield catalog.PAGES_USED.family((labels, used))
    yield catalog.PREEMPTIONS.family((labels, stats.preemptions))
    yield catalog.STEPS.family(((), stats.steps))


def pool(stats: Stats) -> Iterator[Family]:
    """Who has the pages, and how adapters come and go."""
    owners = {
        "free": stats.pages_free,
        "sequences": stats.pages_sequences,
        "adapters": stats.pages_adapters,
        "prefixes": stats.pages_cached,
    }
    tiers = Counter(adapter.state for adapter in stats.adapters.values())
    yield catalog.PAGES.family(*(((owner,), pages) for owner, pages in owners.items()))
    yield catalog.ADAPTERS.family(*(((tier,), tiers[tier]) for tier in TIERS))
    yield catalog.PAGE_INS.family(((), stats.page_ins))
    yield catalog.PAGE_INS_FAILED.family(((), stats.page_ins_failed))
    yield catalog.PAGE_IN_BYTES.family(((), stats.page_in_bytes))
    yield catalog.EVICTIONS.family(((), stats.evictions))
    yield _page_in_times(stats)


def _page_in_times(stats: Stats) -> Family:
    metric, below, classes = catalog.PAGE_IN_TIMES, 0, []
    bounds = [*map(str, map(float, PAGE_IN_SECONDS)), "+Inf"]
    for bound, count in zip(bounds, stats.page_in_counts or (0,) * len(bounds), strict=True):
        below += count
        classes.append((bound, below))
    family = HistogramMetricFamily(metric.name, metric.help)
    family.add_metric([], classes, stats.page_in_seconds)
    return family


def adapters_now(
    adapters: Mapping[str, AdapterInfo], stats: Stats, in_flight: Mapping[str, list[int]]
) -> dict[str, AdapterNow]:
    """Every name. The engine counts by generation; several names of one are told apart by what the front has sent
    (`in_flight`: sequences without a token, with one)."""
    names_of = Counter(info.generation for info in adapters.values())
    found: dict[str, AdapterNow] = {}
    for name, info in adapters.items():
        told = stats.adapters.get(info.generation)
        waiting, running = in_flight.get(name, (0, 0))
        if told is not None and names_of[info.generation] == 1:
            waiting, running = told.waiting, told.running
        state, pages = ("cold", 0) if told is None else (told.state, told.pages)
        found[name] = AdapterNow(info, state, running, waiting, pages)
    return found


def lora_requests(adapters: Mapping[str, AdapterNow], step_adapters_max: int) -> Family:
    """vLLM's gauge for routers, one series: who runs and who waits now, and the time."""
    running = ",".join(name for name, now in adapters.items() if now.running)
    waiting = ",".join(name for name, now in adapters.items() if now.waiting)
    return catalog.LORA_REQUESTS.family(((str(step_adapters_max), waiting, running), time.time()))


def each_adapter(adapters: Mapping[str, AdapterNow], busiest: Busiest) -> Iterator[Family]:
    """Series of the busiest names from the moment that they have a meaning, and of all others together."""
    sums: dict[str, list[int]] = {}
    states: dict[str, Counter[str]] = {}
    for name, now in adapters.items():
        label = busiest.label(name)
        mine = sums.setdefault(label, [0, 0, 0])
        for index, value in enumerate((now.running, now.waiting, now.pages)):
            mine[index] += value
        states.setdefault(label, Counter())[now.state] += 1
    for index, metric in enumerate((catalog.ADAPTER_RUNNING, catalog.ADAPTER_WAITING, catalog.ADAPTER_PAGES)):
        yield metric.family(*(((label,), mine[index]) for label, mine in sums.items()))
    yield catalog.ADAPTER_STATE.family(
        *(((label, state), counts[state]) for label, counts in states.items() for state in TIERS)
    )
    infos = ((name, now.info) for name, now in adapters.items() if busiest.label(name) != OTHER)
    yield catalog.ADAPTER_INFO.family(*(((name, info.generation, str(info.rank)), 1) for name, info in infos))


def each_tenant(stats: Stats, names: Mapping[int, str], busiest: Busiest) -> Iterator[Family]:
    """The busiest tenants, and all others together."""
    sums: dict[str, list[int]] = {}
    service: dict[str, int] = {}
    for number, now in stats.tenants.items():
        if number not in names:
            continue
        label = busiest.label(names[number])
        mine = sums.setdefault(label, [0, 0, 0])
        for index, value in enumerate((now.running, now.waiting, now.pages)):
            mine[index] += value
        service[label] = min(service.get(label, now.service_ns), now.service_ns)
    for index, metric in enumerate((catalog.TENANT_RUNNING, catalog.TENANT_WAITING, catalog.TENANT_PAGES)):
        yield metric.family(*(((label,), mine[index]) for label, mine in sums.items()))
    yield catalog.TENANT_SERVICE.family(*(((label,), least / 1e9) for label, least in service.items()))
