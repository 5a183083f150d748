"""C12: the server's tok/s beside the engine's in process, by `lorad bench`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from layout import Layout, timing_env
from table import paired, spread

OVERHEAD = "C12"
SHARE_MIN = 0.95


def measure_overhead(layout: Layout, repeats: int, threads: int, out: Path) -> dict[str, list[float]]:
    """Output tok/s of each repeat: of the base, one adapter for all and 32, in process and over HTTP."""
    command = [sys.executable, "-m", "lorad", "bench", str(layout.gguf), "--server", "--no-merged"]
    command += ["--repeats", str(repeats), "--threads", str(threads), "--json", str(out)]
    subprocess.run(command, check=True, env=timing_env(), stdout=subprocess.DEVNULL)
    found: dict[str, list[float]] = {}
    for side in json.loads(out.read_text())["sides"]:
        who = f"{side['distinct'] or 'no'} adapter{'s' * (side['distinct'] != 1)}"
        found[f"{side['level']}: {who}"] = [repeat["output_tok_s"] for repeat in side["repeats"]]
    return found


def print_overhead(found: dict[str, list[float]], console: Console) -> None:
    """Both levels side by side."""
    table = Table(title="C12: 32 streams, tok/s; median (least–greatest)")
    for heading in ("requests on", "in process", "over HTTP", "over HTTP ÷ in process", "to reach"):
        table.add_column(heading, justify="left" if heading == "requests on" else "right")
    for name, inside in found.items():
        level, who = name.split(": ")
        if level == "engine":
            outside = found[f"server: {who}"]
            share = spread(paired(outside, inside), 3)
            table.add_row(who, spread(inside, 0), spread(outside, 0), share, f"≥ {SHARE_MIN:g}")
    console.print(table)
