"""Runs that differ only in their seed, as one: the median of each figure and its range."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from lorad.simulate.metric import METRICS
from lorad.simulate.run import Run


class Figure(msgspec.Struct, frozen=True):
    """Of one metric over seeds."""

    median: float
    least: float
    most: float


class Summary(msgspec.Struct, frozen=True):
    """What cases that differ only in their seed came to."""

    scenario: str
    policy: str
    sweep: dict[str, str]
    offered_per_s: float | None
    seeds: int
    figures: dict[str, Figure]
    """By the metrics' keys."""

    def at_one_point(self) -> Summary:
        """The same without its place in a sweep, to stand beside others of that place."""
        return msgspec.structs.replace(self, sweep={})


def summaries(runs: Sequence[Run]) -> list[Summary]:
    """One for each scenario, policy and value, in the order in which they first come."""
    alike: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        case = run.case
        alike.setdefault((case.scenario, case.policy, tuple(case.sweep.items())), []).append(run)
    return [_summary(group) for group in alike.values()]


def _summary(runs: Sequence[Run]) -> Summary:
    case = runs[0].case
    figures = {}
    for metric in METRICS:
        values = [metric.of(run.report) for run in runs]
        figures[metric.key] = Figure(statistics.median(values), min(values), max(values))
    return Summary(case.scenario, case.policy, case.sweep, case.offered_per_s, len(runs), figures)
