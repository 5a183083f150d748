"""The command: loads the engine and random adapters, runs the sides by turns, prints what adapters cost."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from lorad import __version__, _core
from lorad.bench.adapters import write_random
from lorad.bench.figures import figures
from lorad.bench.roofline import Reads, bandwidth
from lorad.bench.run import run
from lorad.bench.table import print_roofline, print_sides, print_sweep
from lorad.bench.traffic import Ask, Span, Traffic, asks
from lorad.config import EngineConfig
from lorad.engine.engine import Engine
from lorad.errors import InvalidRequest
from lorad.models.operators import cpu_model

SWEEP_RANKS = (8, 16, 64)
SWEEP_DISTINCT = (1, 8, 32)


@dataclass
class Side:
    """What is measured by turns with others: the base, all requests on one adapter, or each on its own.

    A merged model does what the base does, in one adapter's name: its figures are the base's.
    """

    name: str
    rank: int = 0
    distinct: int = 0
    repeats: list[dict[str, float]] = field(default_factory=list)


def bench(arguments: argparse.Namespace, config: EngineConfig) -> int:
    """Runs it."""
    for name in ("requests", "adapters", "rank", "repeats"):
        if getattr(arguments, name) < 1:
            message = f"{name}: at least 1, got {getattr(arguments, name)}"
            raise InvalidRequest(message, code="option_range", param=name)
    spans = Span.parse(arguments.prompt, "prompt"), Span.parse(arguments.output, "output")
    traffic = Traffic(arguments.requests, arguments.rate, *spans, arguments.zipf, arguments.seed)
    # the same prompts come again and again: a cache would answer what is to be computed
    config = replace(config, enable_prefix_caching=False, max_num_seqs=max(config.max_num_seqs, arguments.requests))
    console = Console(width=max(Console().width, 130))  # wide enough for the table, also into a file
    with Progress(console=console, transient=True) as progress, tempfile.TemporaryDirectory() as folder:
        loading = progress.add_task("loading the base and adapters", total=None)
        engine = Engine(config=config)
        sides, loads = [Side("base")], [(arguments.rank, arguments.adapters)]
        sides += [Side("one", arguments.rank, 1), Side("all", arguments.rank, arguments.adapters)]
        if arguments.sweep:
            sweep = [Side("sweep", rank, distinct) for rank in SWEEP_RANKS for distinct in SWEEP_DISTINCT]
            sides, loads = sides + sweep, loads + [(rank, max(SWEEP_DISTINCT)) for rank in SWEEP_RANKS]
        names: dict[int, list[str]] = {rank: [] for rank, _ in loads}
        sizes: dict[str, int] = {}
        for rank, count in loads:
            for number in range(len(names[rank]), count):
                name = f"r{rank}-{number}"
                path = write_random(Path(folder) / name, engine.weights.config, rank, number)
                sizes[name] = engine.load_adapter(name, str(path)).bytes
                names[rank].append(name)
        progress.remove_task(loading)
        turns = progress.add_task("measuring", total=arguments.repeats * len(sides))
        for repeat in range(arguments.repeats):
            for side in sides if repeat % 2 == 0 else reversed(sides):
                _warm(engine, side, names)
                made = asks(replace(traffic, seed=traffic.seed + repeat), max(side.distinct, 1), _vocab(engine))
                side.repeats.append(figures(run(engine, made, _name_of(side, names))))
                progress.advance(turns)
        rate = bandwidth()
    adapters = sum(sizes[name] for name in names[arguments.rank][: arguments.adapters])
    reads = Reads(engine.worker.model.bytes, adapters, _kv_bytes(engine, traffic))
    notes = f"{cpu_model()}, {_core.threads()} threads, level {_core.cpu_features()['level']}; lorad {__version__}"
    print_sides(console, sides[:3], traffic, notes)
    if arguments.sweep:
        print_sweep(console, sides[3:], sides[0])
    print_roofline(console, reads, rate, sides[2])
    if arguments.json:
        rows = [asdict(side) for side in sides]
        told = {"notes": notes, "traffic": str(traffic), "reads": reads._asdict(), "bytes_per_s": rate, "sides": rows}
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
        console.print(f"written to {arguments.json}")
    engine.close()
    return 0


def _name_of(side: Side, names: dict[int, list[str]]) -> Callable[[int], str]:
    return lambda index: names[side.rank][index % side.distinct] if side.distinct else ""


def _warm(engine: Engine, side: Side, names: dict[int, list[str]]) -> None:
    """All adapters of the side are in pages before the clock runs."""
    short = [Ask(0.0, index, [1, 2, 3], 2) for index in range(max(side.distinct, 1))]
    run(engine, short, _name_of(side, names))


def _vocab(engine: Engine) -> int:
    return int(engine.weights.config.vocab)


def _kv_bytes(engine: Engine, traffic: Traffic) -> int:
    """Of all rows in the middle of their answers."""
    tokens = (traffic.prompt.low + traffic.prompt.high + (traffic.output.low + traffic.output.high) / 2) / 2
    geometry = engine.worker.geometry
    return round(traffic.requests * tokens * geometry.page_bytes / geometry.page_tokens)
