"""The prompts of every figure: random token ids from a fixed seed, so that all sides compute the same."""

from __future__ import annotations

import random

PROMPT_TOKENS = 128
NEW_TOKENS = 64
PREFILL_TOKENS = 512
"""Prompt of the figure that is about prefill alone."""
STREAMS_MAX = 32
VARIANTS = 6
"""Variant 0 warms up; the timed repeats use 1 to 5 in turn, so no repeat meets a prompt in a cache."""


def prompt(variant: int, stream: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    """Token ids of one stream's prompt; ordinary ids only, no special tokens of the SmolLM2 vocabulary."""
    rnd = random.Random(f"{variant}/{stream}")
    return [rnd.randrange(32, 49000) for _ in range(tokens)]


def variant_of(repeat: int) -> int:
    """Prompt variant of a timed repeat (counted from 0)."""
    return 1 + repeat % (VARIANTS - 1)
