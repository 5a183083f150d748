"""The figures that are measured, and what one timed burst gives back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from layout import adapter_name
from prompts import NEW_TOKENS, PREFILL_TOKENS, PROMPT_TOKENS, prompt

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
    registered: int
    """Adapters that the sides know; cases with the same number share the processes."""
    ttft: bool = False
    prompt_tokens: int = PROMPT_TOKENS
    new_tokens: int = NEW_TOKENS
    sides: tuple[str, ...] = ("lorad", "vllm", "llama", "peft")

    @property
    def title(self) -> str:
        """Name in tables."""
        on = f"{self.adapters} adapter{'s' * (self.adapters > 1)}" if self.adapters else "base"
        prefill = f", prefill of {self.prompt_tokens}" if self.new_tokens == 1 else ""
        return f"{self.figure}: {self.streams} × {on}{prefill}"

    @property
    def tokens(self) -> int:
        """That one figure's streams count: those that come out, or of a prefill those that go in."""
        return self.prompt_tokens if self.new_tokens == 1 else self.new_tokens

    @property
    def base(self) -> Case:
        """The same on the base, for what an adapter costs."""
        return replace(self, adapters=0)

    def adapter_of(self, stream: int) -> int | None:
        """Adapter of one stream, None for the base."""
        return stream % self.adapters if self.adapters else None


OWN = ("lorad",)
SERVERS = ("lorad", "vllm", "llama")
CASES = (
    Case("C1", 32, 32, 32),
    Case("C3", 32, 0, 32, sides=OWN),
    Case("C3", 32, 1, 32, sides=OWN),
    Case("C3", 32, 32, 32, sides=OWN),
    Case("C3", 8, 0, 32, sides=OWN),
    Case("C3", 8, 8, 32, sides=OWN),
    Case("C2", 8, 8, 8, ttft=True),
    Case("C5", 1, 0, 1, prompt_tokens=PREFILL_TOKENS, new_tokens=1, sides=SERVERS),
    Case("C5", 1, 1, 1, prompt_tokens=PREFILL_TOKENS, new_tokens=1, sides=SERVERS),
    Case("C4", 1, 0, 0, sides=SERVERS),
    Case("C4", 32, 0, 0, sides=SERVERS),
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
    tokens: int
    """All that count: see `Case.tokens`."""
    faults: list[str] = field(default_factory=list)
    other_work: float = 0.0
    """Share of all cores' time that neither this side nor the load took."""

    @property
    def tok_s(self) -> float:
        """Tokens per second, end to end: of output, or of a prefill's prompts."""
        return self.tokens / self.wall_s

    def ttft_s(self, percentile: float) -> float:
        """Nearest-rank percentile of the time to first token."""
        times = sorted(a.first_s for a in self.answers if a.first_s is not None)
        rank = max(1, -(-len(times) * percentile // 100))
        return times[int(rank) - 1]


def prompts_of(case: Case, variant: int) -> list[list[int]]:
    """Prompts of all streams of one burst."""
    return [prompt(variant, stream, case.prompt_tokens) for stream in range(case.streams)]


def prefill_reference(path: Path) -> Path:
    """The reference for longer prompts, beside the other."""
    return path.with_name(f"reference-{PREFILL_TOKENS}.json")


def reference_key(kind: str, variant: int, stream: int, tokens: int) -> str:
    """Where the reference has a prompt's first tokens."""
    return f"{kind}/{variant}/{stream}" + ("" if tokens == PROMPT_TOKENS else f"/{tokens}")


class Reference:
    """How far below its best logit float32 transformers + PEFT sees each first token (see `prepare.py`)."""

    def __init__(self, path: Path) -> None:
        """Reads the files that the installer made."""
        self.below: dict[str, dict[str, float]] = {}
        for file in (path, prefill_reference(path)):
            if file.exists():
                self.below |= json.loads(file.read_text())

    def distance(self, case: Case, variant: int, stream: int, text: str) -> float:
        """Logits between the best first token and the likeliest one that this answer may begin with.

        Infinite if that is more than `FAR_LOGITS`. A token that is no whole text may be any that begins.
        """
        kind = BASE if case.adapter_of(stream) is None else "lora"
        below = self.below[reference_key(kind, variant, stream, case.prompt_tokens)]
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
        elif answer.tokens != case.new_tokens:
            faults.append(f"{who}: {answer.tokens} tokens instead of {case.new_tokens}")
        elif answer.first_s is None:
            faults.append(f"{who}: no token was seen arriving")
        elif index in (
            None,
            stream,
        ):  # the reference has each stream's prompt with the base and with its own adapter
            distance = reference.distance(case, variant, stream, answer.text)
            begins = f"{who}: begins {answer.text[:12]!r}, {distance:.1f} below the reference's best"
            if distance > FAR_LOGITS:
                faults.append(begins)
            elif distance > NEAR_LOGITS:
                far.append(begins)
    if len(far) > max(1, FAR_SHARE_MAX * case.streams):
        faults += far
    return faults
