"""What a tenant has left of its limits: a bucket a minute deep for each rate, and what it has in flight."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lorad.counted import counted
from lorad.errors import Overloaded
from lorad.tenants.tenant import Tenant

MINUTE = 60.0


class Bucket:
    """A rate limit. It holds what a minute allows, and fills evenly; it may be owed more than it holds."""

    def __init__(self, now: float) -> None:
        self._left = 0.0
        self._limit = 0
        self._at = now

    def wait(self, limit: int, now: float) -> float:
        """Seconds until one may be taken, at a limit of so much a minute; 0: now, or there is no limit."""
        if limit == 0:
            self._left, self._limit = 0.0, 0
            return 0.0
        if limit != self._limit:
            # A new limit begins with a full minute, less what is owed.
            self._left, self._limit, self._at = limit + min(self._left, 0.0), limit, now
        per_second = limit / MINUTE
        self._left = min(self._left + (now - self._at) * per_second, float(limit))
        self._at = now
        return max(1.0 - self._left, 0.0) / per_second

    def take(self, count: int) -> None:
        """Takes so much, whether it's there or not; below 0, gives back."""
        if self._limit:
            self._left -= count


class _Standing:
    """Of one tenant."""

    def __init__(self, now: float) -> None:
        self.requests = Bucket(now)
        self.tokens = Bucket(now)
        self.sequences = 0
        self.adapters: Counter[str] = Counter()


class TenantLimits:
    """The front's part of the limits; those of running, waiting and pages are the core's."""

    def __init__(self, places: int, *, now: Callable[[], float]) -> None:
        """`places`: sequences that all tenants together may have in flight. `now` in seconds."""
        self._places = places
        self._now = now
        self._standing: dict[int, _Standing] = {}

    @contextmanager
    def passing(self, tenant: Tenant, adapters: Sequence[str], sequences: int) -> Iterator[None]:
        """Lets a request for these adapters (none: the base) in for the time of the block, or refuses it."""
        standing, limits = self._of(tenant), tenant.limits
        # One tenant alone can't take all places: others would be answered "queue full" for its queue.
        most = self._places if tenant.number == 0 else max(self._places // 2, 1)
        if standing.sequences + sequences > most:
            raise Overloaded(
                f"tenant {tenant.name!r} has {standing.sequences} sequences in flight, {sequences} asked for, "
                f"limit {most}",
                code="tenant_queue_full",
            )
        new = set(adapters) - standing.adapters.keys()
        if limits.adapters_max and new and len(standing.adapters) + len(new) > limits.adapters_max:
            raise Overloaded(
                f"tenant {tenant.name!r} has requests for {counted(len(standing.adapters), 'adapter')} in flight, "
                f"{', '.join(sorted(new))} would be more, limit {limits.adapters_max} (adapters_max)",
                code="tenant_adapters_full",
            )
        now = self._now()
        for unit, code, bucket, limit in (
            ("requests", "tenant_requests_per_minute", standing.requests, limits.requests_per_minute),
            ("tokens", "tenant_tokens_per_minute", standing.tokens, limits.tokens_per_minute),
        ):
            if (wait := bucket.wait(limit, now)) > 0:
                raise Overloaded(
                    f"tenant {tenant.name!r} has used its {limit} {unit} per minute; room in {wait:.1f} s",
                    code=code,
                    retry_after_s=math.ceil(wait),
                )
        standing.requests.take(1)
        standing.sequences += sequences
        standing.adapters.update(adapters)
        try:
            yield
        finally:
            standing.sequences -= sequences
            standing.adapters.subtract(adapters)
            standing.adapters += Counter()  # forgets those that are at 0

    def spend(self, tenant: Tenant, tokens: int) -> None:
        """Tokens that were read or made for a request; below 0: they weren't, after all. More than is left is owed."""
        self._of(tenant).tokens.take(tokens)

    def in_flight(self, tenant: Tenant) -> int:
        """Sequences that were let in and aren't answered."""
        return self._of(tenant).sequences

    def keep(self, numbers: set[int]) -> None:
        """Forgets tenants that are gone and have nothing in flight."""
        for number in set(self._standing) - numbers - {0}:
            if self._standing[number].sequences == 0:
                del self._standing[number]

    def _of(self, tenant: Tenant) -> _Standing:
        standing = self._standing.get(tenant.number)
        if standing is None:
            standing = self._standing[tenant.number] = _Standing(self._now())
        return standing
