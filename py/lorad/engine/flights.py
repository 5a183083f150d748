"""`Flights`: plans from the core to the worker and back, one made ahead of the commit before it where it can."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lorad import _core
from lorad.engine.messages import Sampling, TokenLogprobs
from lorad.errors import EngineLost
from lorad.worker.choose import AnyWorker
from lorad.worker.plan import Plan

log = logging.getLogger("lorad.engine")


class Flight(NamedTuple):
    """A plan that the worker has."""

    number: int
    plan: Plan
    started: Any
    """What the worker wants to see again; None: it has no rows, or the worker failed."""
    failed: bool


class Flights:
    """Plans in flight, committed in the order in which they were made."""

    def __init__(self, core: _core.Core, worker: AnyWorker, now: Callable[[], int]) -> None:
        self._core, self._worker, self._now = core, worker, now
        self._plans = [Plan(core.plan_layout(), core.plan_length()) for _ in range(worker.plans_max)]
        self._flying: deque[Flight] = deque()
        self.plan = self._plans[0]
        """The one that was made last."""

    def __len__(self) -> int:
        return len(self._flying)

    @property
    def rows(self) -> int:
        """Of the oldest plan."""
        return self._flying[0].plan.rows if self._flying else 0

    def start(self, sampling: Mapping[int, Sampling]) -> bool:
        """Makes the next plan and has the worker begin it. False: none can be made now, or the last has to be committed
        before. `sampling`: by request."""
        if self._flying and not self._goes_on(self._flying[-1]):
            return False
        plan = self._plans[0]
        number = self._core.step(self._now(), plan.array)
        if number is None:
            return False
        self._plans.append(self._plans.pop(0))
        self.plan = plan
        try:
            self._worker.apply(plan, sampling)
            started = self._worker.start(plan) if plan.rows else None
        except EngineLost:
            raise
        except Exception:
            self._failed(number)
            self._flying.append(Flight(number, plan, None, failed=True))
        else:
            self._flying.append(Flight(number, plan, started, failed=False))
        return True

    def _goes_on(self, last: Flight) -> bool:
        """Whether a plan may be started before the tokens of the last one are known."""
        if len(self._flying) == self._worker.plans_max or last.failed:
            return False
        return last.started is None or bool(last.started.on_device)

    def finish(self) -> dict[int, TokenLogprobs]:
        """Waits for the oldest plan and commits it; log-probabilities by request."""
        number, _, started, failed = self._flying.popleft()
        if not failed and started is None:
            self._core.commit(self._now(), number, np.empty(0, dtype=np.int32))
            self._worker.wait_for_page_ins()
            return {}
        if not failed:
            try:
                samples = self._worker.finish(started)
            except EngineLost:
                raise
            except Exception:
                self._failed(number)
            else:
                self._core.commit(self._now(), number, samples.tokens)
                return samples.logprobs
        self._core.commit_failed(self._now(), number)
        return {}

    @staticmethod
    def _failed(number: int) -> None:
        # Whatever went wrong was in this step: its requests are answered with an error, all others go on.
        log.exception("plan %d failed", number)
