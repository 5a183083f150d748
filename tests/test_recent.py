"""The last minute's figures: what is counted, for how long, and how close what is told of waits is to the truth."""

from __future__ import annotations

import random

import pytest

from lorad.observe.recent import SECONDS, Recent, Waits


def test_tokens_are_told_by_whole_seconds_and_for_a_minute() -> None:
    recent = Recent()
    for _ in range(3):
        recent.token(100.2)
    recent.token(101.9)
    assert sum(recent.tokens(100.9)) == 0, "the second that runs isn't whole"
    assert recent.tokens(102.0)[-2:] == [3, 1]
    assert recent.tokens(130.0).count(0) == SECONDS - 2
    assert recent.tokens(100.0 + SECONDS)[0] == 3, "60 s later for the last time"
    assert sum(recent.tokens(101.0 + SECONDS)) == 1
    assert sum(recent.tokens(1000.0)) == 0


def test_a_second_of_the_ring_is_taken_again_empty() -> None:
    recent = Recent()
    for second in range(500):
        recent.token(second + 0.5)
        recent.first_token(second + 0.5, 0.1, 0)
    assert recent.tokens(500.0) == [1] * SECONDS
    assert recent.waits(500.0).seen == SECONDS


@pytest.mark.parametrize("count", [1, 2, 19, 1000])
def test_waits_are_within_their_step_of_the_truth(count: int) -> None:
    draw, recent = random.Random(count), Recent()
    waits = sorted(draw.lognormvariate(-2, 1.5) for _ in range(count))
    for index, wait in enumerate(waits):
        recent.first_token(200 + index % SECONDS, wait, 0)
    told = recent.waits(200 + SECONDS)
    assert told.seen == count and told.p50_s is not None and told.p95_s is not None
    for part, value in ((0.5, told.p50_s), (0.95, told.p95_s)):
        true = next(wait for index, wait in enumerate(waits, 1) if index >= part * count)
        assert abs(value / true - 1) < 0.026


def test_waits_by_second_and_by_tenant() -> None:
    recent = Recent()
    recent.first_token(10.0, 0.5, 1)
    recent.first_token(11.0, 4.0, 2)
    recent.first_token(11.5, 4.0, 2)
    by_second = recent.waits_by_second(12.0)
    assert len(by_second) == SECONDS and [waits.seen for waits in by_second[-3:]] == [0, 1, 2]
    assert by_second[0] == Waits(0, None, None)
    by_tenant = recent.waits_by_tenant(12.0)
    assert {tenant: waits.seen for tenant, waits in by_tenant.items()} == {1: 1, 2: 2}
    assert by_tenant[2].p50_s == pytest.approx(4.0, rel=0.026)


def test_no_wait_at_all_is_counted_too() -> None:
    recent = Recent()
    recent.first_token(5.0, 0.0, 0)
    assert recent.waits(6.0).seen == 1
