"""Sizes of kernels as a file: written by the tuner, read at the start, refused by name."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import interpreted  # noqa: F401 - before Triton
import interpreter_repairs  # noqa: F401
import lora_cases
from lorad.kernels import tuned
from lorad.worker.gpu import cuda

ROOT = Path(__file__).resolve().parents[1]
KEY = "4,True,True"


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """Puts the tables back."""
    before = {name: dict(table) for name, table in tuned.tables().items()}
    yield
    for name, table in tuned.tables().items():
        table.update(before[name])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tuner writes, at tiny shapes."""
    folder = tmp_path_factory.mktemp("tuned")
    command: list[str] = [sys.executable, "benches/gpu/tune.py", "--dry-run", "--out", str(folder), "--only", "lora"]
    done = subprocess.run(
        [*command, "attention_decode"], check=False, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "attention_decode" in done.stdout and "128,16" in done.stdout
    assert "passed over" not in done.stderr, done.stderr
    return folder


def test_a_tuners_file_is_used(written: Path) -> None:
    path = tuned.use("Dry Run", written)
    assert path == written / "dry-run.json"
    found = tuned.read(path)
    assert (
        set(found) == {"lora", "attention_decode"} and len(found["lora"]) == 4 and len(found["attention_decode"]) == 3
    )
    for table, entries in found.items():
        for key, tiles in entries.items():
            assert tuned.tables()[table][key] == tiles
    assert tuned.use("another GPU", written) is None


def test_kernels_are_right_with_other_sizes(tmp_path: Path) -> None:
    sizes = {"ranks": 32, "inputs": 32, "outputs": 16, "warps": 2, "stages": 1}
    case = lora_cases.make(3, 67, [40, 3, 201], 64, torch.float32, lora_cases.MIXED, lora_cases.GROUPS)
    usual = case.run("two")
    _write(tmp_path, {"lora": {KEY: sizes}})
    assert tuned.use("G", tmp_path) is not None
    assert tuned.tables()["lora"][4, True, True].outputs == 16
    got = case.run("two")
    lora_cases.check(case, got)
    lora_cases.check(case, case.run("fused"))
    assert torch.allclose(got, usual, rtol=1e-4, atol=1e-4, equal_nan=True)


def _write(folder: Path, tables: Any) -> Path:
    path = folder / "g.json"
    path.write_text(json.dumps({"gpu": "G", "tables": tables}))
    return path


def changed(**sizes: Any) -> dict[str, Any]:
    return {"lora": {KEY: {**tuned.tables()["lora"][4, True, True]._asdict(), **sizes}}}


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (lambda: {"lore": {}}, "no table 'lore'; there are lora, attention, attention_decode"),
        (lambda: {"lora": {"3,True,True": {}}}, "lora has no '3,True,True'; it has 2,True,True; "),
        (lambda: {"lora": {KEY: {"warps": 4}}}, "lora 4,True,True wants ranks, inputs, outputs, warps, stages, has"),
        (lambda: changed(warps=3), "lora 4,True,True: warps is a power of two (stages: any) up to 1024, got 3"),
        (lambda: changed(stages=9), "stages is a power of two (stages: any) up to 8, got 9"),
        (lambda: changed(outputs="64"), "got '64'"),
        (lambda: changed(outputs=True), "got True"),
        (lambda: [1], "not a file of tuned sizes"),
    ],
)
def test_refusals_name_what_is_wrong(tables: Callable[[], Any], says: str, tmp_path: Path) -> None:
    before = dict(tuned.tables()["lora"])
    _write(tmp_path, tables())
    with pytest.raises(ValueError) as refusal:
        tuned.use("G", tmp_path)
    assert says in str(refusal.value) and str(refusal.value).startswith("g.json: ")
    assert tuned.tables()["lora"] == before


def test_a_worker_passes_over_what_it_cant_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path))
    (tmp_path / "tuned").mkdir()
    _write(tmp_path / "tuned", {"lore": {}})
    with caplog.at_level(logging.INFO, "lorad.worker"):
        cuda._use_tuned("G")
        _write(tmp_path / "tuned", changed(warps=8))
        cuda._use_tuned("G")
        cuda._use_tuned("H")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
    assert "no table 'lore'" in caplog.records[0].getMessage()
    assert tuned.tables()["lora"][4, True, True].warps == 8
