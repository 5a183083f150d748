"""What a run came to, as the simulator reports it. Times are whole microseconds of virtual time."""

from __future__ import annotations

import msgspec


class Times(msgspec.Struct, frozen=True):
    """Figures of a set of times, µs, by nearest rank; all 0 when there are none."""

    count: int
    p50: int
    p90: int
    p99: int
    max: int
    mean: int


class Requests(msgspec.Struct, frozen=True):
    """Requests that have something in common: `all`, `tenant 3`, `adapter 17`, `base`."""

    name: str
    requests: int
    refused: int
    finished: int
    aborted: int
    failed: int
    tokens: int
    wait_us: Times
    """From arrival to the first admission."""
    ttft_us: Times
    """From arrival to the first token."""
    total_us: Times
    """From arrival to the last token, of those that were answered in full."""


class Numbers(msgspec.Struct, frozen=True):
    """Counts of the whole run."""

    virtual_us: int
    steps_us: int
    page_ins_us: int
    steps: int
    rows: int
    groups: int
    tokens_computed: int
    tokens_out: int
    tokens_out_ks: int
    """Tokens of answers in 1,000 seconds."""
    page_ins: int
    page_ins_failed: int
    page_in_pages: int
    page_in_bytes: int
    evictions: int
    preemptions: int
    urgent: int
    """Elections of urgent groups, which the others made way for."""
    prefix_tokens: int
    longest_wait_milli: int
    """The longest wait in thousandths of its bound; 0 when waits weren't compared."""
    fingerprint: int
    """A hash of all plans and events."""


class Report(msgspec.Struct, frozen=True):
    """What a run came to."""

    name: str
    numbers: Numbers
    all: Requests
    tenants: list[Requests]
    adapters: list[Requests]
    refusals: dict[str, int]
    """By their code."""
    dump: str
    """The core's state at the very end, all adapters unregistered."""
