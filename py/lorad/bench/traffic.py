"""What is asked: arrivals, adapters, lengths; from a seed, so that every side gets the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from lorad.bench.lengths import Lengths


@dataclass(frozen=True)
class Traffic:
    """A load."""

    requests: int
    rate: float
    """Arrivals a second (Poisson); 0: all at once."""
    prompt: Lengths
    output: Lengths
    zipf: float
    """Exponent of the adapters' popularity; 0: by turns, so that each has as many requests."""
    seed: int

    def __str__(self) -> str:
        arrivals = f"{self.rate:g} a second" if self.rate else "all at once"
        popular = f"by Zipf's law, exponent {self.zipf:g}" if self.zipf else "by turns"
        return (
            f"{self.requests} requests, {arrivals}; {self.prompt} prompt tokens, {self.output} new ones; "
            f"adapters {popular}"
        )


@dataclass(frozen=True)
class Ask:
    """One request."""

    at_s: float
    adapter: int
    """Index of the adapter; a side may map all to one or to the base."""
    prompt: list[int]
    output: int


def asks(traffic: Traffic, adapters: int, vocab: int) -> list[Ask]:
    """The requests in the order of their arrival; but for the adapter they are the same for any number of adapters."""
    dice = Random(traffic.seed)
    weights = [1 / (rank + 1) ** traffic.zipf for rank in range(adapters)]
    at_s, made = 0.0, []
    for number in range(traffic.requests):
        if traffic.rate:
            at_s += dice.expovariate(traffic.rate)
        # Both take one number from the dice, or none, whatever there is to choose from.
        adapter = dice.choices(range(adapters), weights)[0] if traffic.zipf else number % adapters
        prompt = [dice.randrange(vocab) for _ in range(traffic.prompt.draw(dice))]
        made.append(Ask(at_s, adapter, prompt, traffic.output.draw(dice)))
    return made


def kv_tokens(made: Sequence[Ask]) -> float:
    """Tokens whose KV is read in a step of all requests, each in the middle of its answer."""
    return sum(len(ask.prompt) + ask.output / 2 for ask in made)
