"""docs/faults.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", TEXT)
    assert len(named) > 50
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (TESTS / file).is_file() or f"def {name}(" not in (TESTS / file).read_text(encoding="utf-8")
    ]
    assert not missing


def test_every_script_that_is_named_exists() -> None:
    scripts = re.findall(r"`data/(fault_\w+\.txt)`", TEXT)
    assert scripts and all((TESTS / "data" / script).is_file() for script in scripts)


def test_every_entry_has_its_row() -> None:
    rows = {number for row in re.findall(r"^\| ([0-9., ]+) \|", TEXT, re.MULTILINE) for number in row.split(", ")}
    groups = enumerate((5, 13, 5, 6, 18, 17, 12, 6, 12, 15, 3, 7, 5), start=1)
    for group, count in groups:
        assert {f"{group}.{entry}" for entry in range(1, count + 1)} <= rows, group
