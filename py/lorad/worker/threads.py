"""How many threads compute."""

from __future__ import annotations

import os


def thread_count(asked: int) -> int:
    """`asked`, else OMP_NUM_THREADS, else the cores that this process may use (affinity and cgroup quota)."""
    if asked:
        return asked
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota()))


def _quota() -> int:
    """Cores by the cgroup's CPU quota; a large number where there is none."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        return 1 << 16
