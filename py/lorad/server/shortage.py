"""`Shortage`: the machine, or this container, is about to have no memory left.

Where memory ends the system ends processes, and the engine is the largest. Most of what it has is given at the start;
what can still grow are requests that wait and adapters that are read. So these are held back until there's room again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from lorad.errors import Overloaded
from lorad.server.gate import Gate

log = logging.getLogger("lorad.server")

LOOK_SECONDS = 1.0
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Bytes that can still be taken: of the machine, or of the container (control group, version 2) if that has less.
    Files in the system's cache don't count as taken. None where the system doesn't tell."""
    found = [one for one in (_machine(meminfo), _container(cgroup)) if one is not None]
    return min(found, default=None)


def _machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _container(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        taken = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        if limit == "max":
            return None
        return int(limit) - taken + int(stat["file"]) - int(stat["shmem"])  # of files those in memory only stay
    except (OSError, KeyError, ValueError):
        return None


class Shortage:
    """Lives on the event loop. While it lasts nobody is let in who would wait, and no adapter is loaded."""

    def __init__(
        self, gate: Gate, low_bytes: int, rows: int, *, available: Callable[[], int | None] = available_bytes
    ) -> None:
        """`low_bytes`: with less it's short; 0: never. `rows`: sequences that run at once."""
        self._gate, self._low_bytes, self._rows = gate, low_bytes, rows
        self._available = available
        self.is_short = False

    def look(self) -> None:
        """How it is now."""
        available = self._available()
        was, self.is_short = self.is_short, available is not None and available < self._low_bytes
        self._gate.narrow(self._rows if self.is_short else None)
        if self.is_short and not was:
            log.warning(
                "memory is short: %d MiB are left, %d wanted. No adapters are loaded, and no requests taken that would "
                "wait, until there's more",
                (available or 0) >> 20,
                self._low_bytes >> 20,
            )
        elif was and not self.is_short:
            log.warning("memory isn't short any more")

    async def watch(self) -> None:
        """Looks again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def check_load(self) -> None:
        """Refuses a load while it lasts."""
        if self.is_short:
            raise Overloaded(
                f"memory is short: less than {self._low_bytes} bytes are left; no adapter is loaded until there's more",
                code="memory_low",
                retry_after_s=5,
            )
