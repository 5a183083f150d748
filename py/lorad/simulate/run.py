"""Running cases, several at a time: the simulator doesn't hold the interpreter lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from lorad import _core
from lorad.errors import InvalidRequest
from lorad.simulate.broken import Broken
from lorad.simulate.case import Case
from lorad.simulate.report import Report
from lorad.simulate.scenario import Scenario, refusals
from lorad.worker.threads import thread_count

OnProgress = Callable[[str, float, int], None]
"""(what goes on, runs done and parts of runs, runs in all); called from several threads, one at a time."""


@dataclass(frozen=True)
class Run:
    """A case and what it came to."""

    case: Case
    report: Report

    @property
    def tokens_per_s(self) -> float:
        """Of answers, over the whole run."""
        return self.report.numbers.tokens_out_ks / 1000


def run(
    cases: Sequence[Case],
    *,
    jobs: int | None = None,
    trace: str | None = None,
    watch: tuple[str, int] | None = None,
    on_progress: OnProgress | None = None,
) -> list[Run]:
    """Runs all, in the order of `cases`. The first one that doesn't hold ends it with `Broken`.

    jobs: how many at a time; None: as many as there are cores. trace: a recorded trace instead of the scenarios' own.
    watch: a counter of the core and the number at which it counts as broken.
    """
    if jobs is not None and not 1 <= jobs <= 1024:
        raise InvalidRequest(f"jobs: 1 to 1024, got {jobs}", code="option_range", param="jobs")
    if watch is not None and watch[0] not in _core.COUNTERS:
        known = ", ".join(_core.COUNTERS)
        raise InvalidRequest(f"watch: no counter {watch[0]!r}; known are {known}", code="option_form", param="watch")
    progress = _Progress(len(cases), on_progress)

    def one(index: int) -> Run:
        case = cases[index]
        with refusals(Scenario(case.scenario, case.text)):
            on_step = progress.of(index, case.title)
            on_step("simulating", 0, 1)
            try:
                found = _core.simulate(case.text, trace=trace, watch=watch, on_progress=on_step)
            except _core.PromiseBroken as why:
                raise Broken(case, why) from None
            on_step("simulating", 1, 1)
            return Run(case, msgspec.convert(found, Report))

    workers = min(thread_count(jobs or 0), len(cases)) or 1
    with ThreadPoolExecutor(workers) as pool:
        try:
            futures = [pool.submit(one, index) for index in range(len(cases))]
            return [future.result() for future in futures]
        except BaseException:
            # a broken promise, a refusal or Ctrl-C: those that run are stopped at their next look
            progress.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Stopped(Exception):
    """Another case ended it all."""


class _Progress:
    """Parts of all cases that are done, summed up."""

    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self.stop = threading.Event()
        self._total = total
        self._parts: dict[int, float] = {}
        self._lock = threading.Lock()
        self._on_progress = on_progress

    def of(self, index: int, title: str) -> Callable[[str, int, int], None]:
        """What one case reports to."""

        def on_step(stage: str, done: int, total: int) -> None:
            if self.stop.is_set():
                raise _Stopped
            if self._on_progress is None:
                return
            with self._lock:
                if total:
                    self._parts[index] = done / total
                what = title if stage == "simulating" else f"{title}, {stage}"
                self._on_progress(what, sum(self._parts.values()), self._total)

        return on_step
