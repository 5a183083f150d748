"""What the figures were taken on, and how much of the machine was busy with something else meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FLAGS_THAT_MATTER = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_bf16")
TICK_HZ = os.sysconf("SC_CLK_TCK")


def cpu_model() -> str:
    """Model name, cores, and which of the vector extensions that matter here it has and lacks."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    has = " ".join(f for f in FLAGS_THAT_MATTER if f in flags)
    lacks = " ".join(f for f in FLAGS_THAT_MATTER if f not in flags)
    family = f"family {fields.get('cpu family')} model {fields.get('model')}"
    return f"{fields.get('model name')} ({family}), {cores()} cores; has {has or '-'}; lacks {lacks or '-'}"


def has_amx() -> bool:
    """Whether this CPU has tiles."""
    return "amx_tile" in Path("/proc/cpuinfo").read_text()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_s() -> float:
    """Seconds that all cores together were busy since the machine started, theft by its host included."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK_HZ


def used_s(pids: list[int]) -> float:
    """Seconds of CPU that these processes have used."""
    total = 0
    for pid in pids:
        try:
            after_name = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(after_name[11]) + int(after_name[12])
    return total / TICK_HZ


def prioritise(pid: int, nice: int) -> None:
    """Sets a new session leader's nice value, and its session's where the scheduler groups by session.

    With that grouping (autogroup), a nice value counts only within one session, not against other sessions.
    """
    if nice == 0:
        return
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(nice))


@contextmanager
def holding(lock: Path | None) -> Iterator[None]:
    """Holds a file's lock (as flock(1) does), for machines where other heavy jobs take turns through it."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
