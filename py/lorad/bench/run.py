"""One run: the asks of a side, every token's time noted. Here through an engine that is stepped by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lorad.bench.traffic import Ask
from lorad.engine.engine import Engine
from lorad.errors import LoradError

NameOf = Callable[[int], str]
"""The model that is asked for an adapter's index; an empty name is the base."""


@dataclass
class Times:
    """One answer: when its tokens came, seconds from the run's begin."""

    at_s: float
    """When it was due to be asked."""
    tokens: int = 0
    came_s: list[float] = field(default_factory=list)
    """Over HTTP what comes is text, and a token that completes none comes with the next one."""

    @property
    def ttft_s(self) -> float:
        """From the arrival to the first token."""
        return self.came_s[0] - self.at_s

    @property
    def itl_s(self) -> list[float]:
        """Between one token and the next."""
        return [after - before for before, after in zip(self.came_s, self.came_s[1:], strict=False)]

    @property
    def tpot_s(self) -> float | None:
        """The mean time of a token after the first; None: there is no other."""
        return (self.came_s[-1] - self.came_s[0]) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass
class Run:
    """What a run took."""

    requests: list[Times]
    steps: int

    @property
    def seconds(self) -> float:
        """From the first arrival to the last token."""
        return max(one.came_s[-1] for one in self.requests) - min(one.at_s for one in self.requests)

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(times.tokens for times in self.requests)


def wrong(what: str) -> LoradError:
    """A request that wasn't answered as it should be ends the bench: there is no speed of wrong answers."""
    return LoradError(f"a request of the bench {what}", code="bench_request")


def run(engine: Engine, asks: Sequence[Ask], name_of: NameOf) -> Run:
    """Asks everything at its time, in process."""
    begin, steps = time.perf_counter(), engine.steps
    waiting, done = list(reversed(asks)), list[Times]()
    living: dict[int, tuple[Ask, Times]] = {}
    while waiting or living:
        while waiting and waiting[-1].at_s <= time.perf_counter() - begin:
            ask = waiting.pop()
            request = engine.add(ask.prompt, name_of(ask.adapter), max_tokens=ask.output, stop_token_ids=())
            living[request.id] = ask, Times(ask.at_s)
        if not living:
            time.sleep(max(0.0, waiting[-1].at_s - (time.perf_counter() - begin)))
            continue
        made = engine.step()
        now = time.perf_counter() - begin
        if made is None:
            continue
        for token in made.tokens:
            times = living[token.id][1]
            times.came_s.append(now)
            times.tokens += 1
        for end in made.finished:
            ask, times = living.pop(end.id)
            if end.reason != "length" or times.tokens != ask.output:
                raise wrong(f"ended by {end.reason} after {times.tokens} of {ask.output} tokens")
            done.append(times)
    return Run(done, engine.steps - steps)
