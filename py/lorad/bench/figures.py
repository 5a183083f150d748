"""Figures of a run, and of several runs of one side."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median

from lorad.bench.run import Run
from lorad.picture import Spread

Figures = dict[str, float]
SHARES = (50, 90, 99)
"""Percentiles, by nearest rank."""


def rank(values: Sequence[float], share: float) -> float:
    """The value at this share of the sorted ones (nearest rank); 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def figures(run: Run) -> Figures:
    """Throughput, time to the first token, time per output token after it, time between tokens, mean step."""
    samples = {
        "ttft_{}_s": [times.ttft_s for times in run.requests],
        "tpot_{}_ms": [times.tpot_s * 1e3 for times in run.requests if times.tpot_s is not None],
        "itl_{}_ms": [gap * 1e3 for times in run.requests for gap in times.itl_s],
    }
    found = {"output_tok_s": run.tokens / run.seconds, "step_ms": run.seconds / max(run.steps, 1) * 1e3}
    for key, values in samples.items():
        found |= {key.format(f"p{share}"): rank(values, share / 100) for share in SHARES}
    return found


def spread(values: Sequence[float]) -> Spread:
    """Median, least, greatest."""
    return Spread(median(values), min(values), max(values))


def kept(side: Sequence[Figures], other: Sequence[Figures]) -> Spread:
    """The side's throughput as a part of the other's, repeat by repeat: what disturbed both cancels out."""
    return spread([a["output_tok_s"] / b["output_tok_s"] for a, b in zip(side, other, strict=True)])
