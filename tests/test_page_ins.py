"""Page-ins that fail, and those of plans that fail: the core hears of the end of each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorad import Engine
from lorad.adapters.image import AdapterImage
from lorad.engine.costs import paged_in_at
from lorad.worker import worker
from lorad.worker.page_ins import ArenaCopy, PageIns
from tiny_engine import finish, make


@pytest.fixture
def engine(base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """One that has page-ins beside rows, never in plans of their own."""
    monkeypatch.setattr(worker, "PAGE_IN_FIRST_US", 0)
    engine = make(base, adapter)
    yield engine
    engine.close()


def no_image(adapter: int) -> AdapterImage:
    raise LookupError("injected")


def ended(page_ins: PageIns, adapter: int) -> str | None:
    """Starts one, of page 1, and gives what it ended with."""
    page_ins.start(adapter, 0, np.array([1], dtype=np.int32))
    page_ins.wait(60)
    (done,) = page_ins.finished()
    assert done.adapter == adapter and page_ins.pending == 0
    return done.error


def test_one_that_cant_begin_has_failed(engine: Engine) -> None:
    """Nobody waits for what was never begun."""
    engine.worker.page_ins.close()
    asked = engine.add([5], "a", max_tokens=2)
    finish(engine)
    assert asked.finish == "error" and asked.error is not None and "page pool" in asked.error


def test_one_that_cant_begin_is_told_with_the_others() -> None:
    told: list[None] = []
    page_ins = PageIns(ArenaCopy(np.zeros((2, 64), dtype=np.uint8), no_image), lambda: told.append(None))
    page_ins.close()
    assert "shutdown" in str(ended(page_ins, 3)) and len(told) == 1


def test_one_that_finds_no_image_has_failed() -> None:
    page_ins = PageIns(ArenaCopy(np.zeros((2, 64), dtype=np.uint8), no_image))
    assert ended(page_ins, 3) == "LookupError: injected"
    page_ins.close()


def test_a_system_without_further_threads_begins_them(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was refused for that would stay queued, and be copied to pages that are others' by then."""

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    asked = engine.add([5], "a", max_tokens=2)
    monkeypatch.setattr(threading.Thread, "start", none_left)
    finish(engine)
    assert asked.finish == "length"


def test_one_that_the_table_refuses_has_failed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its waiters are answered, and the next one tries again."""
    (registered,) = engine.worker._adapters.items()
    asked = engine.add([5], "a", max_tokens=2)
    engine.worker._adapters[registered[0]] = registered[1]._replace(tag=0)
    finish(engine)
    assert asked.finish == "error" and asked.error is not None and "page pool" in asked.error
    engine.worker._adapters[registered[0]] = registered[1]
    again = engine.add([5], "a", max_tokens=2)
    finish(engine)
    assert again.finish == "length"


@pytest.mark.parametrize("broken", ["pages", "lines", "sampling"])
def test_those_of_a_plan_that_fails_are_begun(engine: Engine, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it failed: their adapters would be loading for ever."""

    def fail(*given: Any) -> None:
        raise RuntimeError("injected")

    hurt, waits = engine.add([5, 6], max_tokens=4), engine.add([5, 6], "a", max_tokens=4)
    with monkeypatch.context() as patch:
        if broken == "pages":
            patch.setattr(engine.worker._touch, "used", fail)
        elif broken == "lines":
            patch.setattr(engine.worker.sampler, "open", fail)
        else:
            del engine._sampling[hurt.id]
        engine.step()
    assert engine.core.check() is None and hurt.finish == "error" and waits.finish is None
    finish(engine)
    assert waits.finish == "length" and len(waits.tokens) == 4


def test_a_cap_makes_a_copy_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("lorad.worker.page_ins.time.sleep", slept.append)
    monkeypatch.setattr("lorad.worker.page_ins.time.perf_counter", iter([0.0, 0.25, 1.0, 1.0, 10.0, 10.0]).__next__)
    page_ins = PageIns(lambda adapter, pages: 1000, bytes_per_s=1000)
    for adapter in range(2):
        page_ins.start(adapter, 0, np.arange(1, dtype=np.int32))
    page_ins.wait(60)
    page_ins.close()
    assert slept == [0.75, 0.0], "what is left of a second; the other copy took 9"


def test_the_scheduler_knows_of_the_cap() -> None:
    costs = {"page_in_page_ns": 500, "page_in_ns": 7}
    assert paged_in_at(costs, 10**6, 1000) == {"page_in_page_ns": 10**6, "page_in_ns": 7}
    assert paged_in_at(costs, 10**12, 1000) == costs, "no faster than without"
