"""C13: what lorad holds with 1,000 adapters registered, 64 of them in pages; C3: the base's speed then."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lorad.bench.adapters import copy_changed
from rich.console import Console
from rich.table import Table

from cases import Case
from layout import Layout, adapter_name
from lorad_peer import Lorad
from serving import process_tree
from table import paired, spread

MEMORY = "C13"
REGISTERED, HOT = 1000, 64
POOL_BYTES = 1 << 30
OVER_MAX = 300 << 20
MIB = 1 << 20


class Registered(Lorad):
    """lorad with adapters from another folder."""

    folder: Path
    start_limit_s = 1200.0

    def command(self, adapters: int, streams_max: int) -> list[str]:
        """With a pool of a fixed size."""
        words = [
            *super().command(0, streams_max),
            "--kv-cache-memory-bytes",
            str(POOL_BYTES),
            "--lora-modules",
        ]
        return words + [f"{adapter_name(k)}={self.folder / adapter_name(k)}" for k in range(adapters)]


def resident(pid: int) -> int:
    """Bytes of memory that are a process's own or its share of what several have (Pss of proc(5))."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def torch_bytes() -> int:
    """What a bare `import torch` holds."""
    code = "import torch; print(next(l for l in open('/proc/self/smaps_rollup') if l.startswith('Pss:')))"
    return int(subprocess.check_output([sys.executable, "-c", code], text=True).split()[1]) << 10


def measure_memory(
    layout: Layout, repeats: int, threads: int, logs: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Starts a server with all adapters, asks under the first ones, and reads what its processes hold.

    Then the base's tok/s there and at a server without adapters, by turns.
    """
    with tempfile.TemporaryDirectory(prefix="registered-", dir=layout.root) as folder:
        for number in range(REGISTERED):
            copy_changed(layout.adapter(0), Path(folder) / adapter_name(number), number + 1)
        Registered.folder = Path(folder)
        full, plain = (
            Registered(layout, threads, logs / "full.log"),
            Lorad(layout, threads, logs / "plain.log"),
        )
        say(f"  {MEMORY}: starting a server with {REGISTERED} adapters")
        try:
            full.start(REGISTERED, HOT)
            checked(full, Case(MEMORY, HOT, HOT, REGISTERED, new_tokens=2))
            assert full.process is not None
            held = sum(map(resident, process_tree(full.process.pid)))
            full.sleep()
            plain.start(0, HOT)
            plain.sleep()
            rates: dict[str, list[float]] = {"full": [], "plain": []}
            for repeat in range(repeats + 1):
                sides = [("full", full), ("plain", plain)]
                for name, side in sides if repeat % 2 else reversed(sides):
                    side.wake()
                    rate = checked(side, Case("C3", 32, 0, REGISTERED))
                    side.sleep()
                    if repeat:  # the first one warms
                        rates[name].append(rate)
        finally:
            full.stop()
            plain.stop()
    held_by = {"held": held, "base": layout.gguf.stat().st_size, "pool": POOL_BYTES, "torch": torch_bytes()}
    return {"bytes": held_by, "base_tok_s": rates}


def checked(side: Lorad, case: Case) -> float:
    """tok/s of a burst in which nothing failed."""
    burst = side.burst(case, 1)
    wrong = [a.error or f"{a.tokens} tokens" for a in burst.answers if a.error or a.tokens != case.new_tokens]
    if wrong:
        raise RuntimeError(f"{case.title}: {wrong[0]}")
    return burst.tok_s


def print_memory(measured: dict[str, Any], console: Console) -> None:
    """What it holds against what it may, and the base's share."""
    found, rates = measured["bytes"], measured["base_tok_s"]
    table = Table(title=f"C13: {REGISTERED:,} adapters of rank 16 registered, {HOT} in pages")
    for heading in ("", "MiB"):
        table.add_column(heading, justify="left" if not heading else "right")
    over = found["held"] - found["base"] - found["pool"] - found["torch"]
    table.add_row("front and engine hold", f"{found['held'] / MIB:,.0f}")
    table.add_row("the base's file", f"{found['base'] / MIB:,.0f}")
    table.add_row("the pool", f"{found['pool'] / MIB:,.0f}")
    table.add_row("a bare import of torch", f"{found['torch'] / MIB:,.0f}")
    table.add_row(f"beyond these three (to reach: ≤ {OVER_MAX / MIB:.0f})", f"{over / MIB:,.0f}")
    console.print(table)
    share = spread(paired(rates["full"], rates["plain"]), 3)
    console.print(f"C3: 32 streams on the base keep {share} of their tok/s beside them (to reach: ≥ 0.99)")
