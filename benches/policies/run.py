"""The scheduler's policies beside each other, in the simulator: docs/policies.json, two pictures, a table on stdout.

The scenario is `policies` (`lorad simulate --list`). With --draw pictures and table are made from the file as it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from lorad.errors import LoradError
from lorad.simulate import Broken, Scenario, cases, plot, run, stored, table
from lorad.simulate import policy as policies_of
from lorad.simulate.command import BROKEN, progress, show_broken

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMPARED = "fair,fair:10s,fair:30s,arrival,affinity,lru,split:1728,slots:64"
"""Split and slots leave what 64 adapters don't take, the memory of the scenario's pool."""


def main() -> int:
    """Runs and writes; 3 when something didn't hold."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the files; default: docs")
    parser.add_argument("--scenario", default="policies")
    parser.add_argument("--compare", default=COMPARED, metavar="POLICIES")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of each run; default: as the scenario says")
    parser.add_argument("--draw", action="store_true", help="run nothing, read policies.json")
    arguments = parser.parse_args()
    file, console = arguments.out / "policies.json", Console(stderr=True)
    try:
        for picture in ("policies-rates.svg", "policies-ttft.svg"):
            plot.check(arguments.out / picture)
        scenario = Scenario.named(arguments.scenario)
        if arguments.requests is not None:
            scenario = scenario.changed({"requests": str(arguments.requests)})
        if not arguments.draw:
            names = policies_of.parse(arguments.compare)
            made = cases([scenario], policies=names, sweep={"arrivals": []}, seeds=arguments.seeds)
            with progress() as on_progress:
                runs = run(made, on_progress=on_progress)
            stored.write(file, runs)
        every = stored.read(file).summaries
        own = [one for one in every if one.sweep == {"arrivals": scenario.facts.values["arrivals"]}]
        plot.lines(every, arguments.out / "policies-rates.svg")
        plot.bars([one.at_one_point() for one in own], arguments.out / "policies-ttft.svg")
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
