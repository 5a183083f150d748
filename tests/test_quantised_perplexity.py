"""The embedded base as it's served says what its own weights in f32 say, on the tenants' held-out answers.

`make perplexity` takes the whole sets and prints the table of docs/models.md; here a few examples of each.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COUNT = 8


@pytest.mark.slow
def test_perplexity_of_every_tenant_is_within_a_percent(monkeypatch: pytest.MonkeyPatch, smollm2_gguf: Path) -> None:
    """All together: a single set's few tokens are off by chance, by up to some percent."""
    monkeypatch.syspath_prepend(str(ROOT / "examples/tenants"))
    quantised = importlib.import_module("quantised")
    names = quantised.tenant_names()
    found = quantised.compare(smollm2_gguf, names, COUNT, alone=False)
    assert [figures.model for figures in found] == names
    tokens = sum(figures.tokens for figures in found)
    assert tokens > 1000
    nats = sum(math.log(figures.served / figures.reference) * figures.tokens for figures in found) / tokens
    assert abs(math.expm1(nats)) < 0.01
    assert all(abs(figures.change) < 0.04 for figures in found)
    # The reference is the one of docs/tenants.md: its figures for whole sets lie near these.
    assert 1.5 < min(figures.reference for figures in found) < max(figures.reference for figures in found) < 60
