"""Tables and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lorad.bench.figures import rank
from lorad.picture import COLOURS, write
from rich.table import Table

from faults import Timeline
from policies import Figures, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

BOUNDS = {"cold_loads": 0.15, "mib_max": 0.15, "ttft_p50_s": 0.3, "ttft_p99_s": 0.3}
"""How far off the simulator may be."""
TITLES = {
    "cold_loads": "cold loads",
    "preloads": "preloads",
    "mib_max": "most MiB of adapters",
    "ttft_p50_s": "TTFT p50, s",
    "ttft_p99_s": "TTFT p99, s",
    "failed": "failed",
}


def table(runs: Sequence[Run]) -> Table:
    """Reality, the simulator, and how far they are apart."""
    made = Table("", *(f"{run.policy}{kind}" for run in runs for kind in ("", ", simulated", ", apart")))
    for key, title in TITLES.items():
        cells = []
        for run in runs:
            real, simulated = getattr(run.real, key), getattr(run.simulated, key)
            cells += [_shown(real), _shown(simulated), _apart(key, real, simulated)]
        made.add_row(title, *cells)
    made.add_row("a prompt, ms", *(cell for run in runs for cell in (f"{run.service_s * 1e3:.0f}", "", "")))
    made.add_row("on the way, ms", *(cell for run in runs for cell in (f"{run.way_s * 1e3:.0f}", "", "")))
    made.add_row("a load, ms", *(cell for run in runs for cell in (f"{run.load_s * 1e3:.0f}", "", "")))
    made.add_row("moves", *(cell for run in runs for cell in (str(run.moves), "", "")))
    return made


def verdict(runs: Sequence[Run]) -> list[str]:
    """What the figures come to, in sentences."""
    first, ours = runs[0].real, runs[-1].real
    said = [
        f"{runs[0].policy} loads {first.cold_loads / max(ours.cold_loads, 1):.1f} times as often while somebody waits "
        f"({first.cold_loads} against {ours.cold_loads}, and {ours.preloads} preloads); p99 {first.ttft_p99_s:.2f} s "
        f"against {ours.ttft_p99_s:.2f} s"
    ]
    for run in runs:
        outside = [TITLES[key] for key in BOUNDS if not _within(key, run)]
        said.append(
            f"{run.policy}, simulated: " + (f"too far off: {', '.join(outside)}" if outside else "within bounds")
        )
    return said


def _within(key: str, run: Run) -> bool:
    real, simulated = getattr(run.real, key), getattr(run.simulated, key)
    return bool(abs(simulated - real) <= BOUNDS[key] * real)


def _shown(figure: float) -> str:
    return str(figure) if isinstance(figure, int) else f"{figure:.3g}"


def _apart(key: str, real: float, simulated: float) -> str:
    if key not in BOUNDS or not real:
        return ""
    apart = (simulated - real) / real
    return f"{apart:+.0%}" + ("" if abs(apart) <= BOUNDS[key] else " !")


def fault_lines(timeline: Timeline) -> list[str]:
    """What happened in each phase."""
    lines = []
    for phase in timeline.phases:
        some = [one for one in timeline.seen if phase.begins <= one.at < phase.ends]
        good = [one.ttft for one in some if not one.code]
        lost = sum(bool(one.code) and not one.began for one in some)
        cut = sum(bool(one.code) and one.began for one in some)
        balance = timeline.balance_seconds(phase)
        lines.append(
            f"{phase.name}: {len(some)} requests, {lost} lost, {cut} cut within the answer; TTFT p50 "
            f"{rank(good, 0.5):.2f}, p99 {rank(good, 0.99):.2f} s; {timeline.moves_in(phase)} homes moved, "
            f"{timeline.preloads_in(phase)} preloads; "
            + ("nothing moved" if balance is None else f"the last move after {balance:.1f} s")
        )
    lines.append(f"retries: {timeline.retries}")
    return lines


def draw(timeline: Timeline, path: Path) -> None:
    """Times to first tokens, and what moved, over time."""

    def paint(picture: Picture) -> None:
        above, below = picture.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        good = [one for one in timeline.seen if not one.code]
        bad = [one for one in timeline.seen if one.code]
        above.plot([one.at for one in good], [one.ttft for one in good], ".", color=COLOURS[0], markersize=4)
        above.plot([one.at for one in bad], [one.ttft for one in bad], "x", color=COLOURS[1], label="failed")
        above.set_ylabel("TTFT, s")
        above.set_ylim(bottom=0)
        at = [look.at for look in timeline.looks]
        for index, (label, values) in enumerate(
            (
                ("homes moved", [look.moves for look in timeline.looks]),
                ("preloads", [look.preloads for look in timeline.looks]),
                ("page-ins", [look.page_ins for look in timeline.looks]),
            )
        ):
            below.step(at, values, where="post", color=COLOURS[index + 2], label=label)
        below.set_ylabel("so far")
        below.set_xlabel("seconds")
        for phase in timeline.phases:
            for axes in (above, below):
                axes.axvline(phase.begins, color="#999999", linewidth=0.8, linestyle=":")
            above.text(phase.begins, 1.01, f" {phase.name}", transform=above.get_xaxis_transform(), fontsize=8)
        below.legend(loc="upper left")
        if bad:
            above.legend(loc="upper right")

    write(path, (8.0, 5.0), paint)


__all__ = ["Figures", "draw", "fault_lines", "table", "verdict"]
