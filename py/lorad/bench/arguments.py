"""The options of `lorad bench`. Imports nothing that takes time: `lorad --help` reads this file."""

from __future__ import annotations

import argparse
from pathlib import Path

from lorad.errors import InvalidRequest

EPILOG = """\
  lorad bench                                          the embedded base, one adapter, the same merged, 32 adapters
  lorad bench --server                                 the same over HTTP as well, in turns with the engine
  lorad bench my.gguf --zipf 1 --rate 4 --prompt 16-512 --output lognormal:64:500
  lorad bench --sweep --json out.json --plot out.svg   ranks 8, 16, 64 by 1, 8, 32 distinct adapters

Every side gets the same requests at the same times. Lengths are N, LEAST-MOST (alike often) or
lognormal:MEDIAN:SIGMA_MILLI. The merged model has the number types of the base's file: it is what one would ship
instead of the adapter. The base is in memory twice (with --no-merged once), with --server twice as often. An answer
that isn't whole ends the bench, without figures. docs/benchmarks.md says what the figures mean."""

LIMITS: dict[str, tuple[float, float]] = {
    "requests": (1, 4096),
    "rate": (0, 1e6),
    "adapters": (1, 4096),
    "rank": (1, 4096),
    "zipf": (0, 10),
    "repeats": (1, 1000),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the bench; those of the engine come beside them."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--requests", type=int, default=32, help="requests of a run (32)")
    add("--rate", type=float, default=0.0, help="arrivals a second, Poisson; 0: all at once (0)")
    add("--prompt", default="128", metavar="LENGTHS", help="prompt tokens, as 128, 16-512, lognormal:128:500 (128)")
    add("--output", default="64", metavar="LENGTHS", help="new tokens, in the same forms (64)")
    add("--adapters", type=int, default=32, help="distinct adapters (32)")
    add("--rank", type=int, default=16, help="their rank, on all linear modules (16)")
    add("--zipf", type=float, default=0.0, help="exponent of their popularity; 0: by turns (0)")
    add("--repeats", type=int, default=3, help="runs of each side, by turns (3)")
    add("--server", action="store_true", help="over HTTP as well: lorad serve as a process, a stream for each request")
    add("--merged", action=argparse.BooleanOptionalAction, default=True, help="one adapter merged into the base too")
    add("--sweep", action="store_true", help="ranks 8, 16, 64 by 1, 8, 32 distinct adapters as well")
    add("--seed", type=int, default=1, help="of arrivals, popularity, lengths and prompts (1)")
    add("--json", type=Path, default=None, metavar="FILE", help="write everything measured")
    add("--plot", type=Path, default=None, metavar="FILE.svg", help="draw tok/s of all sides (needs lorad[plot])")


def check(arguments: argparse.Namespace) -> None:
    """Refuses a number out of range, naming the option, the limit and the value."""
    for name, (low, high) in LIMITS.items():
        value = getattr(arguments, name)
        # Turned round, so that what is no number is refused too.
        if not low <= value <= high:
            limit = f"at least {low:g}" if value < low else f"at most {high:g}"
            raise InvalidRequest(f"{name}: {limit}, got {value}", code="option_range", param=name)
