"""What the engine process runs in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lorad.engine.child import HUGE_PAGES, environment


def test_what_was_set_for_the_c_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert environment()["GLIBC_TUNABLES"] == HUGE_PAGES
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=2")
    assert environment()["GLIBC_TUNABLES"] == f"{HUGE_PAGES}:glibc.malloc.hugetlb=0:glibc.malloc.arena_max=2"


def test_the_child_imports_this_very_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    command = [sys.executable, "-P", "-c", "import lorad, sys; print(lorad.__file__, '/elsewhere' in sys.path)"]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout.split()
    import lorad

    assert found == [lorad.__file__, "True"]
