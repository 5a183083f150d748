"""How many files a process may have open."""

from __future__ import annotations

import resource

import pytest

from lorad import open_files


def test_as_many_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 524288))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append((kind, limits)))
    open_files.allow_all()
    assert asked == [(resource.RLIMIT_NOFILE, (524288, 524288))]


@pytest.mark.parametrize("refusal", [ValueError("not allowed to raise maximum limit"), OSError(22, "Invalid argument")])
def test_a_system_that_takes_no_limit_doesnt_prevent_the_start(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise refusal

    monkeypatch.setattr(resource, "setrlimit", refuse)
    open_files.allow_all()
