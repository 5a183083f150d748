"""`counted`: a number of things as people write it."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Such as "1 adapter", "2 adapters": nouns whose plural has an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
