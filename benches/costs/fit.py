"""Fits the cost model to samples: the costs, none below 0, that make the relative errors small.

The model is the core's own function: a part's column is the step with that part at 1 and all others at 0. Half of a
relative error counts half, as in a median and unlike in least squares, so a plan that ran disturbed moves little.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sample import Sample

from lorad import _core

Floats = NDArray[np.float64]

STEP_PARTS = (
    "step_ns",
    "many_ns",
    "head_ns",
    "token_ns",
    "sample_ns",
    "context_ns",
    "adapter_page_ns",
    "adapter_token_page_ns",
    "beside_page_ns",
)
PAGE_IN_PARTS = ("page_in_ns", "page_in_page_ns")
FEW_TOKENS = range(17)
"""Values of `few_tokens` that are tried."""
ROUNDS = 20
ERROR_LEAST = 0.03
"""Relative errors below this are all alike."""


def nnls(a: Floats, b: Floats) -> Floats:
    """The x ≥ 0 with the least |a·x − b|, by Lawson and Hanson's active set. `a`: [rows, columns]."""
    columns = a.shape[1]
    x, free = np.zeros(columns), np.zeros(columns, dtype=bool)
    for _ in range(3 * columns):
        gradient = np.where(free, -np.inf, a.T @ (b - a @ x))
        if gradient.max() <= 1e-9 * max(1.0, float(np.abs(b).max())):
            break
        free[gradient.argmax()] = True
        while True:
            best = np.zeros(columns)
            best[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            if best[free].min(initial=1.0) > 0:
                break
            # as far towards it as nothing turns negative
            bad = free & (best <= 0)
            x += (x[bad] / (x[bad] - best[bad])).min() * (best - x)
            free &= x > 1e-12 * max(1.0, float(x.max()))
            x[~free] = 0.0
        x = best
    return x


def relative(a: Floats, times: Floats) -> tuple[Floats, float]:
    """The x ≥ 0 with the least sum of |a·x ÷ times − 1|, nearly, and that sum."""
    scale = np.maximum(a.max(axis=0), 1e-9)
    shares = a / scale / times[:, None]
    weights, x = np.ones(len(times)), np.zeros(a.shape[1])
    for _ in range(ROUNDS):
        x = nnls(shares * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(shares @ x - 1), ERROR_LEAST))
    return x / scale, float(np.maximum(np.abs(shares @ x - 1), ERROR_LEAST).sum())


def predicted_ns(costs: dict[str, int], sample: Sample) -> int:
    """What the core says of a plan."""
    if sample.is_step:
        return _core.plan_ns(costs, sample.rows, sample.page_in_pages)
    return _core.page_in_ns(costs, sample.page_in_pages)


def columns(samples: Sequence[Sample], parts: Sequence[str], few_tokens: int) -> Floats:
    """[samples, parts]: how often each part is in each plan."""
    nothing = dict.fromkeys(_core.default_costs(), 0) | {"few_tokens": few_tokens}
    return np.array([[predicted_ns({**nothing, part: 1}, sample) for part in parts] for sample in samples], dtype=float)


def fit(samples: Sequence[Sample]) -> dict[str, int]:
    """All parts of the cost model, from samples of both kinds."""
    steps, page_ins = ([one for one in samples if one.is_step is kind] for kind in (True, False))
    costs = dict.fromkeys(_core.default_costs(), 0)
    times = np.array([one.ns for one in steps], dtype=float)
    found = [(relative(columns(steps, STEP_PARTS, few), times), few) for few in FEW_TOKENS]
    (best, _), few_tokens = min(found, key=lambda one: one[0][1])
    costs |= dict(zip(STEP_PARTS, map(round, best.tolist()), strict=True))
    costs["few_tokens"] = few_tokens if costs["many_ns"] else 0
    times = np.array([one.ns for one in page_ins], dtype=float)
    best, _ = relative(columns(page_ins, PAGE_IN_PARTS, 0), times)
    return costs | dict(zip(PAGE_IN_PARTS, map(round, best.tolist()), strict=True))
