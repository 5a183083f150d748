"""The figures that are measured, and what one timed burst gives back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from layout import adapter_name
from prompts import NEW_TOKENS, prompt

BASE = "base"
NEAR_LOGITS = 1.0
"""A first token is expected to lie at most this much below the reference's best logit."""
FAR_LOGITS = 5.0
"""Farther below than this, a first token is wrong whatever the others are."""
FAR_SHARE_MAX = 0.1
"""Share of a burst's streams (at least one) whose first token may lie between the two.

A side that computes with 8-bit activations moves single logits of these strong random adapters by up to 3."""


@dataclass(frozen=True)
class Case:
    """One figure: so many streams at once, on so many adapters (0: base only)."""

    figure: str
    streams: int
    adapters: int
    ttft: bool = False

    @property
    def title(self) -> str:
        """Name in tables."""
        on = f"{self.adapters} adapters" if self.adapters else "base"
        return f"{self.figure}: {self.streams} × {on}"

    def adapter_of(self, stream: int) -> int | None:
        """Adapter of one stream, None for the base."""
        return stream % self.adapters if self.adapters else None


CASES = (
    Case("C1", 32, 32),
    Case("C2", 8, 8, ttft=True),
    Case("C4", 1, 0),
    Case("C4", 32, 0),
)


@dataclass
class Answer:
    """One stream's answer. Times are seconds from the moment the burst was let go."""

    text: str = ""
    tokens: int = 0
    first_s: float | None = None
    error: str | None = None


@dataclass
class Burst:
    """All answers of one timed burst, or the reason why it has no speed."""

    wall_s: float
    answers: list[Answer]
    faults: list[str] = field(default_factory=list)
    other_work: float = 0.0
    """Share of all cores' time that neither this side nor the load took."""

    @property
    def output_tok_s(self) -> float:
        """Output tokens per second, end to end."""
        return sum(a.tokens for a in self.answers) / self.wall_s

    def ttft_s(self, percentile: float) -> float:
        """Nearest-rank percentile of the time to first token."""
        times = sorted(a.first_s for a in self.answers if a.first_s is not None)
        rank = max(1, -(-len(times) * percentile // 100))
        return times[int(rank) - 1]


def prompts_of(case: Case, variant: int) -> list[list[int]]:
    """Prompts of all streams of one burst."""
    return [prompt(variant, stream) for stream in range(case.streams)]


class Reference:
    """How far below its best logit float32 transformers + PEFT sees each first token (see `prepare.py`)."""

    def __init__(self, path: Path) -> None:
        """Reads the file that the installer made."""
        self.below: dict[str, dict[str, float]] = json.loads(path.read_text())

    def distance(self, case: Case, variant: int, stream: int, text: str) -> float:
        """Logits between the best first token and the likeliest one that this answer may begin with.

        Infinite if that is more than `FAR_LOGITS`. A token that is no whole text may be any that begins.
        """
        kind = BASE if case.adapter_of(stream) is None else "lora"
        below = self.below[f"{kind}/{variant}/{stream}"]
        may = [far for first, far in below.items() if text.startswith(first) or "\ufffd" in first]
        return min(may, default=float("inf"))


def find_faults(case: Case, variant: int, burst: Burst, reference: Reference) -> list[str]:
    """What makes a burst's speed worthless: errors, missing tokens, answers of the wrong weights."""
    faults, far = [], []
    for stream, answer in enumerate(burst.answers):
        index = case.adapter_of(stream)
        who = f"stream {stream} ({BASE if index is None else adapter_name(index)})"
        if answer.error:
            faults.append(f"{who}: {answer.error}")
        elif answer.tokens != NEW_TOKENS:
            faults.append(f"{who}: {answer.tokens} tokens instead of {NEW_TOKENS}")
        elif answer.first_s is None:
            faults.append(f"{who}: no token was seen arriving")
        else:
            distance = reference.distance(case, variant, stream, answer.text)
            begins = f"{who}: begins {answer.text[:12]!r}, {distance:.1f} below the reference's best"
            if distance > FAR_LOGITS:
                faults.append(begins)
            elif distance > NEAR_LOGITS:
                far.append(begins)
    if len(far) > max(1, FAR_SHARE_MAX * case.streams):
        faults += far
    return faults
