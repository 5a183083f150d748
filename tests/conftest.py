"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lorad.models.config import ModelConfig


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The embedded base's file: LORAD_TEST_GGUF, or fetched into the data folder."""
    if given := os.environ.get("LORAD_TEST_GGUF"):
        return Path(given)
    from lorad.demo.base import embedded_base

    return Path(embedded_base())


@pytest.fixture(scope="session")
def config() -> ModelConfig:
    """The tiny Llama's, without its weights."""
    from lorad.models.hf_config import config_from_hf
    from tiny import tiny_config

    return config_from_hf(tiny_config().to_dict(), "tiny")


@pytest.fixture
def adapter(config: ModelConfig, tmp_path: Path) -> Path:
    """A folder with an adapter for it, to be changed."""
    from make_adapter import make_adapter

    return make_adapter(tmp_path / "adapter", config, rank=4, modules=["q_proj", "up_proj"])
