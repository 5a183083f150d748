"""A simulated fleet: the real router and placement over replicas of one prompt at a time or of real cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lorad import _core
from lorad.bench.figures import rank
from lorad.errors import InvalidRequest

PRESETS = {"chapter": False, "cores": True}
"""Whether a preset's replicas are real cores; the pairs are the Rust side's own (docs/fleet.md)."""
ROUTINGS = ("round-robin", "assigned:5", "cost:1", "cost:12")
"""What is compared unless somebody says what."""
SEEDS, CORES_SEEDS = 200, 10
"""Unless somebody says how many: of prompts one at a time, of real cores."""
SEEDS_MAX = 100_000


class FleetReport(msgspec.Struct, frozen=True):
    """What a run came to. Loads and requests are counts, times µs."""

    routing: str
    cold_loads: int
    """Requests that waited for a load of their own."""
    preloads: int
    """Loads before the first request."""
    late: int
    """Requests whose first token came too late."""
    moves: int
    """Homes that adapters were given, or that were moved or taken away, after the first request."""
    retried: int
    """Sendings again, after a replica had died."""
    lost: int
    """Requests whose answer had begun when their replica died, that a core gave up, or that nobody took."""
    kib_max: list[int]
    """Of each replica: the most KiB of adapters that it held."""
    served: list[int]
    ttft_p50_us: int
    ttft_p99_us: int


class Interval(msgspec.Struct, frozen=True):
    """A figure over seeds."""

    median: float
    low: float
    """5% of the seeds are below."""
    high: float
    """5% are above."""


class FleetFigure(msgspec.Struct, frozen=True):
    """A column: its title and its value in a report."""

    title: str
    of: Callable[[FleetReport], float]
    form: str = ".0f"


FIGURES = {
    "cold_loads": FleetFigure("cold loads", lambda one: one.cold_loads),
    "preloads": FleetFigure("preloads", lambda one: one.preloads),
    "late": FleetFigure("late", lambda one: one.late),
    "mib_max": FleetFigure("most MiB on a replica", lambda one: max(one.kib_max) / 1024),
    "ttft_p50_s": FleetFigure("TTFT p50, s", lambda one: one.ttft_p50_us / 1e6, ".3g"),
    "ttft_p99_s": FleetFigure("TTFT p99, s", lambda one: one.ttft_p99_us / 1e6, ".3g"),
    "moves": FleetFigure("moves", lambda one: one.moves),
    "retried": FleetFigure("sent again", lambda one: one.retried),
    "lost": FleetFigure("lost", lambda one: one.lost),
}


class FleetSummary(msgspec.Struct, frozen=True):
    """Runs that differ only in their seed."""

    routing: str
    sweep: dict[str, str]
    seeds: int
    figures: dict[str, Interval]


def summarise(routing: str, sweep: dict[str, str], reports: Sequence[FleetReport]) -> FleetSummary:
    """Medians, and between which 90% of the seeds lie."""
    figures = {}
    for key, figure in FIGURES.items():
        values = sorted(figure.of(report) for report in reports)
        figures[key] = Interval(*(rank(values, share) for share in (0.5, 0.05, 0.95)))
    return FleetSummary(routing, sweep, len(reports), figures)


def simulate_fleet(text: str, *, cores: bool = False) -> FleetReport:
    """Runs one scenario of `key=value` pairs; `cores`: replicas are real cores. Refuses unknown keys and values that
    don't fit (`scenario_key`, `scenario_value`)."""
    try:
        return msgspec.convert(_core.simulate_fleet(text, cores=cores), FleetReport)
    except _core.ScenarioError as error:
        raise InvalidRequest(f"fleet: {error}", code=error.code, param=error.field or "set") from None


def compare(
    text: str,
    routings: Sequence[str],
    sweep: tuple[str, Sequence[str]] | None,
    seeds: int,
    on_progress: Callable[[str, float, int], None],
    *,
    cores: bool = False,
) -> list[FleetSummary]:
    """Each routing at each value of the sweep, with the same seeds."""
    if not 1 <= seeds <= SEEDS_MAX:
        raise InvalidRequest(f"seeds: 1 to {SEEDS_MAX}, got {seeds}", code="option_range", param="seeds")
    key, values = sweep or ("", [""])
    made: list[FleetSummary] = []
    for value in values:
        for routing in routings:
            swept = f" {key}={value}" if key else ""
            reports = []
            for seed in range(1, seeds + 1):
                reports.append(simulate_fleet(f"{text}{swept} routing={routing} seed={seed}", cores=cores))
                done = len(made) + seed / seeds
                on_progress(f"{routing}{swept}", done, len(values) * len(routings))
            made.append(summarise(routing, {key: value} if key else {}, reports))
    return made
