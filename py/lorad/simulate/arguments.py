"""The flags of `lorad simulate`. Imports nothing that takes time: `lorad --help` reads this file."""

from __future__ import annotations

import argparse

EPILOG = """\
  lorad simulate flood                                      one of the scenarios that ship with lorad
  lorad simulate my.txt --set rows_max=32 --set pages=4096  a file, with other limits
  lorad simulate zipf --compare all --sweep arrivals --seeds 3 --json out.json --plot out.svg
  lorad simulate fleet --preset chapter --plot out.svg      many replicas behind the real router
  lorad simulate --random 20 --steps 10000                  random worlds, all faults on, checked after each step

ends with 3 and the shortest script of the scheduler's calls when an invariant or a wait bound doesn't hold, with 1 when
it can't begin. docs/simulation.md has the keys of scenarios and what the figures mean."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="a file or a name; --list shows the names")
    parser.add_argument("--list", action="store_true", help="show scenarios and policies and run nothing")
    add = parser.add_argument
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="another value of the scenarios; repeatable")
    add(
        "--compare", default="", metavar="POLICIES", help="policies beside each other, as fair,fair:10s,arrival; or all"
    )
    add(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="each of these values (between ; where they have commas); arrivals alone: parts of the scenario's rate",
    )
    add("--seeds", type=int, metavar="N", help="repeat over as many seeds: median and range; default 1, of a fleet 200")
    add("--preset", default="", metavar="NAME", help="of a fleet: chapter")
    add(
        "--routing",
        default="",
        metavar="ROUTINGS",
        help="of a fleet, beside each other: round-robin,least-queue,assigned:5,cost:1,cost:12",
    )
    add("--jobs", type=int, metavar="N", help="runs at a time; default: as many as there are cores")
    add("--trace", default="", metavar="FILE", help="a simulator's trace instead of the scenarios' own")
    add(
        "--watch", default="", metavar="COUNTER=N", help="a counter at N counts as broken: shows the shortest way to it"
    )
    add("--random", type=int, metavar="SEEDS", help="random worlds instead of scenarios")
    add("--steps", type=int, default=10_000, metavar="N", help="of each random world; default %(default)s")
    add("--first", type=int, default=0, metavar="SEED", help="of the random worlds; default %(default)s")
    add("--json", default="", metavar="FILE", help="write runs and summaries")
    add(
        "--plot",
        default="",
        metavar="FILE.svg",
        help="throughput and TTFT over a sweep, or TTFT bars (needs lorad[plot])",
    )
    add("--markdown", action="store_true", help="print the table as Markdown")
    add("--script", default="", metavar="FILE", help="write the script of what didn't hold here too")
