"""Times lorad's scheduler beside vLLM's own, alone, in the same state, by turns: `make bench-scheduler`.

    python benches/scheduler/run.py [--peers .peers] [--waiting 0,1000,10000,100000] [--repeats 5] [--rounds 5]
        [--json FILE]

lorad: `step` and `commit` of the Rust crate, by its example `step_times` (built here, release). vLLM: `schedule()` and
`update_from_output()` of the package that `benches/peers/install.py --only vllm,peft,data` installs. No model runs on
either side. The README beside this file says what the states are.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from report import as_json, print_table
from rich.console import Console

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.append(str(CHECKOUT / "benches" / "peers"))
from layout import Layout, timing_env  # noqa: E402  they lie beside this folder, not in a package
from machine import busy_s, cores, cpu_model, used_s  # noqa: E402

STATES = {"slots": True, "rows": True, "pages": False, "churn": False}
"""The states, and whether vLLM has one like it."""


@dataclass
class Cell:
    """One state with so many waiting: what each repeat of each side gave."""

    state: str
    waiting: int
    lorad: list[dict] = field(default_factory=list)
    vllm: list[dict] = field(default_factory=list)
    no_vllm: str = ""
    """Why there is no figure of vLLM."""
    other_work: float = 0.0
    """The largest share of the machine that anything else took during a measurement."""


class Lorad:
    """The example's binary, once per measurement."""

    def __init__(self, binary: Path | None) -> None:
        self.binary = binary or build()

    def measure(self, state: str, waiting: int, steps: int) -> dict:
        """One run; the answer is its line."""
        words = [str(self.binary), state, str(waiting), str(steps)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=timing_env())
        return json.loads(done.stdout)

    def used_s(self) -> float:
        """Seconds of CPU that its runs have used."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


class Vllm:
    """One process, stopped while it isn't asked."""

    def __init__(self, layout: Layout) -> None:
        words = [layout.vllm_python, Path(__file__).with_name("vllm_side.py"), layout.base_hf]
        self.log = layout.root / "logs" / "scheduler-vllm.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=timing_env()
            )
        self.versions = self.answer()
        self.process.send_signal(signal.SIGSTOP)

    def answer(self) -> dict:
        """Its next line."""
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"vLLM's side ended; the last of {self.log}:\n" + "".join(tail(self.log)))
        return json.loads(line)

    def measure(self, state: str, waiting: int, steps: int, seconds_max: float) -> dict:
        """One scheduler, made and measured."""
        question = {"state": state, "waiting": waiting, "steps": steps, "seconds_max": seconds_max}
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        found = self.answer()
        self.process.send_signal(signal.SIGSTOP)
        return found

    def used_s(self) -> float:
        """Seconds of CPU that it has used."""
        return used_s([self.process.pid])

    def end(self) -> None:
        """Lets it end."""
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait(timeout=60)


def tail(log: Path) -> list[str]:
    """The end of a log."""
    return log.read_text(errors="replace").splitlines(keepends=True)[-20:]


def build() -> Path:
    """The example, as it's built for use."""
    words = ["cargo", "build", "--release", "--locked", "-p", "lorad-sched", "--example", "step_times"]
    done = subprocess.run(
        [*words, "--message-format", "json-render-diagnostics"], cwd=CHECKOUT, check=True, stdout=subprocess.PIPE
    )
    made = [json.loads(line).get("executable") for line in done.stdout.splitlines()]
    return Path(next(path for path in made if path))


def watched(cell: Cell, side: Lorad | Vllm, work: Callable[[], dict]) -> dict:
    """Does `work` and notes how much of the machine others took meanwhile."""
    began, busy, used = time.monotonic(), busy_s(), side.used_s()
    found = work()
    wall = time.monotonic() - began
    others = (busy_s() - busy) - (side.used_s() - used)
    # A share of a few clock ticks says nothing.
    if wall > 0.5:
        cell.other_work = max(cell.other_work, others / (wall * cores()))
    return found


def numbers(text: str) -> list[int]:
    """From `0,1000`."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measures by turns, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=None, help="folder of the peers (default: .peers in the checkout)")
    parser.add_argument("--waiting", type=numbers, default=[0, 1000, 10_000, 100_000])
    parser.add_argument("--states", default="slots,rows,pages,churn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="runs of lorad in each repeat, all states by turns")
    parser.add_argument("--steps", type=int, default=20_000, help="timed steps of lorad in each repeat")
    parser.add_argument("--vllm-steps", type=int, default=50, help="timed steps of vLLM in each repeat")
    parser.add_argument(
        "--vllm-seconds-max", type=float, default=2.0, help="a state whose schedule() takes longer is skipped"
    )
    parser.add_argument("--without-vllm", action="store_true", help="lorad alone")
    parser.add_argument("--binary", type=Path, default=None, help="step_times, if it was built before")
    parser.add_argument("--json", type=Path, default=None, help="write everything measured here")
    options = parser.parse_args()
    states = options.states.split(",")
    if unknown := set(states) - set(STATES):
        sys.exit(f"--states: no state called {', '.join(sorted(unknown))}")
    layout = Layout.of(options.peers)
    # Wide enough for the table, also into a file.
    console = Console(width=max(Console().width, 130))
    lorad = Lorad(options.binary)
    vllm = None
    if not options.without_vllm:
        if not (layout.vllm_python.exists() and layout.base_hf.exists()):
            sys.exit(f"no vLLM in {layout.root}: python benches/peers/install.py --only vllm,peft,data")
        console.print("starting vLLM's scheduler")
        vllm = Vllm(layout)

    cells = [Cell(state, waiting) for state in states for waiting in options.waiting]
    for cell in cells:
        if vllm is None or not STATES[cell.state]:
            cell.no_vllm = "–"

    def measure_lorad(cell: Cell) -> None:
        cell.lorad.append(watched(cell, lorad, partial(lorad.measure, cell.state, cell.waiting, options.steps)))

    for repeat in range(options.repeats):
        for cell in cells:
            console.print(f"repeat {repeat + 1}/{options.repeats}: {cell.state}, {cell.waiting} waiting")
            turns = ["lorad", "vllm"] if repeat % 2 == 0 else ["vllm", "lorad"]
            for turn in turns:
                if turn == "lorad":
                    measure_lorad(cell)
                elif vllm and not cell.no_vllm:
                    limits = options.vllm_steps, options.vllm_seconds_max
                    found = watched(cell, vllm, partial(vllm.measure, cell.state, cell.waiting, *limits))
                    if "slow" in found:
                        cell.no_vllm = f"one schedule() takes {found['slow']:.1f} s"
                    else:
                        cell.vllm.append(found)
        for number in range(1, options.rounds):
            console.print(f"repeat {repeat + 1}/{options.repeats}: lorad alone, round {number + 1}/{options.rounds}")
            for cell in cells:
                measure_lorad(cell)
    notes = [f"{cpu_model()}; load {os.getloadavg()[0]:.1f}", f"lorad-sched {cells[0].lorad[0]['version']}"]
    if vllm:
        notes[1] += ", " + ", ".join(f"{name} {version}" for name, version in vllm.versions.items())
        vllm.end()
    print_table(cells, notes, console)
    if options.json:
        options.json.write_text(json.dumps(as_json(cells, notes), indent=1) + "\n")
        console.print(f"written to {options.json}")


if __name__ == "__main__":
    main()
