"""Looking into the scheduler: runs by hand, recorded runs again, and what differs between two of them.

    from lorad import debug

    recording = debug.Recording.load("incident.trace")
    while recording.next_plan():
        rich.print(recording)              # plan, queues, adapters, pages
    other = debug.again(recording, pages=512)
    rich.print(debug.compare(recording, other))

Nothing in here needs a model or torch.
"""

from __future__ import annotations

from lorad._core import Unreadable
from lorad.debug.again import again
from lorad.debug.compare import Comparison, PlanDifference, RequestDifference, compare
from lorad.debug.fake import FakeWorker
from lorad.debug.lives import Life, Lives
from lorad.debug.plan import PageIn, Row, StepPlan
from lorad.debug.recording import Moment, Recording
from lorad.debug.snapshot import (
    Adapter,
    Cached,
    Group,
    Listed,
    Other,
    Owner,
    Prefix,
    Queue,
    Request,
    Snapshot,
    Tenant,
    Waiting,
)
from lorad.debug.stepper import Stepper

__all__ = [
    "Adapter",
    "Cached",
    "Comparison",
    "FakeWorker",
    "Group",
    "Life",
    "Listed",
    "Lives",
    "Moment",
    "Other",
    "Owner",
    "PageIn",
    "PlanDifference",
    "Prefix",
    "Queue",
    "Recording",
    "Request",
    "RequestDifference",
    "Row",
    "Snapshot",
    "StepPlan",
    "Stepper",
    "Tenant",
    "Unreadable",
    "Waiting",
    "again",
    "compare",
]
