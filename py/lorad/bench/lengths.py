"""How long prompts and answers are, spelled as `lorad simulate` spells it; a number and a range have short forms."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from random import Random

from lorad.errors import InvalidRequest

FORMS = "128, 16-512 or lognormal:MEDIAN:SIGMA_MILLI"
TOKENS_MAX = 1 << 20
SIGMA_MILLI_MAX = 5000


@dataclass(frozen=True)
class Uniform:
    """From `low` to `high` alike often; one length where they are the same."""

    low: int
    high: int

    def draw(self, dice: Random) -> int:
        """One length."""
        return dice.randint(self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True)
class LogNormal:
    """Lengths whose logarithm is normal: many short ones, a long tail."""

    median: int
    sigma_milli: int
    """Deviation of the logarithm, in thousandths."""

    def draw(self, dice: Random) -> int:
        """One length."""
        drawn = self.median * exp(dice.gauss(0.0, self.sigma_milli / 1000))
        return min(max(1, round(drawn)), TOKENS_MAX)

    def __str__(self) -> str:
        return f"lognormal:{self.median}:{self.sigma_milli}"


Lengths = Uniform | LogNormal


def parse_lengths(text: str, field: str) -> Lengths:
    """From `128`, `16-512` or `lognormal:128:500`; `fixed:128` and `uniform:16:512` are the first two at length."""
    kind, *numbers = text.split(":")
    if not numbers:
        kind, numbers = ("uniform", text.split("-")) if "-" in text else ("fixed", [text])
    if not all(number.isascii() and number.isdigit() and len(number) <= 9 for number in numbers):
        raise _refused(text, field)
    match kind, [int(number) for number in numbers]:
        case "fixed", [tokens] if 1 <= tokens <= TOKENS_MAX:
            return Uniform(tokens, tokens)
        case "uniform", [low, high] if 1 <= low <= high <= TOKENS_MAX:
            return Uniform(low, high)
        case "lognormal", [median, sigma] if 1 <= median <= TOKENS_MAX and sigma <= SIGMA_MILLI_MAX:
            return LogNormal(median, sigma)
    raise _refused(text, field)


def _refused(text: str, field: str) -> InvalidRequest:
    limits = f"tokens from 1 to {TOKENS_MAX}, the least first, SIGMA_MILLI to {SIGMA_MILLI_MAX}"
    return InvalidRequest(f"{field}: wants {FORMS} ({limits}), got {text!r}", code="bench_length", param=field)
