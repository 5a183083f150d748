"""A promise that didn't hold, and the shortest way to it."""

from __future__ import annotations

from lorad._core import PromiseBroken
from lorad.simulate.case import Case


class Broken(Exception):
    """`case` broke a promise: `why` has its kind, the shrunk trace and the script of the core's calls."""

    def __init__(self, case: Case, why: PromiseBroken) -> None:
        super().__init__(f"{case.title}: {why.kind} at step {why.step}, {why.at_us} µs: {why}")
        self.case = case
        self.why = why

    def __reduce__(self) -> tuple[object, ...]:
        return (Broken, (self.case, self.why))
