"""A plan as the cost model sees it, and how long the worker took."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """A row of a plan."""

    start: int
    """Tokens computed before."""
    count: int
    """New tokens."""
    sample: bool
    slot: int
    """Of its adapter; -1: the base."""
    pages: int
    """Of its adapter; 0: the base."""


class Measured(NamedTuple):
    """One measurement, and the reference before and after it, all ns."""

    ns: int
    before_ns: int
    after_ns: int

    @property
    def reference_ns(self) -> float:
        """The reference meanwhile."""
        return (self.before_ns + self.after_ns) / 2


@dataclass
class Sample:
    """One plan, timed."""

    kind: str
    adapters: str
    rows: list[Row] = field(default_factory=list)
    page_in_pages: int = 0
    """Of the page-in that was timed, or of the one that ran beside the step."""
    measured: list[Measured] = field(default_factory=list)
    ns: int = 0
    """What came out."""
    slowness: float = 1.0
    """The reference's time over its usual one, while this was measured."""

    @property
    def is_step(self) -> bool:
        """A step, or a page-in alone."""
        return bool(self.rows)

    @property
    def tokens(self) -> int:
        """New tokens."""
        return sum(row.count for row in self.rows)

    def settle(self, usual_ns: int) -> None:
        """Sets `ns`: the median of the measurements, scaled to a machine on which the reference takes `usual_ns`."""
        self.ns = int(median(one.ns * usual_ns / one.reference_ns for one in self.measured))
        self.slowness = median(one.reference_ns for one in self.measured) / usual_ns

    def as_json(self) -> dict:
        """For `from_json`."""
        return asdict(self)

    def __str__(self) -> str:
        """One line."""
        if not self.is_step:
            return f"{self.kind}, {self.page_in_pages} pages: {self.ns / 1e6:.1f} ms"
        adapters = {row.slot: row.pages for row in self.rows if row.slot >= 0}
        beside = f", {self.page_in_pages} pages beside" if self.page_in_pages else ""
        sampled, pages = sum(row.sample for row in self.rows), sum(adapters.values())
        return (
            f"{self.kind}, {len(self.rows)} rows, {self.tokens} tokens, {sampled} sampled, {len(adapters)} adapters "
            f"of {pages} pages{beside}: {self.ns / 1e6:.1f} ms"
        )

    @classmethod
    def from_json(cls, value: dict) -> Sample:
        """What `as_json` made."""
        rows, measured = [Row(*row) for row in value["rows"]], [Measured(*one) for one in value["measured"]]
        return cls(**{**value, "rows": rows, "measured": measured})
