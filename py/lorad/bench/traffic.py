"""What is asked: arrivals, adapters, lengths; from a seed, so that every side gets the same."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from lorad.errors import InvalidRequest


@dataclass(frozen=True)
class Span:
    """A length: `n`, or from `low` to `high` alike often."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, field: str) -> Span:
        """From `128` or `32-256`."""
        low, _, high = text.partition("-")
        try:
            span = cls(int(low), int(high or low))
        except ValueError:
            span = cls(0, -1)
        if not 1 <= span.low <= span.high:
            message = f"{field}: a length as 128 or 32-256 expected, got {text!r}"
            raise InvalidRequest(message, code="bench_length", param=field)
        return span

    def draw(self, dice: Random) -> int:
        """One length."""
        return dice.randint(self.low, self.high)


@dataclass(frozen=True)
class Traffic:
    """A load."""

    requests: int
    rate: float
    """Arrivals a second (Poisson); 0: all at once."""
    prompt: Span
    output: Span
    zipf: float
    """Exponent of the adapters' popularity; 0: by turns, so that each has as many requests."""
    seed: int


@dataclass(frozen=True)
class Ask:
    """One request."""

    at_s: float
    adapter: int
    """Index of the adapter; a side may map all to one or to the base."""
    prompt: list[int]
    output: int


def asks(traffic: Traffic, adapters: int, vocab: int) -> list[Ask]:
    """The requests in the order of their arrival."""
    dice = Random(traffic.seed)
    weights = [1 / (rank + 1) ** traffic.zipf for rank in range(adapters)]
    at_s, made = 0.0, []
    for number in range(traffic.requests):
        if traffic.rate:
            at_s += dice.expovariate(traffic.rate)
        adapter = dice.choices(range(adapters), weights)[0] if traffic.zipf else number % adapters
        prompt = [dice.randrange(vocab) for _ in range(traffic.prompt.draw(dice))]
        made.append(Ask(at_s, adapter, prompt, traffic.output.draw(dice)))
    return made
