"""The scheduler by hand: a core, a worker that may be a fake one, and a clock that only the worker moves."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group as Renderables
from rich.console import RenderableType

from lorad import _core
from lorad.debug import view
from lorad.debug.fake import FakeWorker, Worker
from lorad.debug.lives import Event, Lives
from lorad.debug.plan import StepPlan, read_plan
from lorad.debug.recording import Recording
from lorad.debug.snapshot import Owner, Queue, Snapshot
from lorad.worker.plan import Plan


class Stepper:
    """One core, stepped.

    step = debug.Stepper(pages=32, rows_max=4, tokens_max=32)
    devil = step.register("devil", pages=3)
    step.add(10, devil, max_tokens=5)
    while step.step():
        print(step.plan_text())
    """

    def __init__(
        self,
        worker: Worker | Callable[[StepPlan], Sequence[int]] | None = None,
        *,
        like: Recording | None = None,
        **limits: Any,
    ) -> None:
        """`worker`: who computes plans, or a function that gives the sampled tokens; a `FakeWorker` if it's None.

        `limits`: what `_core.Core` takes: capacities, and the policy as far as the core has a choice of them. With
        `like`, the others are those of a recorded run.
        """
        self.core = _core.Core.recorded(like.replay if like else None, **limits)
        self.worker: Worker
        if worker is None:
            self.worker = FakeWorker(vocab=self.core.config["vocab"])
        elif callable(worker):
            self.worker = Answering(worker)
        else:
            self.worker = worker
        self.now = 0
        """µs."""
        self.lives = Lives()
        self.names: dict[int, str] = {}
        """Adapters as they were called here."""
        self.plan: StepPlan | None = None
        """The last plan that was made."""
        self._array = Plan(self.core.plan_layout(), self.core.plan_length())
        self._number = 0
        self._coming: list[tuple[int, str, int]] = []
        """When a copy ends, the call that says so, the adapter: a heap."""
        self._trace: list[str] = []

    # what comes from outside

    def register(self, name: str = "", *, pages: int = 2, layers: int = 1, tag: int | None = None, **more: Any) -> int:
        """An adapter, cold; gives its id. `more`: what else the core's `register` takes."""
        adapter = self.call("register", tag=tag or 100 + len(self.names) + 1, pages=pages, layers=layers, **more)
        self.names[adapter] = name or f"adapter {adapter}"
        self.core.remark(f"adapter {adapter} is {self.names[adapter]}")
        return int(adapter)

    def add(
        self,
        prompt: int | Sequence[int],
        adapter: int | None = None,
        *,
        max_tokens: int = 8,
        stop_tokens: Sequence[int] = (),
        request: int | None = None,
        **more: Any,
    ) -> int:
        """A request; gives its id. `prompt`: token ids, or how many. `more`: what else the core's `add` takes."""
        id = len(self.lives.all) + 1 if request is None else request
        ids = range(prompt) if isinstance(prompt, int) else prompt
        self.call(
            "add",
            now=self.now,
            id=id,
            adapter=adapter,
            prompt=list(ids),
            max_tokens=max_tokens,
            stop_tokens=list(stop_tokens),
            **more,
        )
        return id

    def abort(self, request: int) -> None:
        """Ends a request."""
        self.call("abort", now=self.now, id=request)

    def unregister(self, adapter: int) -> None:
        """No new requests for an adapter."""
        self.call("unregister", now=self.now, adapter=adapter)

    def call(self, method: str, **arguments: Any) -> Any:
        """Any of the core's calls by name; `_core.Refused` says why not."""
        made = getattr(self.core, method)(**arguments)
        self.take_events(method, arguments)
        return made

    # stepping

    def step(self) -> StepPlan | None:
        """One plan, from being made to its commit. None: nothing can run any more."""
        plan = self.begin()
        if plan is not None:
            self.finish()
        return plan

    def begin(self, *, wait: bool = True) -> StepPlan | None:
        """Makes a plan and lets its page-ins begin; `finish` computes and commits it.

        Where only a copy of weights can bring work, the clock goes on to its end; with `wait=False` there is no plan.
        """
        while True:
            while self._coming and self._coming[0][0] <= self.now:
                _, method, adapter = heapq.heappop(self._coming)
                self.call(method, now=self.now, adapter=adapter)
            number = self.core.step(self.now, self._array.array)
            self._number = self._number if number is None else number
            self.take_events("step", {"now": self.now})
            if number is not None:
                break
            if not self._coming or not wait:
                return None
            self.now = self._coming[0][0]
        self.plan = plan = read_plan(self._array, self.lives.lines, self.lives.adapters)
        for load in plan.page_ins:
            arrives, time = self.worker.page_in(load)
            method = "page_in_done" if arrives else "page_in_failed"
            heapq.heappush(self._coming, (self.now + time, method, load.adapter))
        return plan

    def finish(self, tokens: Sequence[int] | None = None, time: int | None = None) -> list[Event]:
        """Commits the plan in flight with what the worker computed, or with these tokens after so many µs.

        Gives what happened.
        """
        number = self.core.in_flight
        if number is None or self.plan is None:
            raise RuntimeError("no plan is in flight: begin() makes one")
        if tokens is None or time is None:
            computed, took = self.worker.run(self.plan)
            tokens = computed if tokens is None else tokens
            time = took if time is None else time
        self.core.commit(self.now + time, number, list(tokens))
        self.now += time
        return self.take_events("commit", {"now": self.now})

    @property
    def next_arrival(self) -> int | None:
        """When the next page-in or fetch ends."""
        return self._coming[0][0] if self._coming else None

    def run(self, steps: int | None = None) -> int:
        """Steps until nothing can run, or so many times; how often it did."""
        done = 0
        while (steps is None or done < steps) and self.step() is not None:
            done += 1
        return done

    def take_events(self, method: str, arguments: dict[str, Any]) -> list[Event]:
        """What happened since the last call; the lives know it."""
        events = self.core.drain_events()
        for kind, adapter, _ in events:
            if kind == "adapter_wanted":
                arrives, time = self.worker.fetch(adapter)
                heapq.heappush(self._coming, (self.now + time, "arrived" if arrives else "fetch_failed", adapter))
        self.lives.take(method, arguments, True, events, self._number)
        return events

    # looking

    def recording(self) -> Recording:
        """All of this so far, as a recorded run."""
        self._trace.append(self.core.take_trace())
        return Recording("".join(self._trace), "by hand")

    def plan_text(self) -> str:
        """The last plan, a line for each row."""
        return self.core.plan_text(self._array.array)

    def dump(self) -> str:
        """The whole state as text."""
        return self.core.dump()

    def recent(self) -> str:
        """The last events, a line each with its time and plan."""
        return self.core.recent()

    def snapshot(self) -> Snapshot:
        """The whole state as data."""
        return Snapshot.parse(self.core.dump())

    def queues(self) -> list[Queue]:
        """Who waits."""
        return self.snapshot().queues

    def pages(self) -> list[Owner]:
        """Whose each page is."""
        return self.snapshot().page_owners()

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [view.plan_table(self.plan)] if self.plan else []
        return Renderables(*parts, *view.state(self.snapshot()))


class Answering(FakeWorker):
    """A function that gives the sampled tokens of a plan, as a worker."""

    def __init__(self, answer: Callable[[StepPlan], Sequence[int]]) -> None:
        super().__init__()
        self.answer = answer

    def run(self, plan: StepPlan) -> tuple[Sequence[int], int]:
        """Asks the function."""
        _, time = super().run(plan)
        return self.answer(plan), time
