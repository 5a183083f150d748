"""How many threads compute, and with which of the CPU's instructions: what the environment says, checked once."""

from __future__ import annotations

import logging
import os

from lorad import _core
from lorad.config import THREADS_MAX
from lorad.errors import InvalidRequest
from lorad.lazy import set_torch_threads
from lorad.models.fields import shown

LEVEL, THREADS = "LORAD_CPU", "OMP_NUM_THREADS"

log = logging.getLogger("lorad.engine")


def start_computing(asked: int = 0) -> int:
    """Sets up the threads of this process's operators and torch's; `asked`: how many, 0: as the environment says."""
    check_level()
    threads, cores = thread_count(asked), cores_here()
    if threads > cores:
        log.warning("threads: %d on the %d CPUs of this process, where they wait for each other", threads, cores)
    set_torch_threads(threads)
    _core.set_threads(threads)
    return threads


def check_level() -> None:
    """Refuses a level of instructions that isn't known or that this CPU hasn't got."""
    given, there = os.environ.get(LEVEL, ""), _core.cpu_levels()
    if given and given not in there:
        raise InvalidRequest(
            f"{LEVEL}: one of {', '.join(there)}, which this CPU has, got {shown(given)}", code="cpu_level", param=LEVEL
        )


def thread_count(asked: int) -> int:
    """`asked`, else OMP_NUM_THREADS, else the cores that this process may use.

    OMP_NUM_THREADS is a whole number from 1 to THREADS_MAX, or several after commas, of which the first counts: the
    others are for OpenMP's inner levels. Anything else is passed over with a warning.
    """
    if asked:
        return asked
    given = os.environ.get(THREADS, "")
    outer = given.partition(",")[0].strip()
    if outer.isascii() and outer.isdigit() and len(outer) <= 9 and 1 <= int(outer) <= THREADS_MAX:
        return int(outer)
    if given.strip():
        log.warning("%s: a whole number from 1 to %d, got %s: passed over", THREADS, THREADS_MAX, shown(given))
    return cores_here()


def cores_here() -> int:
    """The cores that this process may use, by its affinity and the cgroup's quota."""
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
