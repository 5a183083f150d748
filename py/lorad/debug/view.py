"""Plans, queues, adapters and pages for a terminal."""

from __future__ import annotations

import io
import string
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from lorad.debug.lives import Life
from lorad.debug.plan import StepPlan
from lorad.debug.snapshot import Adapter, Cached, Snapshot

LETTERS = (string.ascii_lowercase, string.ascii_uppercase)
"""For requests, for adapters; used again when there are more."""
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")
PAGES_PER_LINE = 64


def table(title: str, *columns: str) -> Table:
    """A table with its title at the left; columns that begin with # are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left", no_wrap=True)
    return made


def named(adapter: int | None) -> str:
    """The base, or which adapter."""
    return "base" if adapter is None else f"adapter {adapter}"


def plan_table(plan: StepPlan) -> Table:
    """A row for each request of the step, and one for each page-in."""
    made = table(
        f"plan {plan.number}: {len(plan.rows)} rows, {plan.tokens} tokens", "request", "weights", "#line", "tokens", ""
    )
    for row in plan.rows:
        opened = "new " if row.line in plan.opened else ""
        made.add_row(
            str(row.request),
            named(row.adapter),
            str(row.line),
            f"{row.start}..{row.end}",
            opened + ("sample" if row.sample else ""),
        )
    for source, target in plan.copies:
        made.add_row("", "", "", "", f"copy page {source} to {target}")
    for load in plan.page_ins:
        made.add_row("", named(load.adapter), "", "", f"page-in, slot {load.slot}, {len(load.pages)} pages")
    return made


def state(snapshot: Snapshot) -> list[RenderableType]:
    """The state in parts: figures, tenants, queues, adapters, pages."""
    parts: list[RenderableType] = [figures(snapshot)]
    if len(snapshot.tenants) > 1:
        parts.append(tenant_table(snapshot))
    if snapshot.queues:
        parts.append(queue_table(snapshot))
    if snapshot.adapters:
        parts.append(adapter_table(snapshot))
    parts.append(page_map(snapshot))
    return parts


def figures(snapshot: Snapshot) -> Text:
    """One line: time, rows, queue, pages by owner."""
    pages = ", ".join(f"{count} {owner}" for owner, count in snapshot.pages.items())
    return Text(
        f"{snapshot.now} µs, {snapshot.running} of {snapshot.rows_max} rows, {snapshot.waiting} of "
        f"{snapshot.waiting_max} waiting; pages: {pages}"
    )


def tenant_table(snapshot: Snapshot) -> Table:
    """A row for each tenant."""
    made = table("tenants", "#id", "#weight", "#service ms", "#running", "#waiting", "#pages", "clock")
    for tenant in snapshot.tenants:
        numbers = (tenant.id, tenant.weight, tenant.service // 1_000_000, tenant.running, tenant.waiting, tenant.pages)
        made.add_row(*map(str, numbers), tenant.standing)
    return made


def queue_table(snapshot: Snapshot) -> Table:
    """A row for each group that somebody waits in."""
    places = {group: listed.place for listed in snapshot.listed for group in listed.groups}
    made = table("queues", "group", "place", "#waiting", "#waited µs", "#at most", "requests")
    for queue in snapshot.queues:
        place = places.get(queue.group, "")
        made.add_row(
            str(queue.group),
            f"{place}, urgent" if queue.group in snapshot.urgent else place,
            str(len(queue.waiting)),
            "" if queue.waited is None else str(queue.waited),
            "" if queue.bound is None else str(queue.bound),
            few(f"{one.id}{'' if one.answered is None else ' (preempted)'}" for one in queue.waiting),
        )
    return made


def adapter_table(snapshot: Snapshot) -> Table:
    """A row for each adapter."""
    made = table("adapters", "#id", "state", "#slot", "#pages", "#running", "#waiting")
    for adapter in snapshot.adapters:
        made.add_row(
            str(adapter.id),
            adapter.state + (", draining" if adapter.draining else "") + (", pinned" if adapter.pinned else ""),
            "" if adapter.slot is None else str(adapter.slot),
            str(len(adapter.pages)),
            str(adapter.running),
            str(adapter.waiting),
        )
    return made


def page_map(snapshot: Snapshot) -> Text:
    """A letter for each page: capitals are adapters, small ones requests, = the prefix cache, a dot nobody."""
    owners = snapshot.page_owners()
    letters: dict[tuple[bool, int], str] = {}
    text = Text()
    for start in range(0, len(owners), PAGES_PER_LINE):
        text.append(f"{start:6} ", style="dim")
        for owner in owners[start : start + PAGES_PER_LINE]:
            if owner is None or isinstance(owner, Cached):
                text.append("." if owner is None else "=", style="dim" if owner is None else "bold")
                continue
            is_adapter = isinstance(owner, Adapter)
            taken = sum(key[0] == is_adapter for key in letters)
            letter = letters.setdefault((is_adapter, owner.id), LETTERS[is_adapter][taken % len(LETTERS[is_adapter])])
            text.append(letter, style=COLOURS[owner.id % len(COLOURS)])
        text.append("\n")
    names = (f"{letter} {named(id) if is_adapter else f'request {id}'}" for (is_adapter, id), letter in letters.items())
    shared = ["= prefix cache"] if snapshot.prefix else []
    text.append("       " + (few([*names, *shared], most=12) or "nobody's"))
    return text


def lives_table(lives: Sequence[Life]) -> Table:
    """A row for each request: when it came, how long to its first token, how it ended."""
    made = table("requests", "#request", "weights", "#tenant", "#added", "#TTFT µs", "#steps", "#tokens", "end")
    for life in lives:
        made.add_row(
            str(life.request),
            named(life.adapter),
            str(life.tenant),
            str(life.added),
            "" if life.ttft_us is None else str(life.ttft_us),
            "" if life.ttft_steps is None else str(life.ttft_steps),
            str(len(life.tokens)),
            life.reason or "",
        )
    return made


def few(words: Iterable[str], most: int = 8) -> str:
    """The first few, and how many more there are."""
    words = list(words)
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def text_of(thing: RenderableType, width: int = 110) -> str:
    """What a terminal of this width would show, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(thing)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()
