"""Sizes that a tuner may change; all give the same bits."""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """What a program takes of a token."""

    heads: int
    warps: int


TILES = Tiles(heads=8, warps=4)
