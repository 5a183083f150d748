"""A recorded run, step by step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group as Renderables
from rich.console import RenderableType

from lorad import _core
from lorad.debug import view
from lorad.debug.lives import Event, Lives
from lorad.debug.plan import StepPlan, read_plan
from lorad.debug.snapshot import Queue, Snapshot
from lorad.worker.plan import Plan


class Moment(msgspec.Struct, frozen=True):
    """One line of a trace: what was called, and what came of it now."""

    line: int
    call: str
    """Name of the core's method."""
    arguments: dict[str, Any]
    """By the names that the method gives them."""
    outcome: str
    """done, registered, planned, idle or refused."""
    value: int | None
    """The adapter's id, or the plan's number."""
    refusal: str | None
    diverged: str | None
    """What the core made instead of what it had made when this was recorded."""
    events: list[Event]


class Recording:
    """A trace, and a core that has taken its lines up to a place. `Unreadable` names the first line that isn't one."""

    def __init__(self, text: str, name: str = "trace") -> None:
        self.text = text
        self.name = name
        self.rewind()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Reads a trace file."""
        return cls(Path(path).read_text(encoding="utf-8"), Path(path).name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace into a file."""
        Path(path).write_text(self.text, encoding="utf-8")

    def redacted(self, key: bytes | None = None) -> Recording:
        """The same run with other token ids. Who has the key (16 bytes) can take that back; without one, nobody can."""
        return Recording(_core.redact_trace(self.text, key or secrets.token_bytes(16)), self.name)

    # stepping

    def rewind(self) -> None:
        """Back before the first line."""
        self.replay = _core.Replay(self.text)
        empty = _core.Core.recorded(self.replay)
        self.limits = empty.config
        self._plan = Plan(empty.plan_layout(), empty.plan_length())
        self._number = 0
        self.moment: Moment | None = None
        self.plan: StepPlan | None = None
        """The last plan that was made."""
        self.lives = Lives()

    def step(self) -> Moment | None:
        """Plays the next line. None: the trace has ended."""
        played = self.replay.step()
        if played is None:
            return None
        self.moment = moment = msgspec.convert(played, Moment)
        if moment.outcome == "planned" and moment.value is not None:
            self._number = moment.value
        self.lives.take(moment.call, moment.arguments, moment.outcome != "refused", moment.events, self._number)
        if moment.outcome == "planned":
            self.replay.read_plan(self._plan.array)
            self.plan = read_plan(self._plan, self.lives.lines, self.lives.adapters)
        return moment

    def next_plan(self) -> Moment | None:
        """Plays until a plan was made. None: no other is."""
        while moment := self.step():
            if moment.outcome == "planned":
                return moment
        return None

    def __iter__(self) -> Iterator[Moment]:
        """Plays what is left."""
        while moment := self.step():
            yield moment

    def run(self) -> Recording:
        """Plays to the end."""
        for _ in self:
            pass
        return self

    # looking

    def plan_text(self) -> str | None:
        """The last plan, a line for each row."""
        return self.replay.plan_text()

    def dump(self) -> str:
        """The whole state as text."""
        return self.replay.dump()

    def recent(self) -> str:
        """The last events, a line each with its time and plan."""
        return self.replay.recent()

    def snapshot(self) -> Snapshot:
        """The whole state as data."""
        return Snapshot.parse(self.replay.dump())

    def queues(self) -> list[Queue]:
        """Who waits."""
        return self.snapshot().queues

    def tokens(self) -> int:
        """Sampled tokens so far, of all requests."""
        return sum(len(life.tokens) for life in self.lives.all)

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self.plan is not None:
            parts.append(view.plan_table(self.plan))
        parts += view.state(self.snapshot())
        return Renderables(*parts)

    def __repr__(self) -> str:
        lines = self.text.count("\n")
        return f"<Recording {self.name} at line {self.replay.line} of {lines}>"
