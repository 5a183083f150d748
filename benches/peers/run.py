"""Measures lorad beside its peers, interleaved, and prints the tables of C1 to C5, C7, C9 and C11 to C13.

    python benches/peers/run.py [--only C1,C2] [--peers llama,vllm,peft,lorad] [--repeats 5]

Each side is started once for each set of adapters and sleeps (SIGSTOP) except while it is measured. A repeat
gives every side its turn, and the next one begins with another side.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from itertools import groupby, product
from pathlib import Path
from typing import Any

from rich.console import Console

from cases import CASES, Burst, Case, Reference, find_faults
from first_use import FIRST_USE, measure_first_use, print_first_use
from layout import Layout
from llama_cpp import LlamaCpp
from lorad_peer import Lorad
from machine import busy_s, cores, cpu_model, holding, prioritise, used_s
from memory import MEMORY, measure_memory, print_memory
from overhead import OVERHEAD, measure_overhead, print_overhead
from peft_peer import PeftPeer
from prompts import variant_of
from ranks import RANKS, measure_ranks, print_ranks
from serving import Side, process_tree
from starts import STARTING, STARTS, print_starts, time_starts
from table import Cell, as_json, print_table
from vllm_cpu import VllmCpu

SHOWN: dict[str, Callable[[Any, Console], None]] = {
    RANKS: print_ranks,
    FIRST_USE: print_first_use,
    STARTS: print_starts,
    OVERHEAD: print_overhead,
    MEMORY: print_memory,
}
"""Figures with tables of their own."""
SIDES: dict[str, type[Side]] = {"lorad": Lorad, "vllm": VllmCpu, "llama": LlamaCpp, "peft": PeftPeer}
OTHER_WORK_MAX = 0.08
"""A burst during which other work took more of the machine than this is taken again, twice at most."""

console = Console(width=None if sys.stdout.isatty() else 130)


def say(text: str) -> None:
    """A progress line."""
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}", highlight=False)


def measure(side: Side, case: Case, variant: int, reference: Reference) -> Burst:
    """One burst at one side, checked, with what else the machine did meanwhile."""
    assert side.process is not None
    side.wake()
    pids = [os.getpid(), *process_tree(side.process.pid)]
    busy, used, began = busy_s(), used_s(pids), time.perf_counter()
    burst = side.burst(case, variant)
    wall_s = time.perf_counter() - began
    other = (busy_s() - busy) - (used_s(pids) - used)
    side.sleep()
    burst.other_work = max(0.0, other / (wall_s * cores()))
    burst.faults = find_faults(case, variant, burst, reference)
    return burst


def measure_quietly(side: Side, case: Case, variant: int, reference: Reference) -> Burst:
    """As `measure`, again when something else had a noticeable part of the machine; the quietest counts."""
    tries: list[Burst] = []
    for _ in range(3):
        tries.append(measure(side, case, variant, reference))
        if tries[-1].faults or tries[-1].other_work <= OTHER_WORK_MAX:
            return tries[-1]
        say(f"  {side.name}: other work took {tries[-1].other_work:.0%} of the machine; once more")
    return min(tries, key=lambda burst: burst.other_work)


def measure_group(
    cases: list[Case], sides: dict[str, Side], repeats: int, reference: Reference, lock: Path | None
) -> list[Cell]:
    """All cases that share one set of adapters: start, warm up, interleave, stop."""
    of = {side.name: [case for case in cases if key in case.sides] for key, side in sides.items()}
    cells = {
        (case, side.name): Cell(case, side.name, [])
        for case in cases
        for side in sides.values()
        if case in of[side.name]
    }
    ready = []
    try:
        for side in sides.values():
            began = time.perf_counter()
            try:
                side.start(cases[0].registered, max(case.streams for case in cases))
                for case in of[side.name]:
                    faults = find_faults(case, 0, side.burst(case, 0), reference)
                    if faults:
                        raise RuntimeError("; ".join(faults[:3]))
                side.sleep()
            except (RuntimeError, OSError) as error:
                say(f"[red]{side.name} is left out:[/red] {error}")
                side.stop()
                for case in of[side.name]:
                    cells[case, side.name].broken = str(error).splitlines()[0]
                continue
            ready.append(side)
            say(f"{side.name} ready and warm after {time.perf_counter() - began:.0f} s")
        for repeat, case in product(range(repeats), cases):
            shift = repeat % max(1, len(ready))
            with holding(lock):
                for side in ready[shift:] + ready[:shift]:
                    if case not in of[side.name]:
                        continue
                    burst = measure_quietly(side, case, variant_of(repeat), reference)
                    cells[case, side.name].bursts.append(burst)
                    what = burst.faults[0] if burst.faults else f"{burst.tok_s:.1f} tok/s"
                    say(f"  {case.title}, repeat {repeat + 1}/{repeats}, {side.name}: {what}")
    finally:
        for side in sides.values():
            side.stop()
    return list(cells.values())


def chosen(text: str, known: list[str], what: str) -> list[str]:
    """Words of a comma-separated option, each known."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        sys.exit(f"{what}: {', '.join(unknown) or 'nothing'} given; there are {', '.join(known)}")
    return words


def main() -> None:
    """Reads the options, measures, prints, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    figures = [*dict.fromkeys(case.figure for case in CASES), RANKS, FIRST_USE, STARTS, OVERHEAD, MEMORY]
    parser.add_argument("--only", default=",".join(figures), help="figures, such as C1,C2")
    parser.add_argument("--peers", default=",".join(SIDES), help="sides, such as lorad,llama")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dir", default=None, help="folder that install.py filled (.peers)")
    parser.add_argument("--threads", type=int, default=cores(), help="threads that every peer computes with")
    parser.add_argument("--vllm-dtype", choices=["float32", "bfloat16"], default=VllmCpu.dtype)
    parser.add_argument("--peft-dtype", choices=["float32", "bfloat16"], default=PeftPeer.dtype)
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures as data")
    parser.add_argument("--lock", type=Path, default=None, help="file to hold locked during each repeat")
    parser.add_argument("--nice", type=int, default=0, help="nice value of the load and of every side")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    layout = Layout.of(options.dir)
    if not layout.reference.exists():
        sys.exit(f"{layout.root} is not complete: run install.py first")
    reference = Reference(layout.reference)
    Side.nice = options.nice
    prioritise(os.getpid(), options.nice)
    VllmCpu.dtype, PeftPeer.dtype = options.vllm_dtype, options.peft_dtype
    picked = chosen(options.only, figures, "--only")
    names = chosen(options.peers, list(SIDES), "--peers")
    cases = sorted((c for c in CASES if c.figure in picked), key=lambda c: -c.registered)
    cells: list[Cell] = []
    own: dict[str, Any] = {}
    notes = [f"CPU: {cpu_model()}", f"{options.repeats} repeats, sides interleaved"]
    to = options.json or layout.root / "results.json"

    def write() -> None:
        """All there is so far: a run takes an hour, and may be cut short."""
        to.write_text(json.dumps(as_json(cells, notes) | own, indent=1, ensure_ascii=False) + "\n")

    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        logs = Path(folder)

        def made(wanted: Collection[str]) -> dict[str, Side]:
            logged = {name: logs / f"{name}.log" for name in names if name in wanted}
            return {name: SIDES[name](layout, options.threads, log) for name, log in logged.items()}

        notes += [f"{side.name}: {side.settings()}" for side in made(SIDES).values()]
        repeats, threads = options.repeats, options.threads
        single: dict[str, Callable[[], Any]] = {
            RANKS: lambda: measure_ranks(repeats, threads),
            FIRST_USE: lambda: measure_first_use(layout, repeats, threads, logs, say),
            OVERHEAD: lambda: measure_overhead(layout, repeats, threads, logs / "bench.json"),
            MEMORY: lambda: measure_memory(layout, repeats, threads, logs, say),
            STARTS: lambda: time_starts(made(STARTING), repeats, say),
        }
        for figure in (figure for figure in single if figure in picked):
            say(figure)
            own[figure] = single[figure]()
            write()
        for adapters, group in groupby(cases, key=lambda case: case.registered):
            group_cases = list(group)
            sides = made({side for case in group_cases for side in case.sides})
            say(f"starting {', '.join(sides)} with {adapters or 'no'} adapters")
            cells += measure_group(group_cases, sides, repeats, reference, options.lock)
            write()
    worst = max((b.other_work for c in cells for b in c.bursts), default=0.0)
    notes.append(f"Other work during a burst took at most {worst:.0%} of the machine.")
    if cells:
        print_table(cells, [], console)
    for figure, show in SHOWN.items():
        if figure in own:
            show(own[figure], console)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    write()
    say(f"written to {to}")


if __name__ == "__main__":
    main()
