"""C11: from the command to the first token of the base, files warm, servers started by turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.table import Table

from cases import Case
from serving import Side
from table import OURS, paired, spread

STARTS = "C11"
STARTING = ("lorad", "vllm")
FIRST = Case("C11", 1, 0, 0, new_tokens=2)
"""Two new tokens: a case with one counts its prompt."""
SECONDS_MAX = 3.0
SHARE_MAX = 0.1


def time_starts(
    sides: Mapping[str, Side], repeats: int, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds of each repeat, by side. A first start of each isn't counted: it warms the files."""
    found: dict[str, list[float]] = {side.name: [] for side in sides.values()}
    for repeat in range(repeats + 1):
        for side in sides.values():
            began = time.perf_counter()
            side.start(0, 1)
            try:
                answer = side.burst(FIRST, 0).answers[0]
                if answer.error or answer.first_s is None:
                    raise RuntimeError(f"{side.name}: {answer.error or 'no token'}")
                seconds = time.perf_counter() - began
            finally:
                side.stop()
            if repeat:
                found[side.name].append(seconds)
            say(f"  {STARTS}, {side.name}: {seconds:.1f} s{'' if repeat else ', not counted'}")
    return found


def print_starts(found: Mapping[str, list[float]], console: Console) -> None:
    """Medians, ranges, lorad's share of the other's time."""
    table = Table(title="C11: start to first token, base, warm files; median (least–greatest)")
    for heading in ("side", "s", "lorad ÷ side", "to reach"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for name, seconds in found.items():
        ours = name == OURS
        ratio = "" if ours else spread(paired(found[OURS], seconds), 3) if OURS in found else ""
        goal = f"≤ {SECONDS_MAX:g} s" if ours else f"≤ {SHARE_MAX:g} ×"
        table.add_row(name, spread(seconds, 2), ratio, goal)
    console.print(table)
