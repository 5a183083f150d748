"""Fits the scheduler's cost model to the real worker, then checks it on other plans: `make bench-costs`.

    python benches/costs/run.py [--rounds 6] [--json FILE] [--write FILE]
    python benches/costs/run.py --check-only [--costs FILE]

The README beside this file says what is measured and what keeps it honest. --write gives a file for `lorad serve
--costs`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from fit import fit
from measure import Bench, measure
from report import as_json, print_report
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from sample import Sample
from scene import scenes

from lorad import _core
from lorad.engine.costs import read_costs

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))
from machine import busy_s, cores, cpu_model, used_s  # they lie beside this folder, not in a package

OTHER_WORK_MAX = 0.1
"""Above this share of the machine the figures are called doubtful."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="base: `smollm2`, a GGUF file or a folder")
    parser.add_argument("--fit", type=int, default=240, help="plans to fit to")
    parser.add_argument("--check", type=int, default=200, help="other plans to check with")
    parser.add_argument("--rounds", type=int, default=6, help="measurements of each plan, spread over the whole run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-only", action="store_true", help="fit nothing: check --costs, or the built-in model")
    parser.add_argument("--costs", default="", help="file to check with --check-only")
    parser.add_argument("--json", type=Path, default=None, help="write everything measured here")
    parser.add_argument("--write", type=Path, default=None, help="write the fit here, for `lorad serve --costs`")
    options = parser.parse_args()
    if options.check_only and options.write:
        parser.error("--write wants a fit, and --check-only makes none")
    if options.costs and not options.check_only:
        parser.error("--costs is what --check-only checks")
    if options.rounds < 3 or options.check < 1 or options.fit < 50:
        parser.error("at least --rounds 3, --check 1 and --fit 50")
    return options


def main() -> None:
    """Measures all plans by turns, fits, checks, prints."""
    options, console = arguments(), Console()
    console.print("loading the base, packing adapters")
    bench = Bench(options.model)
    # by turns, so that the machine is alike for both
    asked = {"check": scenes(f"check {options.seed}", options.check)}
    if not options.check_only:
        asked["fit"] = scenes(f"fit {options.seed}", options.fit)
    turns = sorted(
        (index / len(those), name, scene) for name, those in asked.items() for index, scene in enumerate(those)
    )
    began, busy, used = time.monotonic(), busy_s(), used_s([os.getpid()])
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("timing plans", total=None)
        found = measure(
            bench,
            [scene for *_, scene in turns],
            options.rounds,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    wall = time.monotonic() - began
    other = max(0.0, busy_s() - busy - (used_s([os.getpid()]) - used)) / (wall * cores())
    of: dict[str, list[Sample]] = {name: [] for name in asked}
    for index, sample in found.items():
        of[turns[index][1]].append(sample)

    if options.check_only:
        costs = read_costs(options.costs) if options.costs else _core.default_costs()
    else:
        costs = fit(of["fit"])
    notes = [
        f"{cpu_model()}; lorad {_core.__version__}, {bench.rig.worker.model.config.name or options.model}",
        f"{options.rounds} measurements of each plan in {wall / 60:.0f} minutes; "
        f"other work took {other:.0%} of the machine",
        bench.reference.told(),
    ]
    if other > OTHER_WORK_MAX:
        notes.append("doubtful: too much other work; repeat it on a quiet machine")
    print_report(console, costs, of, notes)
    if options.json:
        options.json.write_text(json.dumps(as_json(costs, of, notes, bench.reference.times)) + "\n")
        console.print(f"written to {options.json}")
    if options.write:
        options.write.write_text(json.dumps(costs, indent=1) + "\n")
        console.print(f"written to {options.write}")


if __name__ == "__main__":
    main()
