"""One run: the asks of a side through an engine that is stepped by hand, every token's time noted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lorad.bench.traffic import Ask
from lorad.engine.engine import Engine
from lorad.errors import LoradError


@dataclass
class Times:
    """When the tokens of one request came, seconds from the run's begin."""

    at_s: float
    tokens_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """From the arrival to the first token."""
        return self.tokens_s[0] - self.at_s

    @property
    def itl_s(self) -> list[float]:
        """Between one token and the next."""
        return [after - before for before, after in zip(self.tokens_s, self.tokens_s[1:], strict=False)]


@dataclass
class Run:
    """What a run took."""

    requests: list[Times]
    steps: int
    seconds: float
    """From the first arrival to the last token."""

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(times.tokens_s) for times in self.requests)


def run(engine: Engine, asks: Sequence[Ask], name_of: Callable[[int], str]) -> Run:
    """Asks everything at its time; `name_of`: the model for an adapter's index. A request that fails ends the bench."""
    begin, steps = time.perf_counter(), engine.steps
    waiting, times = list(reversed(asks)), list[Times]()
    living: dict[int, Times] = {}
    while waiting or living:
        while waiting and waiting[-1].at_s <= time.perf_counter() - begin:
            ask = waiting.pop()
            request = engine.add(ask.prompt, name_of(ask.adapter), max_tokens=ask.output, stop_token_ids=())
            living[request.id] = Times(ask.at_s)
            times.append(living[request.id])
        if not living:
            time.sleep(max(0.0, waiting[-1].at_s - (time.perf_counter() - begin)))
            continue
        made = engine.step()
        now = time.perf_counter() - begin
        if made is None:
            continue
        for token in made.tokens:
            living[token.id].tokens_s.append(now)
        for end in made.finished:
            if end.reason != "length":
                raise LoradError(f"a request of the bench ended by {end.reason}", code="bench_request")
            del living[end.id]
    seconds = max(one.tokens_s[-1] for one in times) - asks[0].at_s
    return Run(times, engine.steps - steps, seconds)
