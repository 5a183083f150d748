"""What differs between two runs."""

from __future__ import annotations

import os
from collections import Counter

import msgspec
from rich.console import Group as Renderables
from rich.console import RenderableType
from rich.text import Text

from lorad.debug import view
from lorad.debug.lives import Life
from lorad.debug.recording import Recording


class PlanDifference(msgspec.Struct, frozen=True):
    """The first plan that isn't the same in both."""

    step: int
    """Its number."""
    line_a: int | None
    """Line of the trace; None: this run has no such plan."""
    line_b: int | None
    plan_a: str | None
    """The plan as text."""
    plan_b: str | None


class RequestDifference(msgspec.Struct, frozen=True):
    """One request in both runs."""

    request: int
    a: Life | None
    """None: this run hasn't it."""
    b: Life | None

    @property
    def ttft_us(self) -> int | None:
        """How much later its first token comes in b."""
        return _less(_ttft_us(self.b), _ttft_us(self.a))

    @property
    def ttft_steps(self) -> int | None:
        """The same in plans."""
        return _less(_ttft_steps(self.b), _ttft_steps(self.a))

    @property
    def same(self) -> bool:
        """Same answer, same end, and first token after the same time."""
        if self.a is None or self.b is None:
            return False
        same_end = (self.a.tokens, self.a.reason) == (self.b.tokens, self.b.reason)
        return same_end and (self.a.ttft_us, self.a.ttft_steps) == (self.b.ttft_us, self.b.ttft_steps)


def _ttft_us(life: Life | None) -> int | None:
    return None if life is None else life.ttft_us


def _ttft_steps(life: Life | None) -> int | None:
    return None if life is None else life.ttft_steps


def _less(b: int | None, a: int | None) -> int | None:
    return None if a is None or b is None else b - a


class Comparison(msgspec.Struct, frozen=True):
    """Two runs beside each other."""

    name_a: str
    name_b: str
    plans_a: int
    plans_b: int
    first: PlanDifference | None
    """None: all plans are the same."""
    requests: list[RequestDifference]
    """All of them, in the order of their arrival in a."""

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return self.first is None and all(request.same for request in self.requests)

    def __rich__(self) -> RenderableType:
        head = f"a: {self.name_a}, {self.plans_a} plans; b: {self.name_b}, {self.plans_b} plans"
        parts: list[RenderableType] = [Text(head)]
        if self.first is None:
            parts.append(Text("all plans are the same"))
        else:
            parts.append(Text(f"plan {self.first.step} is the first that differs", style="bold"))
            parts.append(Text(f"a, line {self.first.line_a}: {self.first.plan_a or 'no such plan'}"))
            parts.append(Text(f"b, line {self.first.line_b}: {self.first.plan_b or 'no such plan'}"))
        differ = [request for request in self.requests if not request.same]
        if differ:
            made = view.table(
                "requests that differ",
                "#id",
                "weights",
                "#TTFT a",
                "#TTFT b",
                "#µs",
                "#steps",
                "a, tokens",
                "b, tokens",
            )
            for request in differ:
                life = request.a or request.b
                made.add_row(
                    str(request.request),
                    view.named(life.adapter if life else None),
                    _cell(_ttft_us(request.a)),
                    _cell(_ttft_us(request.b)),
                    _cell(request.ttft_us, "+"),
                    _cell(request.ttft_steps, "+"),
                    _end(request.a),
                    _end(request.b),
                )
            parts.append(made)
        return Renderables(*parts)


def _cell(number: int | None, sign: str = "") -> str:
    return "" if number is None else f"{number:{sign}}"


def _end(life: Life | None) -> str:
    return "–" if life is None else f"{life.reason or 'lives'}, {len(life.tokens)}"


def compare(a: Recording | str | os.PathLike[str], b: Recording | str | os.PathLike[str]) -> Comparison:
    """Plays two traces (recordings, or paths of files) to their ends.

    Plans are compared as text: token ids don't count there, in the answers they do.
    """
    run_a, run_b = _fresh(a), _fresh(b)
    first, plans_a, plans_b = None, 0, 0
    while True:
        made_a, made_b = run_a.next_plan(), run_b.next_plan()
        plans_a += made_a is not None
        plans_b += made_b is not None
        if made_a is None and made_b is None:
            break
        if first is None:
            plan_a = run_a.plan_text() if made_a else None
            plan_b = run_b.plan_text() if made_b else None
            if plan_a != plan_b:
                step = max(plans_a, plans_b)
                line_a = made_a.line if made_a else None
                line_b = made_b.line if made_b else None
                first = PlanDifference(step, line_a, line_b, plan_a, plan_b)
    lives_a, lives_b = _lives(run_a), _lives(run_b)
    keys = dict.fromkeys([*lives_a, *lives_b])
    requests = [RequestDifference(key[0], lives_a.get(key), lives_b.get(key)) for key in keys]
    return Comparison(run_a.name, run_b.name, plans_a, plans_b, first, requests)


def _fresh(run: Recording | str | os.PathLike[str]) -> Recording:
    return Recording(run.text, run.name) if isinstance(run, Recording) else Recording.load(run)


def _lives(run: Recording) -> dict[tuple[int, int], Life]:
    """All requests by their number and how often it was used before."""
    seen: Counter[int] = Counter()
    lives = {}
    for life in run.lives.all:
        lives[life.request, seen[life.request]] = life
        seen[life.request] += 1
    return lives
