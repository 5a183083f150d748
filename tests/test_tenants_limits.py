"""Rates and bounds of one tenant, on a clock that a test moves."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from lorad.errors import Overloaded
from lorad.tenants.limits import TenantLimits
from lorad.tenants.tenant import EVERYBODY, Limits, Tenant


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refused(limits: TenantLimits, tenant: Tenant, *adapters: str, sequences: int = 1) -> Overloaded | None:
    """Why a request isn't let in; None: it was, and has ended."""
    try:
        with limits.passing(tenant, adapters, sequences):
            return None
    except Overloaded as error:
        return error


def test_requests_per_minute(clock: Clock) -> None:
    limits, tenant = TenantLimits(100, now=clock), Tenant("t", 1, limits=Limits(requests_per_minute=6))
    assert [refused(limits, tenant) for _ in range(6)] == [None] * 6
    error = refused(limits, tenant)
    assert error is not None and error.code == "tenant_requests_per_minute" and "6 requests per minute" in error.message
    assert error.retry_after_s == 10
    clock.now += error.retry_after_s
    assert refused(limits, tenant) is None and refused(limits, tenant) is not None
    clock.now += 3600  # what isn't used for an hour isn't saved up
    assert [refused(limits, tenant) is None for _ in range(7)] == [True] * 6 + [False]


def test_tokens_are_owed_and_paid_off(clock: Clock) -> None:
    limits, tenant = TenantLimits(100, now=clock), Tenant("t", 1, limits=Limits(tokens_per_minute=600))
    assert refused(limits, tenant) is None
    limits.spend(tenant, 900)
    error = refused(limits, tenant)
    assert error is not None and error.code == "tenant_tokens_per_minute" and 30 <= error.retry_after_s <= 31
    clock.now += 29
    assert refused(limits, tenant) is not None
    clock.now += 2
    assert refused(limits, tenant) is None


def test_a_refused_request_costs_nothing(clock: Clock) -> None:
    limits, tenant = TenantLimits(100, now=clock), Tenant("t", 1, limits=Limits(requests_per_minute=1))
    assert refused(limits, tenant) is None
    for _ in range(50):
        assert refused(limits, tenant) is not None
    clock.now += 60
    assert refused(limits, tenant) is None


def test_over_an_hour_nobody_gets_more_than_the_rate(clock: Clock) -> None:
    dice = random.Random(3)
    limits, tenant = TenantLimits(100, now=clock), Tenant("t", 1, limits=Limits(30, 6000))
    requests = tokens = 0
    for _ in range(20_000):
        clock.now += dice.expovariate(5)
        if refused(limits, tenant) is None:
            requests += 1
            spent = dice.randrange(400)
            tokens += spent
            limits.spend(tenant, spent)
    minutes = (clock.now - 1000.0) / 60
    assert requests <= 30 * (minutes + 1) and tokens <= 6000 * (minutes + 1) + 400
    assert tokens > 0.9 * 6000 * minutes or requests > 0.9 * 30 * minutes


def test_a_limit_that_is_changed_holds_at_once(clock: Clock) -> None:
    limits, tenant = TenantLimits(100, now=clock), Tenant("t", 1)
    assert [refused(limits, tenant) for _ in range(50)] == [None] * 50
    strict = tenant._replace(limits=Limits(requests_per_minute=2))
    assert [refused(limits, strict) is None for _ in range(3)] == [True, True, False]
    assert refused(limits, tenant) is None


def test_distinct_adapters_in_flight(clock: Clock) -> None:
    limits, tenant = TenantLimits(100, now=clock), Tenant("t", 1, limits=Limits(adapters_max=2))
    with ExitStack() as inside:
        for names in (["a"], ["b"], ["a", "b"], []):
            inside.enter_context(limits.passing(tenant, names, 1))
        for more in (["c"], ["a", "c"]):
            error = refused(limits, tenant, *more)
            assert error is not None and error.code == "tenant_adapters_full" and "c would be more" in error.message
        assert refused(limits, tenant, "b") is None
    assert refused(limits, tenant, "c") is None


def test_one_tenant_leaves_places_for_others(clock: Clock) -> None:
    limits, one, other = TenantLimits(10, now=clock), Tenant("one", 1), Tenant("other", 2)
    with limits.passing(one, [], 5):
        error = refused(limits, one)
        assert error is not None and error.code == "tenant_queue_full"
        assert refused(limits, other, sequences=5) is None
        assert limits.in_flight(one) == 5
    assert limits.in_flight(one) == 0 and refused(limits, one) is None
    assert refused(limits, EVERYBODY, sequences=10) is None


def test_tenants_that_are_gone_are_forgotten_when_they_have_ended(clock: Clock) -> None:
    limits = TenantLimits(10, now=clock)
    with limits.passing(Tenant("one", 1), [], 1):
        limits.keep({2})
        assert limits.in_flight(Tenant("one", 1)) == 1
    limits.keep({2})
    assert limits._standing == {}
