"""`lorad simulate`: from flags to runs, tables and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from lorad import _core, picture
from lorad.errors import InvalidRequest
from lorad.models.fields import shown
from lorad.named_file import read_text
from lorad.output import write_bytes
from lorad.simulate import fleet_command, plot, policy, stored, table
from lorad.simulate.broken import Broken
from lorad.simulate.case import Case, cases, random_cases
from lorad.simulate.run import OnProgress, Run, run
from lorad.simulate.scenario import Scenario
from lorad.simulate.summary import summaries

TRACE_BYTES_MAX = 4 << 30
BROKEN = 3
"""Exit code when a promise doesn't hold."""


def simulate(arguments: argparse.Namespace) -> int:
    """Runs the command; its exit code."""
    console = Console()
    if arguments.list:
        show_names(console)
        return 0
    if arguments.plot:
        picture.check(Path(arguments.plot))
    if arguments.scenarios[:1] == ["fleet"]:
        with progress() as on_progress:
            return fleet_command.simulate(arguments, console, on_progress)
    made = _cases(arguments)
    watch = _watch(arguments.watch)
    trace = _read(arguments.trace) if arguments.trace else None
    try:
        with progress() as on_progress:
            runs = run(made, jobs=arguments.jobs, trace=trace, watch=watch, on_progress=on_progress)
    except Broken as broken:
        show_broken(console, broken)
        if arguments.script:
            write_bytes(Path(arguments.script), broken.why.script.encode(), "script")
        return BROKEN
    if arguments.json:
        stored.write(Path(arguments.json), runs)
    show(console, runs, random=arguments.random is not None, markdown=arguments.markdown)
    if arguments.plot:
        plot.draw(summaries(runs), Path(arguments.plot))
    return 0


def show(console: Console, runs: Sequence[Run], *, random: bool = False, markdown: bool = False) -> None:
    """Prints what runs came to."""
    if markdown:
        console.file.write(table.markdown(summaries(runs)))
    elif random:
        console.print(table.sums_table(runs))
        console.print(f"{len(runs)} worlds hold")
    else:
        console.print(table.summary_table(summaries(runs)))
        if len(runs) == 1 and len(runs[0].report.tenants) > 1:
            console.print()
            console.print(table.tenant_table(runs[0].report))


def show_broken(console: Console, broken: Broken) -> None:
    """What didn't hold, and the shortest way to it."""
    console.print(str(broken), style="bold red", markup=False, highlight=False, soft_wrap=True)
    why = broken.why
    console.file.write(f"shrunk in {why.runs} runs\n--- trace\n{why.trace}--- script\n{why.script}\n")


def show_names(console: Console) -> None:
    """Scenarios and policies that have names; a scenario's first comment says what it is."""
    for name, text in _core.SCENARIOS.items():
        comment = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
        console.print(f"[bold]{name:<10}[/] {comment}", highlight=False)
    console.print()
    for each in policy.POLICIES.values():
        console.print(f"[bold]{each.name:<10}[/] {each.help}", highlight=False)


@contextmanager
def progress() -> Iterator[OnProgress]:
    """A bar over all runs on a terminal's stderr; it goes away when they are done."""
    console = Console(stderr=True)
    columns: tuple[ProgressColumn, ...] = (
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    columns += (TextColumn("{task.description}"),)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def on_progress(what: str, done: float, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield on_progress


def _cases(arguments: argparse.Namespace) -> list[Case]:
    if arguments.random is not None:
        if arguments.scenarios or arguments.set or arguments.sweep or arguments.compare:
            message = "random: worlds are drawn from their seed; no scenario, set, sweep or compare beside it"
            raise InvalidRequest(message, code="option_form", param="random")
        return random_cases(arguments.random, arguments.steps, first=arguments.first)
    for name in ("preset", "routing"):
        if getattr(arguments, name):
            message = f"{name}: of a fleet only: lorad simulate fleet --{name} …"
            raise InvalidRequest(message, code="option_form", param=name)
    if not arguments.scenarios:
        known = ", ".join(_core.SCENARIOS)
        raise InvalidRequest(f"scenario: a file, or one of {known}", code="option_form", param="scenario")
    changes = dict(_pair(given, "set") for given in arguments.set)
    scenarios = [Scenario.named(name).changed(changes) for name in arguments.scenarios]
    names = policy.parse(arguments.compare) if arguments.compare else []
    return cases(
        scenarios,
        policies=names,
        sweep=_sweep(arguments.sweep),
        seeds=1 if arguments.seeds is None else arguments.seeds,
    )


def _sweep(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        key, _, values = text.partition("=")
        if key in found:
            raise InvalidRequest(f"sweep: {key} is there twice", code="option_form", param="sweep")
        found[key] = [value for value in values.split(";" if ";" in values else ",") if value]
    return found


def _watch(given: str) -> tuple[str, int] | None:
    if not given:
        return None
    counter, number = _pair(given, "watch")
    if not number.isdecimal() or not 1 <= int(number) < 1 << 63:
        raise InvalidRequest(
            f"watch: {counter} wants a number from 1, got {number!r}", code="option_form", param="watch"
        )
    return counter, int(number)


def _pair(given: str, param: str) -> tuple[str, str]:
    key, _, value = given.partition("=")
    if not key or not value:
        raise InvalidRequest(f"{param}: wants KEY=VALUE, got {given!r}", code="option_form", param=param)
    return key, value


def _read(name: str) -> str:
    try:
        return read_text(name, TRACE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise InvalidRequest(f"trace: {shown(name)}: {why}", code="trace_read", param="trace") from None
