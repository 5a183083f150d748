"""A child process from its parent's side: how it finds this package, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import lorad

HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Asks the C library for memory in huge pages (glibc 2.35 and later). A step reads each weight once: with small pages
it waits for page tables."""


def python_path() -> str:
    """The path that makes the child import this very package."""
    here = str(Path(lorad.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    return here if not inherited else os.pathsep.join([here, inherited])


def environment() -> dict[str, str]:
    """What the engine runs in; what somebody set for the C library stays."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    # Of two that say the same the last one counts.
    tunables = HUGE_PAGES if not tunables else f"{HUGE_PAGES}:{tunables}"
    return {**os.environ, "PYTHONPATH": python_path(), "GLIBC_TUNABLES": tunables}


async def reap(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """The exit code of a process that is about to end; it is killed if it doesn't within `grace_s`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + grace_s
    while process.poll() is None and loop.time() < end:
        await asyncio.sleep(0.01)
    if process.poll() is None:
        process.kill()
    return process.wait()


def how_it_ended(code: int) -> str:
    """An exit code of `subprocess` in words."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
