"""How far the cost model is from what was measured: the printed tables, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from fit import predicted_ns
from rich.console import Console
from rich.table import Table
from sample import Sample
from scene import ADAPTERS, KINDS, PAGE_IN

from lorad import _core

WITHIN = 0.15
CHUNKS = ((1, 1), (2, 3), (4, 16), (17, 64), (65, 10**6))
"""New tokens of a step: ranges that are told apart."""


def errors(costs: dict[str, int], samples: Sequence[Sample]) -> np.ndarray:
    """Relative errors, positive where the model says more than was measured."""
    return np.array([predicted_ns(costs, sample) / sample.ns - 1 for sample in samples])


def figures(costs: dict[str, int], samples: Sequence[Sample]) -> dict[str, float]:
    """What is said of a set of plans."""
    found = errors(costs, samples)
    away, times = np.abs(found), np.array([sample.ns for sample in samples], dtype=float)
    return {
        "plans": len(samples),
        "median": float(np.median(away)),
        "p90": float(np.quantile(away, 0.9)),
        "within": float(np.mean(away <= WITHIN)),
        "worst": float(found[away.argmax()]),
        "sum": float((times * found).sum() / times.sum()),
    }


def groups(samples: Sequence[Sample]) -> list[tuple[str, list[Sample]]]:
    """The plans by kind, by adapters and by size, those that there are."""
    tests: list[tuple[str, Callable[[Sample], bool]]] = [("all plans", lambda one: True)]
    tests += [(kind, lambda one, kind=kind: one.kind == kind) for kind in (*KINDS, PAGE_IN)]
    tests += [(name, lambda one, name=name: one.adapters == name) for name in ADAPTERS]
    for low, high in CHUNKS:
        name = (
            f"{low} token" if low == high == 1 else f"{low}-{high} tokens" if high < 10**6 else f"{low} tokens or more"
        )
        tests.append((name, lambda one, low=low, high=high: one.is_step and low <= one.tokens <= high))
    found = [(name, [one for one in samples if test(one)]) for name, test in tests]
    return [(name, those) for name, those in found if those]


def print_report(console: Console, costs: dict[str, int], of: dict[str, list[Sample]], notes: Sequence[str]) -> None:
    """The model, the check by kind of plan, the worst plans, and what it was measured on."""
    table = Table(title="the cost model: ns, but for few_tokens")
    table.add_column("part")
    table.add_column("checked here", justify="right")
    table.add_column("built in", justify="right")
    for name, built_in in _core.default_costs().items():
        table.add_row(name, f"{costs[name]:,}", f"{built_in:,}")
    console.print(table)

    check = of["check"]
    table = Table(title=f"{len(check)} plans that weren't fitted to: the model over the worker's time")
    for heading in ("plans", "number", "median error", "p90", "within 15%", "error of the sum", "worst"):
        table.add_column(heading, justify="left" if heading == "plans" else "right")
    ends = {"all plans", PAGE_IN, ADAPTERS[-1]}
    for name, samples in groups(check):
        got = figures(costs, samples)
        table.add_row(
            name,
            str(len(samples)),
            f"{got['median']:.1%}",
            f"{got['p90']:.1%}",
            f"{got['within']:.1%}",
            f"{got['sum']:+.1%}",
            f"{got['worst']:+.0%}",
            end_section=name in ends,
        )
    console.print(table)
    if of.get("fit"):
        got = figures(costs, of["fit"])
        console.print(
            f"on the {got['plans']} plans of the fit: median {got['median']:.1%}, within 15% {got['within']:.1%}",
            highlight=False,
        )
    away = errors(costs, check)
    for index in np.argsort(-np.abs(away))[:5].tolist():
        console.print(f"{away[index]:+.0%}: {check[index]}", highlight=False, markup=False)
    for note in notes:
        console.print(note, highlight=False, markup=False)


def as_json(costs: dict[str, int], of: dict[str, list[Sample]], notes: Sequence[str], reference: list[int]) -> dict:
    """Everything that was measured and found."""
    return {
        "costs": costs,
        "built_in": _core.default_costs(),
        "check": {name: figures(costs, samples) for name, samples in groups(of["check"])},
        "notes": list(notes),
        "reference_ns": reference,
        "samples": {name: [one.as_json() for one in samples] for name, samples in of.items()},
    }
