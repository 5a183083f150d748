"""`Recent`: the last minute, second by second: tokens that were made, and how long first tokens took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

SECONDS = 60
"""How far back it goes. The second that runs isn't told: it isn't whole."""

BUCKET = 1.05
"""Waits are counted by steps of this factor, so that memory doesn't grow with traffic: what is told of them is within
2.5 % of the truth."""


class Waits(NamedTuple):
    """Times to the first token, in seconds; None: there was none."""

    seen: int
    """How many there were."""
    p50_s: float | None
    p95_s: float | None


class _Second:
    """One second's counts."""

    __slots__ = ("number", "tokens", "waits")

    def __init__(self) -> None:
        self.number = -1
        self.tokens = 0
        self.waits: Counter[tuple[int, int]] = Counter()
        """By tenant and bucket."""


class Recent:
    """Times are seconds on the event loop's clock."""

    def __init__(self) -> None:
        self._ring = [_Second() for _ in range(SECONDS + 1)]

    def token(self, now: float) -> None:
        """A sequence has one more token."""
        self._at(now).tokens += 1

    def first_token(self, now: float, wait: float, tenant: int) -> None:
        """It was the sequence's first one, `wait` seconds after its request came. `tenant`: by its number."""
        self._at(now).waits[tenant, math.floor(math.log(max(wait, 1e-6), BUCKET))] += 1

    def tokens(self, now: float) -> list[int]:
        """Of each of the last seconds, oldest first."""
        return [0 if second is None else second.tokens for second in self._last(now)]

    def waits(self, now: float) -> Waits:
        """Of all requests."""
        return _waits(_sum(second.waits for second in self._last(now) if second is not None))

    def waits_by_second(self, now: float) -> list[Waits]:
        """Of the requests whose first token came in each of the last seconds, oldest first."""
        return [_waits(Counter() if second is None else _sum([second.waits])) for second in self._last(now)]

    def waits_by_tenant(self, now: float) -> dict[int, Waits]:
        """Of those tenants that had a first token."""
        counts: dict[int, Counter[int]] = {}
        for second in self._last(now):
            for (tenant, bucket), count in (Counter() if second is None else second.waits).items():
                counts.setdefault(tenant, Counter())[bucket] += count
        return {tenant: _waits(count) for tenant, count in counts.items()}

    def _at(self, now: float) -> _Second:
        number = int(now)
        second = self._ring[number % len(self._ring)]
        if second.number != number:
            second.number, second.tokens = number, 0
            second.waits.clear()
        return second

    def _last(self, now: float) -> list[_Second | None]:
        numbers = range(int(now) - SECONDS, int(now))
        found = [(number, self._ring[number % len(self._ring)]) for number in numbers]
        return [second if second.number == number else None for number, second in found]


def _sum(counts: Iterable[Counter[tuple[int, int]]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for some in counts:
        for (_, bucket), count in some.items():
            total[bucket] += count
    return total


def _waits(counts: Counter[int]) -> Waits:
    """From how many there were in each bucket."""
    total = sum(counts.values())
    return Waits(total, _part(counts, total, 0.5), _part(counts, total, 0.95))


def _part(counts: Counter[int], total: int, part: float) -> float | None:
    """The wait that this part of all doesn't exceed: the middle of the bucket where it lies."""
    passed = 0
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= part * total:
            return float(BUCKET ** (bucket + 0.5))
    return None
