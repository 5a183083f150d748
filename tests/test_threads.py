"""The environment's say about threads and instructions: what is wrong there is told in a line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from lorad import _core
from lorad.errors import InvalidRequest
from lorad.worker import threads
from lorad.worker.threads import check_level, cores_here, start_computing, thread_count


@pytest.mark.parametrize(
    ("given", "wanted"), [("1", 1), (" 2 ", 2), ("4,2", 4), ("4, 2, 1", 4), ("1024", 1024), ("007", 7)]
)
def test_openmps_variable_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: str, wanted: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert thread_count(0) == wanted and thread_count(3) == 3
    assert not caplog.records


@pytest.mark.parametrize(
    "given",
    ["1025", "2000", "99999999999999999999", "²", "٣", "abc", "0", "-1", "1e3", "+1", "0x4", "2 2", ",2", "9" * 5000],
)
def test_what_isnt_a_number_of_threads_is_passed_over_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert thread_count(0) == cores_here()
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("OMP_NUM_THREADS: a whole number from 1 to 1024, got ") and len(said) < 200
    caplog.clear()
    assert thread_count(3) == 3 and not caplog.records, "the option decides"


@pytest.mark.parametrize("given", ["", "  "])
def test_an_empty_variable_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert thread_count(0) == cores_here() and not caplog.records


def test_more_threads_than_cpus_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    before = _core.threads()
    monkeypatch.setattr(threads, "cores_here", lambda: 2)
    with caplog.at_level(logging.WARNING):
        assert start_computing(2) == 2
        assert not caplog.records
        assert start_computing(3) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "threads: 3 on the 2 CPUs of this process, where they wait for each other"
    ]
    _core.set_threads(before)


@pytest.mark.parametrize("level", ["bogus", "AMX", "avx512 ", "neon", "\udcff"])
def test_a_level_that_isnt_there_is_refused(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("LORAD_CPU", level)
    with pytest.raises(InvalidRequest) as refusal:
        check_level()
    assert (refusal.value.code, refusal.value.param) == ("cpu_level", "LORAD_CPU")
    assert ", ".join(_core.cpu_levels()) in str(refusal.value) and repr(level) in str(refusal.value)
    for there in ("", *_core.cpu_levels()):
        monkeypatch.setenv("LORAD_CPU", there)
        check_level()


def test_commands_refuse_it_in_a_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lorad", "doctor"],
        env=os.environ | {"LORAD_CPU": "bogus"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    there = ", ".join(_core.cpu_levels())
    assert done.stderr == f"lorad: LORAD_CPU: one of {there}, which this CPU has, got 'bogus' [cpu_level]\n"
