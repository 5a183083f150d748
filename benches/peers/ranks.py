"""C7: adapters of rank 8 beside one of rank 128 in a batch, against what their bytes need."""

from __future__ import annotations

import sys
from statistics import median

from rich.console import Console
from rich.table import Table

from layout import CHECKOUT
from table import spread

RANKS = "C7"
SMALL, MANY, LARGE = 8, 7, 128
FLOOR_MAX = 1.15
LAYERS = 30


def measure_ranks(repeats: int, threads: int) -> dict[str, list[float]]:
    """µs a layer of the mixed batch, of its small ranks and of its large one alone, and what its bytes take.

    One token for each adapter, the seven modules of a layer of SmolLM2, by the operator that adds adapters to
    a product that is there; each layer's weights come from memory.
    """
    sys.path.append(str(CHECKOUT / "benches" / "kernels"))
    from lorad import _core
    from sides import (  # with numpy and torch, which no other figure needs here
        LoraLayers,
        bandwidth,
        time_interleaved,
    )

    _core.set_threads(threads)
    sides = {
        "mixed": LoraLayers([SMALL] * MANY + [LARGE], 1, LAYERS),
        "small": LoraLayers([SMALL] * MANY, 1, LAYERS),
        "large": LoraLayers([LARGE], 1, LAYERS),
    }
    found: dict[str, list[float]] = {name: [] for name in (*sides, "floor")}
    for _ in range(repeats):
        for name, (us, _spread) in time_interleaved({name: s.layer for name, s in sides.items()}, 5).items():
            found[name].append(us)
        found["floor"].append(sides["mixed"].bytes / bandwidth() / 1e3)
    return found


def print_ranks(found: dict[str, list[float]], console: Console) -> None:
    """The batch against its bytes, and what the small ones take beside the large one against alone."""
    table = Table(title=f"C7: {MANY} × rank {SMALL} and 1 × rank {LARGE}; median (least–greatest)")
    for heading in ("batch", "µs", "÷ its bytes' time", "to reach"):
        table.add_column(heading, justify="left" if heading == "batch" else "right")
    over = [mixed / floor for mixed, floor in zip(found["mixed"], found["floor"], strict=True)]
    table.add_row("mixed", spread(found["mixed"], 0), spread(over, 2), f"≤ {FLOOR_MAX:g}")
    table.add_row(f"{MANY} × rank {SMALL} alone", spread(found["small"], 0), "", "")
    table.add_row(f"1 × rank {LARGE} alone", spread(found["large"], 0), "", "")
    console.print(table)
    beside = median(mixed - large for mixed, large in zip(found["mixed"], found["large"], strict=True))
    console.print(
        f"The small ones take {beside:.0f} µs beside the large one and {median(found['small']):.0f} alone."
    )
