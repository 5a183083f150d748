"""What an answer tells of its way through the engine, for requests that ask with `explain: true`."""

from __future__ import annotations

from typing import Any

from lorad.server.generation import Choice, Generation


def explained(generation: Generation) -> list[dict[str, Any]]:
    """An entry for each choice, in their order. Seconds from the request's arrival; null is what isn't known."""
    return [_choice(choice, generation) for choice in generation.choices]


def _choice(choice: Choice, generation: Generation) -> dict[str, Any]:
    waits, first_at = choice.waits, choice.first_at
    return {
        "index": choice.index,
        "queue_seconds": None if waits is None else waits.queue_s,
        "load_seconds": None if waits is None else waits.load_s,
        "tier": None if waits is None else waits.tier,
        "cached_tokens": choice.cached,
        "generation": generation.target.fingerprint,
        "preemptions": None if waits is None else waits.preemptions,
        "first_token_seconds": None if first_at is None else round(first_at - generation.began, 6),
    }
