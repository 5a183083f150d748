"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The embedded base's file: LORAD_TEST_GGUF, or fetched into the data folder."""
    if given := os.environ.get("LORAD_TEST_GGUF"):
        return Path(given)
    from lorad.demo.base import embedded_base

    return Path(embedded_base())
