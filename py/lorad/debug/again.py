"""The same arrivals under other limits: what would have happened."""

from __future__ import annotations

from typing import Any

from lorad import _core
from lorad.debug.fake import FakeWorker, Worker
from lorad.debug.recording import Moment, Recording
from lorad.debug.stepper import Stepper

OUTPUTS = frozenset(
    {
        "step",
        "commit",
        "commit_failed",
        "page_in_done",
        "page_in_failed",
        "page_in_dropped",
        "page_in_reached",
        "arrived",
        "fetch_failed",
    }
)
"""Calls that follow from the plans, not from outside."""

NO_ADAPTER = 0
"""An id that the core never gives: what asks for it is refused, and never answered by another adapter."""


def again(recording: Recording, worker: Worker | None = None, **limits: Any) -> Recording:
    """A run with the recorded arrivals at their times; everything else follows from the limits and the worker.

    `limits` are those of `_core.Core`, the others stay as they were recorded. The worker is by default one that answers
    as the recorded one did, in times fitted to its own: with the limits unchanged, plans may still differ where a few
    microseconds decide. What the core refuses now is left out.
    """
    calls = [moment for moment in Recording(recording.text) if moment.call not in OUTPUTS]
    stepper = Stepper(worker or FakeWorker.like(recording), like=recording, **limits)
    adapters: dict[int, int] = {}
    # registrations and tenants' limits have no time: they keep their place between the others
    calls.reverse()

    def give(until: int) -> None:
        while calls and calls[-1].arguments.get("now", 0) <= until:
            _give(stepper, calls.pop(), adapters)

    while True:
        give(stepper.now)
        plan = stepper.begin(wait=False)
        if plan is not None:
            tokens, time = stepper.worker.run(plan)
            give(stepper.now + time)
            stepper.finish(tokens, time)
            continue
        waits = [calls[-1].arguments.get("now", 0)] if calls else []
        if stepper.next_arrival is not None:
            waits.append(stepper.next_arrival)
        if not waits:
            break
        stepper.now = max(stepper.now, min(waits))
    made = stepper.recording()
    made.name = f"{recording.name} again"
    return made


def _give(stepper: Stepper, moment: Moment, adapters: dict[int, int]) -> None:
    """Makes a recorded call. `adapters`: recorded ids to those of this run, which differ once one was refused."""
    arguments = dict(moment.arguments)
    if (adapter := arguments.get("adapter")) is not None:
        arguments["adapter"] = adapters.get(adapter, NO_ADAPTER)
    try:
        made = stepper.call(moment.call, **arguments)
    except _core.Refused:
        return
    if moment.outcome == "registered" and moment.value is not None:
        adapters[moment.value] = made
