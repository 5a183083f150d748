"""What a section says: findings, one after the other, each told at once so that a crash loses none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Finding(NamedTuple):
    """One line of the table."""

    what: str
    said: str
    """What was found, in words or as a number with its unit."""
    value: float | None = None
    """The number itself."""
    target: str = ""
    """Of a figure of speed, in words."""
    reached: bool | None = None
    """Whether the target was; None: there is none."""
    holds: bool | None = None
    """Whether what must hold does; None: it's no such thing. One that doesn't fails the check."""


class Report:
    """Of one section."""

    def __init__(self, tell: Callable[[Finding], None], *, judges: bool) -> None:
        """`judges`: whether figures are held against their targets; a dry run's say nothing."""
        self._tell = tell
        self._judges = judges
        self._held = 0

    def must(self, what: str, holds: bool, said: str = "") -> None:
        """Something that has to be right."""
        self._tell(Finding(what, said or ("yes" if holds else "no"), holds=holds))

    def tells(self, what: str, value: float | None, said: str) -> None:
        """Something to know."""
        self._tell(Finding(what, said, value))

    def figure(
        self, what: str, value: float, said: str, *, most: float | None = None, least: float | None = None
    ) -> None:
        """A figure of speed beside its target, of which one is given."""
        if most is not None:
            target, reached = f"at most {most:g}", value <= most
        else:
            assert least is not None
            target, reached = f"at least {least:g}", value >= least
        self._tell(Finding(what, said, value, target, reached if self._judges else None))

    def skipped(self, what: str, why: str) -> None:
        """Something that wasn't done."""
        self._tell(Finding(what, f"not done: {why}"))

    @contextmanager
    def case(self, what: str) -> Iterator[None]:
        """Whatever is raised within is a case that doesn't hold; those that hold are counted by `cases`."""
        try:
            yield
        except Exception as failure:  # the others are still of interest
            lines = str(failure).strip().splitlines() or [type(failure).__name__]
            self.must(what, False, " ".join(line.strip() for line in lines if line.strip())[:300])
        else:
            self._held += 1

    def cases(self, what: str) -> None:
        """Tells how many cases held since the last time."""
        self.must(what, self._held > 0, f"{self._held} cases")
        self._held = 0
