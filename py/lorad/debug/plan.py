"""A plan as plain data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lorad.worker.plan import Plan


class Row(msgspec.Struct, frozen=True):
    """A request's part of a step."""

    request: int
    adapter: int | None
    """None: the base."""
    line: int
    slot: int | None
    tag: int
    start: int
    """Tokens computed before."""
    tokens: list[int]
    """New token ids."""
    sample: bool
    """Is a token sampled from the last of them?"""

    @property
    def end(self) -> int:
        """Tokens computed after; the position of the token that is sampled."""
        return self.start + len(self.tokens)


class PageIn(msgspec.Struct, frozen=True):
    """An adapter to copy into pages."""

    adapter: int
    slot: int
    pages: list[int]


class StepPlan(msgspec.Struct, frozen=True):
    """What one step computes."""

    number: int
    rows: list[Row]
    page_ins: list[PageIn]
    clears: list[int]
    """Slots of the device table that are emptied."""
    copies: list[tuple[int, int]]
    """Pages to copy before the rows are computed: source, target."""
    edits: list[tuple[int, int, int]]
    """Of the page table: line, column, page."""
    opened: dict[int, int]
    """Lines that a request took in this step, and the request."""

    @property
    def tokens(self) -> int:
        """New tokens of all rows."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def samples(self) -> list[Row]:
        """Rows that sample a token, in the order of a commit."""
        return [row for row in self.rows if row.sample]


def read_plan(plan: Plan, lines: Mapping[int, int], adapters: Mapping[int, int | None]) -> StepPlan:
    """`lines`: line to the request that took it before; `adapters`: request to its adapter."""
    opened = dict(plan.opened())
    lines = {**lines, **opened}
    offset = plan.row_offset[: plan.rows + 1].tolist()
    rows = []
    for row in range(plan.rows):
        line, slot = int(plan.row_line[row]), int(plan.row_slot[row])
        request = lines[line]
        rows.append(
            Row(
                request=request,
                adapter=adapters.get(request),
                line=line,
                slot=None if slot < 0 else slot,
                tag=int(plan.row_tag[row]) & 0xFFFFFFFF,
                start=int(plan.row_start[row]),
                tokens=plan.token_id[offset[row] : offset[row + 1]].tolist(),
                sample=bool(plan.row_sample[row]),
            )
        )
    edits, copies = plan.edits, plan.copies
    return StepPlan(
        number=int(plan.header[0]),
        rows=rows,
        page_ins=[PageIn(adapter, slot, pages.tolist()) for adapter, slot, pages in plan.page_ins()],
        clears=plan.clear_slot[: plan.cleared].tolist(),
        copies=list(zip(plan.copy_source[:copies].tolist(), plan.copy_target[:copies].tolist(), strict=True)),
        edits=list(
            zip(
                plan.edit_line[:edits].tolist(),
                plan.edit_col[:edits].tolist(),
                plan.edit_page[:edits].tolist(),
                strict=True,
            )
        ),
        opened=opened,
    )
