"""Sizes that a tuner may change; all give the same bits."""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """How a program cuts its row."""

    columns: int
    warps: int


TILES = Tiles(columns=1024, warps=4)
