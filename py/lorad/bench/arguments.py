"""The options of `lorad bench`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the bench; those of the engine come beside them."""
    parser.add_argument("--requests", type=int, default=32, help="requests of a run (32)")
    parser.add_argument("--rate", type=float, default=0.0, help="arrivals a second, Poisson; 0: all at once (0)")
    parser.add_argument("--prompt", default="128", help="prompt tokens, as 128 or 32-256 (128)")
    parser.add_argument("--output", default="64", help="output tokens, as 64 or 16-128 (64)")
    parser.add_argument("--adapters", type=int, default=32, help="distinct adapters (32)")
    parser.add_argument("--rank", type=int, default=16, help="their rank, on all linear modules (16)")
    parser.add_argument("--zipf", type=float, default=0.0, help="exponent of their popularity; 0: by turns (0)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side, by turns (3)")
    parser.add_argument("--sweep", action="store_true", help="ranks 8, 16, 64 by 1, 8, 32 distinct adapters as well")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write everything measured")
