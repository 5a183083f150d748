"""Sizes that a tuner may change; another `tokens` gives other roundings of sums."""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """How the vocabulary is cut."""

    tokens: int
    """Of a block: a program of the first pass has one, one of the second looks into one."""
    warps: int


TILES = Tiles(tokens=2048, warps=4)
