"""`Pace`: what a request waits for here, as measured, in figures that a router can add up.

A request's first token comes after those of the prompts before it and its own, and a step has a token of each request
that is being answered. So with

    before  = tokens of prompts that have no answer yet + requests that are being answered
    seconds = (before + the prompt's tokens that aren't cached) × a token's seconds

the last one is measured: all seconds to first tokens, but for adapters' loads, over all such tokens, where an old
measurement counts less than a new one. It has in it whatever slows prompts down here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lorad.server.generation import Generation

KEPT = 0.98
"""Weight of what was measured before, at each measurement: about the last fifty count."""


class Sample(NamedTuple):
    """A request when it came."""

    before: int
    """Tokens."""
    body_bytes: int


class _Ratio:
    """A sum over another one, both of them fading."""

    def __init__(self) -> None:
        self._over = self._under = 0.0

    def saw(self, over: float, under: float) -> None:
        self._over, self._under = KEPT * self._over + over, KEPT * self._under + under

    @property
    def value(self) -> float | None:
        return self._over / self._under if self._under > 0 else None


class Pace:
    """Measures it."""

    def __init__(self, in_flight: Iterable[Generation]) -> None:
        """`in_flight`: those that were admitted and aren't answered."""
        self._in_flight = in_flight
        self._token_seconds = _Ratio()
        self._token_bytes = _Ratio()

    @property
    def token_seconds(self) -> float | None:
        """None: no request has been answered yet."""
        return self._token_seconds.value

    @property
    def token_bytes(self) -> float | None:
        """Bytes of bodies for each token of their prompts; None likewise."""
        return self._token_bytes.value

    @property
    def queue_seconds(self) -> float:
        """How long a request that comes now waits for those before it; 0 before anything was measured."""
        return self.before() * (self.token_seconds or 0.0)

    def before(self) -> int:
        """Tokens before the first one of a request that comes now."""
        tokens = 0
        for generation in self._in_flight:
            for choice in generation.running:
                tokens += len(choice.prompt) if choice.first_at is None else 1
        return tokens

    def sample(self, body_bytes: int) -> Sample:
        """Of a request that comes now."""
        return Sample(self.before(), body_bytes)

    def settled(self, generation: Generation, sample: Sample) -> None:
        """It was answered, and the engine has told what it waited for."""
        first = generation.choices[0]
        tokens = generation.usage.prompt
        if tokens:
            self._token_bytes.saw(sample.body_bytes, tokens)
        if first.first_at is None or first.waits is None:
            return
        seconds = first.first_at - generation.began - first.waits.load_s
        missing = max(len(first.prompt) - first.cached, 1)
        self._token_seconds.saw(max(seconds, 0.0), sample.before + missing)
