"""A small crowd (`crowd.py`, which `make crowd` makes large): answers or clean refusals, and nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from crowd import MISDEEDS, gather
from lorad.models.open import open_model
from make_adapter import make_adapter

pytestmark = pytest.mark.slow


def test_a_crowd_leaves_nothing(smollm2_gguf: Path, tmp_path: Path) -> None:
    config = open_model(smollm2_gguf).config
    adapters = {name: make_adapter(tmp_path / name, config, seed=seed) for seed, name in enumerate(("a", "b"))}
    crowd, watch, before, after = gather(str(smollm2_gguf), adapters, tmp_path, 80, 10, every=3, seed=1)
    assert not crowd.wrong
    assert after["running"] == after["waiting"] == 0 and after["files"] <= before["files"] + 2
    assert crowd.counts["answers of few"] > 24 and all(crowd.counts[misdeed] for misdeed in MISDEEDS)
    assert 0.3 < watch.minutes[-1].share < 0.75, "of two tenants of one weight"
