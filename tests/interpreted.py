"""Imported before anything that imports Triton: its interpreter on CPU tensors where there is no GPU.

Triton is kept apart from the environment, in `.tools/triton-VERSION`, as torch pins another version of it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

VERSION = os.environ.get("LORAD_TRITON", "3.9.0")
FOLDER = Path(__file__).parent.parent / ".tools" / f"triton-{VERSION}"

os.environ.setdefault("TRITON_INTERPRET", "1")
if FOLDER.is_dir() and str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))

triton = pytest.importorskip("triton", reason="`make .tools/triton-3.9.0` installs it")
