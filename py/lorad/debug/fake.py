"""A worker that computes nothing: it says tokens and takes time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from lorad.debug.plan import PageIn, StepPlan
from lorad.debug.recording import Recording


class Worker(Protocol):
    """What a stepper asks of a worker."""

    def run(self, plan: StepPlan) -> tuple[Sequence[int], int]:
        """The sampled tokens, one for each of `plan.samples` in order, and the µs that it took."""

    def page_in(self, load: PageIn) -> tuple[bool, int]:
        """Whether an adapter's bytes arrive, and after how many µs."""

    def fetch(self, adapter: int) -> tuple[bool, int]:
        """The same for a remote adapter's way to the host."""


def counted(request: int, position: int) -> int:
    """A token that shows whose it is and where: request · 1000 + position."""
    return request * 1000 + position


class FakeWorker:
    """Time is so much per step and per token, tokens come from a function."""

    def __init__(
        self,
        token: Callable[[int, int], int] = counted,
        *,
        step_us: int = 12_000,
        token_us: int = 1_500,
        page_in_us: int = 100,
        page_us: int = 50,
        fetch_us: int = 100_000,
        vocab: int = 2**31 - 1,
        fails: Collection[int] = (),
    ) -> None:
        """`token(request, position)`: what is sampled; ids are taken modulo `vocab`.

        `fails`: adapters whose bytes don't arrive. The times are by default those of the embedded base on two cores.
        """
        self.token = token
        self.step_us = step_us
        self.token_us = token_us
        self.page_in_us = page_in_us
        self.page_us = page_us
        self.fetch_us = fetch_us
        self.vocab = vocab
        self.fails = fails

    def run(self, plan: StepPlan) -> tuple[Sequence[int], int]:
        """Asks `token` for each row that samples; a negative one is a row that couldn't be computed."""
        tokens = [self.token(row.request, row.end) for row in plan.samples]
        time = self.step_us + self.token_us * plan.tokens if plan.rows else 0
        return [token % self.vocab if token >= 0 else token for token in tokens], time

    def page_in(self, load: PageIn) -> tuple[bool, int]:
        """Takes its time for each page."""
        return load.adapter not in self.fails, self.page_in_us + self.page_us * len(load.pages)

    def fetch(self, adapter: int) -> tuple[bool, int]:
        """Takes the same time for each."""
        return adapter not in self.fails, self.fetch_us

    @classmethod
    def like(cls, recording: Recording) -> FakeWorker:
        """The worker of a recorded run: its answers, and times fitted to its steps and page-ins.

        The end of a page-in is only seen between two steps, so the shortest one says how long they take. A request that
        was aborted has no more answers than it got; `counted` goes on from there.
        """
        run = Recording(recording.text, recording.name)
        steps, loads, fetches, planned = [], [], [], 0
        began: dict[int, tuple[int, int]] = {}
        wanted: dict[int, int] = {}
        for moment in run:
            now = moment.arguments.get("now", 0)
            wanted |= {adapter: now for kind, adapter, _ in moment.events if kind == "adapter_wanted"}
            match moment.call, moment.outcome:
                case "step", "planned":
                    planned = now
                    began |= {load.adapter: (now, len(load.pages)) for load in run.plan.page_ins} if run.plan else {}
                case "commit", "done" if run.plan is not None and run.plan.rows:
                    steps.append((run.plan.tokens, now - planned))
                case "arrived", "done" if (adapter := moment.arguments["adapter"]) in wanted:
                    fetches.append(now - wanted.pop(adapter))
                case "page_in_done", "done":
                    then, pages = began.pop(moment.arguments["adapter"], (now, 0))
                    loads.append((pages, now - then))
        answers = {
            (life.request, life.prompt_tokens + place): token
            for life in run.lives.all
            for place, token in enumerate(life.tokens)
        }
        step_us, token_us = _line(steps, (12_000, 1_500))
        page_us = min((time // pages for pages, time in loads if pages), default=50)
        return cls(
            lambda request, position: answers.get((request, position), counted(request, position)),
            step_us=step_us,
            token_us=token_us,
            page_in_us=0,
            page_us=page_us,
            fetch_us=min(fetches, default=100_000),
            vocab=run.limits["vocab"],
        )


def _line(points: Sequence[tuple[int, int]], default: tuple[int, int]) -> tuple[int, int]:
    """Least squares of (count, µs); with too little to fit, all of it per call."""
    if not points:
        return default
    counts, times = np.array(points, dtype=np.float64).T
    if len(set(counts.tolist())) > 1:
        slope, start = np.polyfit(counts, times, 1)
        if slope >= 0 and start >= 0:
            return round(start), round(slope)
    return max(0, round(float(np.median(times)))), 0
