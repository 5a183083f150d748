"""`Others`: what a GPU worker tells the other ranks of its engine, where it has any ([docs/gpu.md])."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from lorad.adapters.image import AdapterImage
from lorad.errors import LoradError
from lorad.worker.gpu.graphs import Key
from lorad.worker.page_ins import PageIn
from lorad.worker.plan import Ints, Plan


class Others(Protocol):
    """Each is told in the order in which the worker does the same itself. EngineLost: one of them is gone."""

    leads: bool
    """Whether this rank tells; it isn't told itself."""

    alone: bool
    """Whether there are none."""

    @property
    def lost(self) -> LoradError | None:
        """Why there's no going on."""

    def add_adapter(self, adapter: int, tag: int, image: AdapterImage) -> None: ...
    def drop_adapter(self, adapter: int) -> None: ...
    def capture(self, key: Key) -> None:
        """A graph of this bucket is about to be captured."""

    def apply(self, plan: Plan) -> None:
        """Its copies, cleared slots and page-ins."""

    def run(self) -> None:
        """The rows of the plan that was applied last are about to be computed."""

    def logits_of(self, tokens: Ints) -> None:
        """Logits of other tokens of the step that was computed last are about to be, by their places in the step."""

    def wait_for_copy(self) -> None:
        """Until their copies of the next page-in, in the order of plans, have ended; called by the copying thread."""

    def entered(self, done: list[PageIn]) -> list[PageIn]:
        """Has their slots answer for these adapters; gives the page-ins again, those that failed elsewhere as such."""

    def together(self) -> AbstractContextManager[None]:
        """A context for what all ranks compute: whatever fails in it, the ranks are out of step after that."""

    def close(self) -> None:
        """Ends them."""


class Nobody:
    """There's one rank."""

    leads = alone = True
    lost: LoradError | None = None

    def _nothing(self, *_: object) -> None:
        """Nobody is told."""

    add_adapter = drop_adapter = capture = apply = run = logits_of = wait_for_copy = close = _nothing

    def entered(self, done: list[PageIn]) -> list[PageIn]:
        """As they are."""
        return done

    @contextmanager
    def together(self) -> Iterator[None]:
        """Alone."""
        yield


class Led(Nobody):
    """This rank is told itself."""

    leads = alone = False
