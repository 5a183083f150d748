"""The command: sets the rig up, runs the sides by turns, prints what adapters cost, writes data and picture."""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from lorad import __version__, _core, picture
from lorad.adapters.merge import unwritable
from lorad.bench import plot
from lorad.bench.arguments import check
from lorad.bench.figures import figures
from lorad.bench.lengths import parse_lengths
from lorad.bench.rig import Rig
from lorad.bench.roofline import Reads, bandwidth
from lorad.bench.side import SWEEP_DISTINCT, SWEEP_RANKS, Level, Side, make_sides
from lorad.bench.table import print_roofline, print_sides, print_sweep
from lorad.bench.traffic import Traffic, kv_tokens
from lorad.config import EngineConfig
from lorad.errors import InvalidRequest
from lorad.models.operators import cpu_model
from lorad.output import check_folder, write_bytes

WIDTH = 168
"""Columns that the table needs, also in a file."""


def bench(arguments: argparse.Namespace, config: EngineConfig) -> int:
    """Runs it."""
    check(arguments)
    lengths = parse_lengths(arguments.prompt, "prompt"), parse_lengths(arguments.output, "output")
    traffic = Traffic(arguments.requests, arguments.rate, *lengths, arguments.zipf, arguments.seed)
    counts = _counts(arguments, config)
    if arguments.plot:
        picture.check(arguments.plot)
    for name in ("json", "plot"):
        if file := getattr(arguments, name):
            check_folder(file, name)
    # the same prompts come again and again: a cache would answer what is to be computed
    config = replace(config, enable_prefix_caching=False, max_num_seqs=max(config.max_num_seqs, arguments.requests))
    console = Console(width=max(Console().width, WIDTH))
    with _ended_by_sigterm(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lorad-bench-")))
        # drawn only between runs: a thread that draws would take from what is measured in this process
        progress = stack.enter_context(Progress(console=console, transient=True, auto_refresh=False))
        task = progress.add_task("loading the base", total=None)
        rig = Rig(config, folder, stack, lambda stage: progress.update(task, description=stage, refresh=True))
        _check_room(rig, traffic, arguments.repeats)
        rig.load(counts)
        sides, notes = _set_up(rig, arguments)
        progress.update(task, description="measuring", total=arguments.repeats * len(sides), refresh=True)
        for repeat in range(arguments.repeats):
            for side in sides if repeat % 2 == 0 else reversed(sides):
                side.repeats.append(figures(rig.measure(side, replace(traffic, seed=traffic.seed + repeat))))
                progress.update(task, advance=1, refresh=True)
        everything = next(side for side in sides if side.name == "all")
        reads, rate = _reads(rig, everything, traffic), bandwidth()
    print_sides(console, [side for side in sides if side.name != "sweep"], traffic, notes)
    if arguments.sweep:
        print_sweep(console, sides)
    print_roofline(console, reads, rate, everything)
    if arguments.json:
        told = _told(notes, traffic, reads, rate, sides)
        write_bytes(arguments.json, json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n", "json")
        console.print(f"written to {arguments.json}", soft_wrap=True, highlight=False)
    if arguments.plot:
        plot.draw(sides, traffic, arguments.plot)
        console.print(f"drawn in {arguments.plot}", soft_wrap=True, highlight=False)
    return 0


def _set_up(rig: Rig, arguments: argparse.Namespace) -> tuple[list[Side], list[str]]:
    """Starts what the sides need beside the engine; they, and what is to be said of them."""
    notes = [f"{cpu_model()}, {_core.threads()} threads, level {_core.cpu_features()['level']}; lorad {__version__}"]
    if arguments.server:
        rig.serve()
    missing = unwritable(rig.engine.weights)
    if merged := arguments.merged and not missing:
        rig.merge(arguments.rank, serve=arguments.server)
        notes.append("merged: W + scale · B A, rounded to the number type that W has in the base's file")
    elif arguments.merged:
        notes.append(f"without a merged model: matrices of {', '.join(missing)} can be read but not written here")
    levels: list[Level] = ["engine", "server"] if arguments.server else ["engine"]
    return make_sides(levels, arguments.rank, arguments.adapters, merged=merged, sweep=arguments.sweep), notes


def _reads(rig: Rig, side: Side, traffic: Traffic) -> Reads:
    """What a decode step of all the side's requests reads."""
    made, worker = rig.asks(side, traffic), rig.engine.worker
    kv = kv_tokens(made) * worker.geometry.page_bytes / worker.geometry.page_tokens
    return Reads(worker.model.bytes, rig.adapter_bytes(side, made), round(kv))


def _counts(arguments: argparse.Namespace, config: EngineConfig) -> dict[int, int]:
    """How many adapters of each rank are needed."""
    counts = {arguments.rank: arguments.adapters}
    for rank in SWEEP_RANKS if arguments.sweep else ():
        counts[rank] = max(counts.get(rank, 0), *SWEEP_DISTINCT)
    if max(counts) > config.max_lora_rank:
        field, most = "rank" if arguments.rank > config.max_lora_rank else "sweep", f"{config.max_lora_rank}"
        message = f"{field}: at most rank {most} (--max-lora-rank), got {max(counts)}"
        raise InvalidRequest(message, code="option_range", param=field)
    return counts


def _check_room(rig: Rig, traffic: Traffic, repeats: int) -> None:
    """Refuses traffic with a request that is too long, before any is sent."""
    most = rig.engine.worker.limits.sequence_tokens
    for repeat in range(repeats):
        for ask in rig.asks(Side("base"), replace(traffic, seed=traffic.seed + repeat)):
            if len(ask.prompt) + ask.output > most:
                message = (
                    f"prompt, output: together at most {most} tokens (the model's context or --max-model-len), got "
                    f"{len(ask.prompt)} and {ask.output}"
                )
                raise InvalidRequest(message, code="bench_length", param="prompt")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the bench as Ctrl-C does, so that no server stays behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(notes: Sequence[str], traffic: Traffic, reads: Reads, rate: float, sides: Sequence[Side]) -> dict[str, Any]:
    asked = {key: value if isinstance(value, int | float) else str(value) for key, value in vars(traffic).items()}
    rows = [asdict(side) for side in sides]
    return {"notes": notes, "traffic": asked, "reads": reads._asdict(), "bytes_per_s": rate, "sides": rows}
