"""`Timings`: what each operator took for a weight, as measured on some machine, in a file of the data folder.

The file is anybody's: a half of one that was copied, of another version, edited. What is in order there is used, and
nothing else; what isn't is measured again, as if it had never been there.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from lorad.models.files import write_atomically
from lorad.named_file import read_json

BYTES_MAX = 16 << 20
US_MAX = 60e6
"""No product takes a minute."""

Times = dict[str, list[float]]
"""µs of each operator for each number of rows."""

_measured: dict[tuple[Path, str, str], Times] = {}
"""What this process has measured, so that a folder that can't be written costs a measurement once: by file, machine,
weight."""


class Timings:
    """Times by machine and by weight."""

    def __init__(self, file: Path, columns: int) -> None:
        """`columns`: how many times each operator has."""
        self._file, self._columns = file, columns

    def find(self, machine: str, weight: str, names: list[str]) -> Times | None:
        """The times of the operators called `names`; None: they aren't known, or not of exactly these."""
        found = _measured.get((self._file, machine, weight)) or self.of(machine).get(weight)
        return found if found is not None and sorted(found) == sorted(names) else None

    def of(self, machine: str) -> dict[str, Times]:
        """All that is known of a machine, by weight."""
        here = {weight: times for (file, at, weight), times in _measured.items() if (file, at) == (self._file, machine)}
        return self._read().get(machine, {}) | here

    def add(self, machine: str, weight: str, times: Times) -> None:
        """Keeps times for this process, and for later ones if the folder can be written."""
        _measured[self._file, machine, weight] = times
        known = self._read()
        known.setdefault(machine, {})[weight] = times
        try:
            write_atomically(self._file, json.dumps(known, indent=1).encode())
        except OSError:
            return

    def _read(self) -> dict[str, dict[str, Times]]:
        try:
            kept = read_json(self._file, BYTES_MAX)
        except (OSError, ValueError):
            return {}
        return {
            machine: {weight: times for weight, times in weights.items() if self._in_order(times)}
            for machine, weights in (kept.items() if isinstance(kept, dict) else ())
            if isinstance(weights, dict)
        }

    def _in_order(self, times: Any) -> bool:
        return (
            isinstance(times, dict)
            and bool(times)
            and all(
                isinstance(row, list)
                and len(row) == self._columns
                and all(isinstance(us, float) and math.isfinite(us) and 0 < us <= US_MAX for us in row)
                for row in times.values()
            )
        )
