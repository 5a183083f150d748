"""Minutes: what was made and what was held, as a table, a line of words and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lorad.picture import COLOURS, write
from rich.console import Console
from rich.table import Table

from clients import Counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIB = 1 << 20


@dataclass(frozen=True)
class Minute:
    """A reading."""

    number: int
    counts: Counts
    """Of this minute."""
    resident: int
    """Bytes that the server's processes hold at its end, those that they share counted once for each."""

    @property
    def tok_s(self) -> float:
        """Output tokens of answers that ended, per second."""
        return self.counts.tokens / 60

    def __str__(self) -> str:
        counts = self.counts
        return (
            f"minute {self.number}: {counts.answers} answers, {self.tok_s:.0f} tok/s out, "
            f"{counts.prompt_tokens / 60:.0f} in ({counts.cached_tokens / max(1, counts.prompt_tokens):.0%} cached), "
            f"{counts.hung_up} hung up, {self.resident / MIB:.0f} MiB"
        )

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {"number": self.number, "resident_bytes": self.resident, **asdict(self.counts)}


def resident_bytes(parent: int) -> int:
    """What all processes below this one hold (VmRSS of proc(5))."""
    return sum(_resident(child) + resident_bytes(child) for child in _children(parent))


def _children(pid: int) -> list[int]:
    try:
        return [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    except OSError:
        return []


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def quarters(minutes: Sequence[Minute]) -> tuple[Sequence[Minute], Sequence[Minute]]:
    """The second quarter, when everything is warm, and the last."""
    each = max(1, len(minutes) // 4)
    return minutes[each : 2 * each] or minutes, minutes[-each:]


def trend(minutes: Sequence[Minute]) -> str:
    """The last quarter beside the second."""
    early, late = quarters(minutes)
    rate = [median(minute.tok_s for minute in part) for part in (early, late)]
    held = [median(minute.resident for minute in part) / MIB for part in (early, late)]
    return (
        f"tok/s: {rate[0]:.0f} in the second quarter, {rate[1]:.0f} in the last ({rate[1] / rate[0] - 1:+.1%}); "
        f"memory: {held[0]:.0f} MiB, then {held[1]:.0f} ({held[1] - held[0]:+.0f})"
    )


def print_minutes(minutes: Sequence[Minute], console: Console) -> None:
    """Every fifth minute, or all of a short run."""
    table = Table(title="Mixed traffic, by the minute")
    for heading in ("minute", "answers", "tok/s out", "tok/s in", "cached", "hung up", "MiB"):
        table.add_column(heading, justify="right")
    for minute in minutes[:: 5 if len(minutes) > 15 else 1]:
        counts = minute.counts
        table.add_row(
            str(minute.number),
            str(counts.answers),
            f"{minute.tok_s:.0f}",
            f"{counts.prompt_tokens / 60:.0f}",
            f"{counts.cached_tokens / max(1, counts.prompt_tokens):.0%}",
            str(counts.hung_up),
            f"{minute.resident / MIB:.0f}",
        )
    console.print(table)


def draw(minutes: Sequence[Minute], path: Path) -> None:
    """Both over time."""

    def paint(picture: Figure) -> None:
        made, held = picture.subplots(1, 2)
        across = [minute.number for minute in minutes]
        made.plot(across, [minute.tok_s for minute in minutes], color=COLOURS[0])
        made.set_ylabel("output tokens per second")
        held.plot(across, [minute.resident / MIB for minute in minutes], color=COLOURS[1])
        held.set_ylabel("resident MiB, front and engine")
        for axes in (made, held):
            axes.set_ylim(bottom=0)
            axes.set_xlabel("minute")

    write(path, (9, 3.2), paint)
