"""Figures of a run, and of several runs of one side."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median

from lorad.bench.run import Run

KEYS = ("output_tok_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_ms", "itl_p50_ms", "itl_p99_ms", "step_ms")


def rank(values: Sequence[float], share: float) -> float:
    """The value at this share of the sorted ones (nearest rank); 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def figures(run: Run) -> dict[str, float]:
    """Throughput, time to the first token, time per output token after it, time between tokens, mean step."""
    ttft = [times.ttft_s for times in run.requests]
    gaps = [gap for times in run.requests for gap in times.itl_s]
    tpot = [sum(times.itl_s) / len(times.itl_s) for times in run.requests if times.itl_s]
    return {
        "output_tok_s": run.tokens / run.seconds,
        "ttft_p50_s": rank(ttft, 0.5),
        "ttft_p99_s": rank(ttft, 0.99),
        "tpot_p50_ms": rank(tpot, 0.5) * 1e3,
        "itl_p50_ms": rank(gaps, 0.5) * 1e3,
        "itl_p99_ms": rank(gaps, 0.99) * 1e3,
        "step_ms": run.seconds / max(run.steps, 1) * 1e3,
    }


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least, greatest."""
    return median(values), min(values), max(values)


def kept(side: Sequence[dict[str, float]], base: Sequence[dict[str, float]]) -> tuple[float, float, float]:
    """Share of the base's throughput, repeat by repeat."""
    return spread([a["output_tok_s"] / b["output_tok_s"] for a, b in zip(side, base, strict=True)])
