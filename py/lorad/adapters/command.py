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
from lorad.config import EngineConfig
from lorad.models.config import ModelConfig
from lorad.models.open import open_model
from lorad.worker.ops import PageGeometry
from lorad.worker.worker import kv_element

WIDTH = 120
"""Columns that the tables need, also in a file."""


def adapters(arguments: argparse.Namespace) -> int:
    """Runs `check` or `inspect`; 1 if an adapter is refused."""
    base = open_model(arguments.model) if arguments.model else None
    page_bytes = default_page_bytes(base.config) if base else 0
    reports = [
        make_report(path, base, page_bytes=page_bytes, max_lora_rank=arguments.max_lora_rank)
        for path in arguments.paths
    ]
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


def default_page_bytes(model: ModelConfig) -> int:
    """Bytes of a page of a server that isn't told otherwise."""
    config = EngineConfig()
    return PageGeometry.of(model, config.block_size, kv_element(config.dtype)).page_bytes


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
