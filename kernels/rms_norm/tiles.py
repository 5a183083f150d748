"""Sizes that a tuner may change; each gives the same values but for rounding."""

from __future__ import annotations

WARPS = {1024: 2, 4096: 4, 8192: 8, 16384: 16}
"""By the widest row they are for, ascending. The last is the widest row there may be."""
