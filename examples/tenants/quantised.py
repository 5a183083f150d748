"""Perplexity of the embedded base as it's served beside its own weights in f32, on the tenants' held-out sets.

    python examples/tenants/quantised.py

As served: quantised weights, activations rounded to 8 bits, 16-bit KV. The reference: the same values widened to f32,
f32 activations and KV. All models' answers are computed in mixed batches. Prints the table of docs/models.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chat import Pair, base_file
from evaluate import TENANTS, read_pairs
from report import table
from rich.console import Console
from rich.progress import track

from lorad import Engine
from lorad.engine.scorer import Scorer

REFERENCE = {"dtype": "float32", "dequantize": True}
BATCH = 24


class Figures(NamedTuple):
    """Perplexities of one model on one held-out set."""

    tenant: str
    model: str
    """The tenant's name, or "" for the base."""
    tokens: int
    reference: float
    served: float

    @property
    def change(self) -> float:
        """How far the served one is off, as a part of the reference."""
        return self.served / self.reference - 1


def texts(engine: Engine, pairs: Sequence[Pair]) -> list[tuple[list[int], int]]:
    """Ids of each chat with its end mark, and where its answer begins."""
    made = []
    for prompt, answer in pairs:
        ids = engine.text_model.chat([{"role": "user", "content": prompt}])
        end = engine.weights.config.eos_ids[:1]
        made.append(([*ids, *engine.text_model.tokenizer.encode(answer, add_special_tokens=False), *end], len(ids)))
    return made


def tenant_names() -> list[str]:
    """All that ship."""
    return sorted(path.parent.name for path in TENANTS.glob("*/tenant.json"))


def compare(
    base: Path, names: Sequence[str], count: int, *, alone: bool = True, console: Console | None = None
) -> list[Figures]:
    """Each tenant's adapter on the first `count` examples of its set, and `alone` the base on the same."""
    sides: list[dict[tuple[str, str], tuple[float, int]]] = []
    for options in (REFERENCE, {}):
        scorer = Scorer(str(base), {name: str(TENANTS / name) for name in names}, **options)
        asked = [
            (name, model, ids, answer)
            for name in names
            for ids, answer in texts(scorer.engine, read_pairs(TENANTS / name)[:count])
            for model in (("", name) if alone else (name,))
        ]
        # Another tenant's chat beside each: what is served is mixed.
        asked.sort(key=lambda item: len(item[2]))
        sums: dict[tuple[str, str], tuple[float, int]] = {}
        starts = range(0, len(asked), BATCH)
        for start in track(starts, "scoring", console=console, disable=console is None):
            part = asked[start : start + BATCH]
            found = scorer.scores([(model, ids, answer) for _, model, ids, answer in part])
            for (name, model, _, _), score in zip(part, found, strict=True):
                total, tokens = sums.get((name, model), (0.0, 0))
                sums[name, model] = total + score.total, tokens + score.tokens
        sides.append(sums)
        scorer.close()

    def perplexity(sums: dict[tuple[str, str], tuple[float, int]], key: tuple[str, str]) -> float:
        total, tokens = sums[key]
        return math.exp(-total / tokens)

    reference, served = sides
    return [
        Figures(*key, reference[key][1], perplexity(reference, key), perplexity(served, key))
        for key in sorted(reference)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity of the base as served beside its weights in f32.")
    parser.add_argument("--base", type=Path, help="GGUF file; default: the embedded base")
    parser.add_argument("--count", type=int, default=10**9, help="held-out examples per tenant; default: all")
    arguments = parser.parse_args()
    console = Console()
    found = compare(base_file(arguments.base), tenant_names(), arguments.count, console=console)
    rows = [
        [
            f"`{figures.tenant}`",
            f"`{figures.model}`" if figures.model else "the base",
            str(figures.tokens),
            f"{figures.reference:.3f}",
            f"{figures.served:.3f}",
            f"{figures.change:+.2%}",
        ]
        for figures in found
    ]
    head = ["held-out set", "model", "tokens", "f32", "as served", "difference"]
    console.print(table(head, rows), soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
