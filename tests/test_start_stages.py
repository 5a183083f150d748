"""What a start says while it takes: the stages, and how many operators will be measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorad import Engine, doctor
from lorad.engine.messages import Progress
from lorad.models import operators
from lorad.models.open import open_model
from lorad.models.operators import ROWS, candidates
from lorad.models.products import matrix_kinds
from lorad.server.run import describe_progress
from tiny import make_tiny, make_tiny_gguf


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """A data folder without times, where every weight is timed, in no time; what was."""
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "data"))
    asked: list[tuple[object, ...]] = []

    def measure(element: str, rows: int, cols: int, *, fine: bool) -> dict[str, list[float]]:
        asked.append((element, rows, cols, fine))
        return {name: [2.0 - (name == "own")] * len(ROWS) for name in candidates(element)}

    monkeypatch.setattr(operators, "SMALL", 1)
    monkeypatch.setattr(operators, "measure", measure)
    monkeypatch.setattr(operators, "has_tiles", lambda: True)
    return asked


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K", "folder"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dequantize", [True, False], ids=["widened", "stored"])
def test_all_that_will_be_measured_is_counted_ahead(
    tmp_path: Path, asked: list[tuple[object, ...]], kind: str, tied: bool, dequantize: bool
) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64} if kind == "Q4_K" else {}
    base = make_tiny(tmp_path / "tiny", tie_word_embeddings=tied, **wide)
    if kind != "folder":
        base = make_tiny_gguf(base, tmp_path / "tiny.gguf", kind)
    told: list[tuple[str, int, int]] = []

    def start() -> Engine:
        return Engine(
            str(base),
            dequantize=dequantize,
            kv_cache_memory_bytes=1 << 20,
            on_progress=lambda *stage: told.append(stage),
        )

    start().close()
    kinds = matrix_kinds(open_model(base), dequantize=dequantize)
    assert sorted(asked) == sorted(map(tuple, kinds)) and len(asked) >= 4
    assert told == [("weights", 0, 0), *(("operators", done, len(asked)) for done in range(1, len(asked) + 1))]
    told.clear()
    start().close()
    assert told == [("weights", 0, 0)], "the second start measures nothing"


def test_which_base_it_is_is_told_before_its_weights_are_read(tmp_path: Path) -> None:
    base, told = make_tiny(tmp_path / "tiny"), []
    Engine(
        str(base),
        kv_cache_memory_bytes=1 << 20,
        on_open=told.append,
        on_progress=lambda stage, done, total: told.append(stage),
    ).close()
    assert told[:2] == [open_model(base).digest, "weights"]


def test_a_start_says_its_stages_in_lines() -> None:
    assert describe_progress(Progress("weights", 0, 0)) == "lorad: loading the weights"
    assert describe_progress(Progress("operators", 2, 5)) == "lorad: measuring operators on this machine, once (2 of 5)"
    assert describe_progress(Progress("checking the base", 1, 5)) == ""


def test_doctors_table_is_whole_in_a_file(
    asked: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert doctor.doctor(as_json=False) == 0
    assert "No operators were timed here yet" in capsys.readouterr().out
    known = operators.Operators()
    known.choose("bf16", 123456, 65432)
    known.choose("Q4_1", 49152, 12345, fine=True)
    assert doctor.doctor(as_json=False) == 0
    said = capsys.readouterr().out
    assert "bf16 123456x65432 " in said and "Q4_1 49152x12345 fine " in said and "weights of floats" not in said
    assert "Other weights are timed when a base that has them is first loaded" in said
