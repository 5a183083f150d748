"""Checks the licences of everything that ships with or builds lorad: Rust crates and run-time Python packages.

A licence that isn't in the table ends `make check`; widening the table is a decision to be reviewed, not a formality.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ALLOWED = re.compile(
    r"apache|mit|bsd|isc|mpl|psf|python software|zlib|unicode|unlicense|cc0|0bsd|boost|cnri", re.IGNORECASE
)


def crates() -> dict[str, str]:
    """Name to SPDX expression of every crate in the lock file."""
    output = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked"], cwd=ROOT, check=True, capture_output=True
    )
    return {item["name"]: item.get("license") or "" for item in json.loads(output.stdout)["packages"]}


def packages() -> dict[str, str]:
    """Name to licence of the run-time dependencies, those of users' extras, and theirs, as far as installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    todo, seen = [*project["dependencies"], *extras["gpu"], *extras["plot"], *extras["otel"]], {}
    while todo:
        name = re.split(r"[\s;<>=!\[(~]", todo.pop(), maxsplit=1)[0].lower().replace("_", "-")
        if name in seen:
            continue
        try:
            found = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        classifiers = [line for line in found.get_all("Classifier") or [] if line.startswith("License")]
        seen[name] = found.get("License-Expression") or " ".join(classifiers) or (found.get("License") or "")[:80]
        todo += [line for line in metadata.requires(name) or [] if "extra ==" not in line]
    return seen


def main() -> int:
    """Prints what isn't allowed; 1 if there is any."""
    found = {**crates(), **packages()}
    bad = {name: licence for name, licence in found.items() if not ALLOWED.search(licence)}
    for name, licence in sorted(bad.items()):
        sys.stdout.write(f"licence not in the table: {name}: {licence or 'none stated'}\n")
    sys.stdout.write(f"licences: {len(found)} packages checked, {len(bad)} refused\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
