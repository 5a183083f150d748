"""Proves and measures the GPU worker on this machine: `python check.py --json out.json`.

Made for a pack (`make gpu-check-pack`): lorad's wheel and what it needs beyond torch, Triton and NumPy are beside this
file, so neither a Rust toolchain nor a network is wanted. Each section is a process with a time limit. Exit status 1:
something that has to be right isn't; a figure of speed that misses its target is only said to.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 570
"""Of all sections: the whole stays under ten minutes."""

SECTIONS = {
    "device": 30,
    "kernels": 200,
    "alone": 60,
    "graphs": 120,
    "model": 60,
    "capture": 60,
    "tax": 90,
    "int4": 90,
    "peers": 90,
    "cold": 60,
}
"""Seconds of each at most, and of what is left for all, in the order in which they run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument(
        "--dry-run", action="store_true", help="all sections at tiny sizes on CPU tensors: no GPU needed"
    )
    parser.add_argument("--data", type=Path, default=HERE / "data", help="the pack's model, adapters and answers")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lorad-gpu-check-") as folder:
        _prepare(Path(folder), dry=asked.dry_run)
        began = time.monotonic()
        found: dict[str, Any] = {}
        for name in asked.only:
            left = max(0.0, SECONDS - (time.monotonic() - began))
            limit = None if asked.dry_run else min(SECTIONS[name], left)  # a busy CPU is no fault of a section
            found[name] = run_section(name, limit, asked.data, asked.dry_run)
            _show(name, found[name])
    failed = [name for name, section in found.items() if section["error"] or _wrong(section)]
    result = {
        "dry_run": asked.dry_run,
        "ok": not failed,
        "seconds": time.monotonic() - began,
        "sections": found,
    }
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'all that must hold does'}; {result['seconds']:.0f} s")
    sys.exit(bool(failed))


def _prepare(folder: Path, *, dry: bool) -> None:
    """Puts lorad and the cases on the path, before anything of them is imported. In a clone both are there already."""
    os.environ["LORAD_DATA_DIR"] = str(folder / "data")
    wheels = HERE / "wheels"
    if wheels.is_dir():
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--disable-pip-version-check",
        ]
        names = sorted({file.name.split("-")[0] for file in wheels.glob("*.whl")})
        command = [*install, "--find-links", str(wheels), "--target", str(folder / "site"), *names]
        # A file of constraints or another index of the user's has no say in this.
        subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if not k.startswith("PIP_")})
        sys.path.insert(0, str(folder / "site"))
    cases = HERE / "cases"
    sys.path.insert(1, str(cases if cases.is_dir() else HERE.parents[1] / "tests"))
    if dry:
        os.environ["TRITON_INTERPRET"] = "1"
    # Imported once, for all sections. Nothing of it touches a GPU: a process that has can't be forked.
    import torch

    if dry:
        torch.set_num_threads(1)
        importlib.import_module("interpreter_repairs")
    importlib.import_module("scene")
    importlib.import_module("lorad.worker.gpu.operators").triton_operators()


def run_section(name: str, limit: float | None, data: Path, dry: bool) -> dict[str, Any]:
    """One section in a process of its own: a kernel that takes the device down takes no other section with it.

    `limit`: seconds; None: as long as it takes. Gives what it took, its findings, and what ended it early.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    began = time.monotonic()
    process = context.Process(target=_section, args=(name, data, dry, theirs))
    process.start()
    theirs.close()
    findings: list[dict[str, Any]] = []
    error: str | None = None
    try:
        while True:
            if not ours.poll(None if limit is None else max(0.0, limit - (time.monotonic() - began))):
                error = f"not done after {limit:.0f} s"
                break
            kind, told = ours.recv()
            if kind == "end":
                error = told
                break
            findings.append(told)
    except EOFError:
        process.join()
        error = f"the process ended with status {process.exitcode}"
    process.kill()
    process.join()
    return {"seconds": time.monotonic() - began, "error": error, "findings": findings}


def _section(name: str, data: Path, dry: bool, pipe: Connection) -> None:
    from report import Report
    from scene import Scene

    try:
        report = Report(lambda finding: pipe.send(("finding", finding._asdict())), judges=not dry)
        importlib.import_module(f"sections.{name}").run(Scene(data, dry=dry), report)
        pipe.send(("end", None))
    except Exception as failure:
        import traceback

        traceback.print_exc()
        pipe.send(("end", f"{type(failure).__name__}: {failure}"))


def _wrong(section: dict[str, Any]) -> bool:
    return any(finding["holds"] is False for finding in section["findings"])


def _show(name: str, section: dict[str, Any]) -> None:
    print(f"\n{name}, {section['seconds']:.1f} s" + (f": {section['error']}" if section["error"] else ""))
    for finding in section["findings"]:
        mark = {True: "ok   ", False: "WRONG", None: "     "}[finding["holds"]]
        target = f"  ({finding['target']})" if finding["target"] else ""
        if finding["reached"] is not None:
            target = f"  ({finding['target']}: {'reached' if finding['reached'] else 'missed'})"
        print(f"  {mark} {finding['what']:58s} {finding['said']}{target}", flush=True)


if __name__ == "__main__":
    main()
