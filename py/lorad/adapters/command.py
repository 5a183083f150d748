"""`lorad adapters`: looks at adapters without serving them."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console

from lorad.adapters.report import Effect, Refusal, Report, make_report
from lorad.adapters.table import print_effects, print_reports
from lorad.models.open import open_model

WIDTH = 120
"""Columns that the tables need, also in a file."""


def adapters(arguments: argparse.Namespace) -> int:
    """Runs `check` or `inspect`; 1 if an adapter is refused."""
    base = open_model(arguments.model) if arguments.model else None
    reports = [make_report(path, base, max_lora_rank=arguments.max_lora_rank) for path in arguments.paths]
    one = arguments.adapters_command == "inspect"
    if arguments.json:
        found: Any = [as_data(report) for report in reports]
        sys.stdout.write(json.dumps(found[0] if one else {"adapters": found}, indent=1) + "\n")
    else:
        console = Console(width=max(Console().width, WIDTH))
        if one:
            print_effects(console, reports[0])
        else:
            print_reports(console, reports)
    return int(any(report.refusal for report in reports))


def as_data(report: Report) -> dict[str, Any]:
    """The report as JSON has it: named fields all the way down; nothing for what isn't known."""
    found = asdict(report)
    found["refusal"] = _named(report.refusal)
    found["effects"] = [_named(effect) for effect in report.effects]
    for name in ("generation", "pages", "page_bytes"):
        found[name] = found[name] or None
    return found


def _named(part: Refusal | Effect | None) -> dict[str, Any] | None:
    return None if part is None else part._asdict()
