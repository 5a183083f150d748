"""Results as JSON: every run with its tenants, and the summaries. Adapters and dumps are left out, for their size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from lorad import __version__
from lorad.errors import InvalidRequest
from lorad.named_file import read_small
from lorad.output import write_bytes
from lorad.simulate.report import Numbers, Requests
from lorad.simulate.run import Run
from lorad.simulate.summary import Summary, summaries

BYTES_MAX = 1 << 28
FORM = 1
"""Goes up when a field changes its meaning or goes away."""


class StoredRun(msgspec.Struct, frozen=True):
    """A run without its adapters and dump."""

    scenario: str
    policy: str
    sweep: dict[str, str]
    seed: int
    offered_per_s: float | None
    numbers: Numbers
    all: Requests
    tenants: list[Requests]
    refusals: dict[str, int]


class Stored(msgspec.Struct, frozen=True):
    """The file. `texts` are the scenarios of `summaries`, in their order, each with its first seed."""

    form: int
    lorad: str
    texts: list[str]
    summaries: list[Summary]
    runs: list[StoredRun]


def stored(runs: Sequence[Run]) -> Stored:
    """What is written of these runs."""
    made = summaries(runs)
    texts: dict[tuple[object, ...], str] = {}
    for run in runs:
        case = run.case
        texts.setdefault((case.scenario, case.policy, tuple(case.sweep.items())), case.text)
    return Stored(FORM, __version__, list(texts.values()), made, [_run(run) for run in runs])


def _run(run: Run) -> StoredRun:
    case, report = run.case, run.report
    return StoredRun(
        case.scenario,
        case.policy,
        case.sweep,
        case.seed,
        case.offered_per_s,
        report.numbers,
        report.all,
        report.tenants,
        report.refusals,
    )


def write(path: Path, runs: Sequence[Run]) -> None:
    """Writes the file."""
    text = msgspec.json.format(msgspec.json.encode(stored(runs)), indent=1)
    write_bytes(path, text + b"\n", "json")


def read(path: Path) -> Stored:
    """Reads such a file."""
    try:
        found = msgspec.json.decode(read_small(path, BYTES_MAX), type=Stored)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"{path}: {error}", code="json_form", param="json") from None
    if found.form != FORM:
        raise InvalidRequest(f"{path}: form {FORM} is read, this is {found.form}", code="json_form", param="json")
    return found
