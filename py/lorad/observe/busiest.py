"""Which names have series of their own: the busiest ones, up to a limit. All others are `other`, together.

Clients and operators choose how many adapters and tenants there are; a metrics store pays for each series, for weeks.
So the number of series is the limit's, not theirs.

Use counts half as much after each `HALF_LIFE_SECONDS`. Who has a series keeps it until another is twice as busy, and
that is looked at when somebody scrapes: between two scrapes nobody comes or goes, but where there is room.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.metrics_core import Metric as Family

from lorad.observe.catalog import Metric

OTHER = "other"
"""The label of all that have no series of their own. What is really called so is counted here too."""

HALF_LIFE_SECONDS = 600.0
LOYALTY = 2.0
"""So much busier must another be to take a series."""
DOUBLINGS_MAX = 512.0


class Busiest:
    """The names that have series of their own."""

    def __init__(self, most: int, *, now: Callable[[], float]) -> None:
        """`most`: how many may have one; `now` in seconds."""
        self._most = most
        self._now = now
        self._began = now()
        # What is used later counts more, instead of what was used earlier being made less again and again.
        self._scores: dict[str, float] = {}
        self._own: set[str] = set()

    def use(self, name: str) -> str:
        """Counts a use of `name`, and gives the label that it goes by now."""
        doublings = (self._now() - self._began) / HALF_LIFE_SECONDS
        if doublings > DOUBLINGS_MAX:
            self._scores = {each: score * 2.0**-doublings for each, score in self._scores.items()}
            self._began, doublings = self._now(), 0.0
        self._scores[name] = self._scores.get(name, 0.0) + 2.0**doublings
        if len(self._own) < self._most and name != OTHER:
            self._own.add(name)
        return self.label(name)

    def label(self, name: str) -> str:
        """The label that `name` goes by now."""
        return name if name in self._own else OTHER

    def review(self, names: Collection[str] = ()) -> None:
        """Chooses anew, among those that were used and `names`."""
        candidates = [name for name in dict.fromkeys((*names, *self._scores)) if name != OTHER]
        if len(candidates) <= self._most:
            self._own = set(candidates)
            return

        def rank(name: str) -> tuple[float, bool]:
            own = name in self._own
            return self._scores.get(name, 0.0) * (LOYALTY if own else 1.0), own

        self._own = set(heapq.nlargest(self._most, candidates, key=rank))

    def forget(self, name: str) -> None:
        """The name is nobody's any more."""
        self._scores.pop(name, None)
        self._own.discard(name)


class BusiestCounters:
    """Counters of the same things for many names. None ever goes down: who loses its series is counted under `other`
    from then on, and goes on from where it was when it gets the series back. So they add up over time, not at a moment:
    `increase` and `rate` may be summed."""

    def __init__(self, metrics: Iterable[Metric], busiest: Busiest) -> None:
        """`metrics`: counters with one label."""
        self._metrics = tuple(metrics)
        self._busiest = busiest
        self._counts: dict[str, list[float]] = {}

    def add(self, name: str, *amounts: float) -> None:
        """Something was used by `name`: so much of each metric, in their order."""
        label = self._busiest.use(name)
        counts = self._counts.setdefault(label, [0.0] * len(self._metrics))
        for index, amount in enumerate(amounts):
            counts[index] += amount

    def forget(self, name: str) -> None:
        """The name is nobody's any more: its series go. What is called so later begins at 0."""
        if name != OTHER:
            self._counts.pop(name, None)
        self._busiest.forget(name)

    def families(self) -> Iterator[Family]:
        """The series of those that have one now, and `other` once it was needed."""
        shown = [(name, counts) for name, counts in self._counts.items() if self._busiest.label(name) == name]
        for index, metric in enumerate(self._metrics):
            family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for name, counts in shown:
                family.add_metric([name], counts[index])
            yield family
