"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lorad import Engine
    from lorad.models.config import ModelConfig
    from oracle import Oracle


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


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama's folder, not to be changed."""
    from tiny import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def oracle(base: Path) -> Oracle:
    """The reference on it."""
    from oracle import oracle

    return oracle(base)


@pytest.fixture
def engine(base: Path, adapter: Path) -> Iterator[Engine]:
    """An engine on it with the adapter, as `a`."""
    from tiny_engine import make

    engine = make(base, adapter)
    yield engine
    engine.close()
