"""A child process from its parent's side: how it finds this package, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import lorad


def python_path() -> str:
    """The path that makes the child import this very package."""
    here = str(Path(lorad.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    return here if not inherited else os.pathsep.join([here, inherited])


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
