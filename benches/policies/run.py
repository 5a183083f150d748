"""The scheduler's policies beside each other, in the simulator: docs/SCENARIO.json, two pictures, a table on stdout.

Scenarios are those of `lorad simulate --list`. With --draw pictures and table are made from the file as it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from lorad import picture
from lorad.errors import LoradError
from lorad.simulate import Broken, Scenario, cases, plot, run, stored, table
from lorad.simulate import policy as policies_of
from lorad.simulate.command import BROKEN, progress, show_broken

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMPARED = {
    "policies": "fair,fair:1s,fair:30s,arrival,affinity,lru,split:1728,slots:64",
    "policies-gpu": "fair,arrival,affinity,lru,split:2688,slots:64",
}
"""Split and slots set aside what 64 adapters take: 27 pages each, 42 of the larger model."""


def main() -> int:
    """Runs and writes; 3 when something didn't hold."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the files; default: docs")
    parser.add_argument("--scenario", default="policies", choices=COMPARED)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of each run; default: as the scenario says")
    parser.add_argument("--draw", action="store_true", help="run nothing, read the file")
    arguments = parser.parse_args()
    name, console = arguments.scenario, Console(stderr=True)
    file = arguments.out / f"{name}.json"
    rates, bars = arguments.out / f"{name}-rates.svg", arguments.out / f"{name}-ttft.svg"
    try:
        for drawn in (rates, bars):
            picture.check(drawn)
        scenario = Scenario.named(name)
        if arguments.requests is not None:
            scenario = scenario.changed({"requests": str(arguments.requests)})
        if not arguments.draw:
            names = policies_of.parse(COMPARED[name])
            made = cases([scenario], policies=names, sweep={"arrivals": []}, seeds=arguments.seeds)
            with progress() as on_progress:
                runs = run(made, on_progress=on_progress)
            stored.write(file, runs)
        every = stored.read(file).summaries
        own = [one for one in every if one.sweep == {"arrivals": scenario.facts.values["arrivals"]}]
        plot.lines(every, rates)
        plot.bars([one.at_one_point() for one in own], bars)
        sys.stdout.write(table.markdown([one.at_one_point() for one in own]))
    except Broken as broken:
        show_broken(console, broken)
        return BROKEN
    except LoradError as refusal:
        sys.stderr.write(f"policies: {refusal.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
