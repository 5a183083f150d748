"""The ledger summed: by which fields, from which hour on, as objects or as a table."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable
from typing import Any

from lorad.errors import InvalidRequest
from lorad.models.fields import shown
from lorad.tenants.file import Used, UsedRow

HOUR = 3600.0
GROUPS = ("tenant", "model", "hour", "base")
"""Fields of the ledger that usage can be summed by."""
BY = "tenant,model"
"""Where nothing is said."""
HOURS_MAX = 1_000_000


def fields_of(text: str, code: str) -> tuple[str, ...]:
    """Fields to sum by, separated by commas; refused with this code."""
    fields = tuple(text.split(","))
    if not set(fields) <= set(GROUPS) or len(set(fields)) < len(fields):
        raise InvalidRequest(
            f"by: some of {', '.join(GROUPS)}, separated by commas, each once, got {shown(text)}", code=code, param="by"
        )
    return fields


def first_hour(now: float, hours: int | None) -> int:
    """Where the last so many hours begin, the running one included; None: at the first of all."""
    return 0 if hours is None else int(now // HOUR) - hours + 1


def summed(rows: Iterable[UsedRow], by: tuple[str, ...]) -> dict[tuple[str, ...], Used]:
    """Sums over rows that agree in the fields `by`, of `UsedRow`, in order."""
    sums: dict[tuple[str, ...], Used] = {}
    for row in rows:
        key = tuple(str(getattr(row, field)) for field in by)
        sums[key] = sums.get(key, Used()).plus(row.used)
    return dict(sorted(sums.items()))


def as_dicts(rows: list[UsedRow], by: tuple[str, ...]) -> list[dict[str, Any]]:
    """Sums as objects."""
    return [dict(zip(by, key, strict=True)) | _rounded(used)._asdict() for key, used in summed(rows, by).items()]


def as_csv(rows: list[UsedRow], by: tuple[str, ...]) -> str:
    """Sums as a table with a heading."""
    text = io.StringIO()
    # Names in quotes: what separates fields in some countries may be in them.
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow([*by, *Used._fields])
    for key, used in summed(rows, by).items():
        writer.writerow([*map(_safe, key), *_rounded(used)])
    return text.getvalue()


def _rounded(used: Used) -> Used:
    """To microseconds, without the noise of sums."""
    return used._replace(seconds=round(used.seconds, 6), load_seconds=round(used.load_seconds, 6))


def _safe(cell: str) -> str:
    """Names are their owners' choice, and some programs take a cell that begins so for a formula, full width or not,
    and behind blanks."""
    return "'" + cell if unicodedata.normalize("NFKC", cell).lstrip()[:1] in ("=", "+", "-", "@") else cell
