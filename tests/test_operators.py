"""Operators for weights of floats: they agree, the fastest is taken, what was measured is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import blocks
from lorad import _core
from lorad.doctor import report
from lorad.models import linear, operators
from lorad.models.forms import FORMS, QUANT_FORMS, Linear
from lorad.models.linear import Chosen, DenseEmbedding
from lorad.models.operators import OWN, ROWS, SMALL, Choice, Operators, candidates, fastest, machine_name

BIG = (512, SMALL // 512)


def times_of(element: str, **others: list[float]) -> dict[str, list[float]]:
    """Times of every operator for such weights: lorad's own is the fastest, but for `others`."""
    slow = {name: others.get(name, [9.0] * len(ROWS)) for name in candidates(element)}
    return slow | {"own": [2.0] * len(ROWS)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "cols", "n"), [(1, 1, 1), (33, 70, 5), (130, 257, 13)])
def test_forms_agree(dtype: torch.dtype, rows: int, cols: int, n: int) -> None:
    random = torch.Generator().manual_seed(rows)
    weight = torch.randn((rows, cols), generator=random).to(dtype)
    x = torch.randn((n, cols), generator=random)
    wanted = (x.double() @ weight.double().t()).numpy()
    for name, make in FORMS.items():
        if name == "torch_bf16" and dtype != torch.bfloat16:
            continue
        form, y = make(weight.clone()), np.full((n, rows), np.nan, dtype=np.float32)
        form(y, x.numpy())
        # bf16 rounds the activations to 8 bits
        tolerance = 2e-2 if name == "torch_bf16" else 1e-5
        assert np.abs(y - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max()), name
        assert form.bytes >= weight.numel() * (4 if name == "torch_f32" else weight.element_size())


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "Q8_0"])
def test_operators_of_quantised_weights_agree(kind: str) -> None:
    rows, cols, n = 70, 512, 40
    rng = np.random.default_rng(4)
    values = rng.standard_normal((rows, cols), dtype=np.float32)
    matrix = _core.QuantMatrix(kind, blocks.quantize(values, kind).view(np.uint8).reshape(-1), rows, cols)
    weight = np.empty((rows, cols), dtype=np.float32)
    matrix.dequantize(weight)
    x = rng.standard_normal((n, cols), dtype=np.float32)
    wanted = x.astype(np.float64) @ weight.T.astype(np.float64)
    for name in candidates(kind):
        y = np.full((n, rows), np.nan, dtype=np.float32)
        QUANT_FORMS[name](matrix)(y, x)
        # 8 bits of the largest of 32, or 8 bits of each
        assert np.abs(y - wanted).max() <= 2e-2 * np.abs(wanted).max(), name


def test_tiles_are_taken_from_their_rows_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "has_tiles", lambda: True)
    times = {"own": [1.0, 2.0, 4.0, 8.0, 16.0, 64.0], "tiles": [3.0, 3.0, 4.0, 8.0, 9.0, 30.0]}
    monkeypatch.setattr(operators, "measure", lambda kind, rows, cols, *, fine: times)
    chosen = ("own", "own", "own", "own", "tiles", "tiles")
    assert Operators(file=tmp_path / "o.json").choose("Q4_1", *BIG).names == chosen
    # integers give a row the same bits in any company, tiles begin at a number of rows
    assert Operators(file=tmp_path / "o.json", deterministic=True).choose("Q4_1", *BIG) == OWN
    monkeypatch.setattr(operators, "has_tiles", lambda: False)
    assert Operators(file=tmp_path / "o.json").choose("Q4_1", *BIG) == OWN


def test_lorads_own_is_the_same_alone_and_in_company() -> None:
    random = torch.Generator().manual_seed(5)
    form = FORMS["own"](torch.randn((40, 300), generator=random).to(torch.bfloat16))
    x = torch.randn((29, 300), generator=random).numpy()
    together = np.empty((29, 40), dtype=np.float32)
    form(together, x)
    for row in range(29):
        alone = np.empty((1, 40), dtype=np.float32)
        form(alone, x[row : row + 1])
        assert np.array_equal(alone[0], together[row])


def test_the_fastest_is_taken_and_a_second_form_only_where_it_pays() -> None:
    times = {
        "own": [10.0, 20.0, 40.0, 60.0, 100.0, 400.0],
        "torch_f32": [30.0, 30.0, 39.0, 60.0, 80.0, 200.0],
    }
    assert fastest(times, one_copy=False) == Choice(("own", "own", "own", "own", "torch_f32", "torch_f32"))
    assert len(fastest(times, one_copy=True).forms) == 1
    level = {"own": [10.0] * len(ROWS), "torch_f32": [9.5] * len(ROWS)}
    assert fastest(level, one_copy=False) == Choice(("torch_f32",) * len(ROWS))
    assert fastest({"own": [1.0] * len(ROWS)}, one_copy=False) == OWN


def test_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(element: str, rows: int, cols: int, *, fine: bool) -> dict[str, list[float]]:
        asked.append((element, rows, cols, fine))
        return times_of(element, torch_f32=[3.0, 3.0, 3.0, 3.0, 1.0, 1.0], tiles=[3.0, 3.0, 3.0, 3.0, 1.0, 1.0])

    monkeypatch.setattr(operators, "measure", measure)
    file = tmp_path / "deep" / "operators.json"
    mixed = Choice(("own", "own", "own", "own", "torch_f32", "torch_f32"))
    assert Operators(file=file).choose("bf16", *BIG) == mixed
    assert Operators(file=file).choose("bf16", *BIG) == mixed
    assert asked == [("bf16", *BIG, False)]
    assert list(json.loads(file.read_text())) == [machine_name()]
    assert len(Operators(file=file, one_copy=True).choose("bf16", *BIG).forms) == 1
    # neither a small weight nor the deterministic mode looks at a clock
    assert Operators(file=file).choose("f16", 8, 8) == OWN
    assert Operators(file=file, deterministic=True).choose("f16", *BIG) == OWN
    assert len(asked) == 1
    # the same weight by twice the work is another one
    monkeypatch.setattr(operators, "has_tiles", lambda: True)
    assert Operators(file=file).choose("Q4_0", *BIG, fine=True).names == ("own",) * 4 + ("tiles",) * 2
    assert asked[1:] == [("Q4_0", *BIG, True)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}x",
        '{"a": 3}',
        '{"a": {"b": 3}}',
        '{"a": {"b": {"own": [1.0]}}}',
        "[" * 200_000,
        "{" * 9,
        b"\xff",
    ],
    ids=lambda text: str(text[:20]),
)
def test_a_file_that_isnt_ours_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes
) -> None:
    monkeypatch.setattr(operators, "measure", lambda element, rows, cols, *, fine: times_of(element))
    file = tmp_path / "operators.json"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    assert Operators(file=file).choose("f32", *BIG) == OWN
    assert machine_name() in json.loads(file.read_text())


@pytest.mark.parametrize(
    "times",
    [
        {"own": [0.0] * 6, "torch_f32": [0.0] * 6},
        {"own": [float("nan")] * 6, "torch_f32": [1.0] * 6},
        {"own": [5.0] * 6, "torch_f32": [-1.0] * 6},
        {"own": [5.0] * 6, "torch_f32": [float("inf")] * 6},
        {"own": [1e308] * 6, "torch_f32": [1.0] * 6},
        {"own": [5] * 6, "torch_f32": [1] * 6},
        {"own": [5.0] * 6, "torch_f32": [1.0] * 3},
        {"own": [5.0] * 6, "torch_f32": "1.0"},
        {"own": [5.0] * 6, "torch_f32": [1.0] * 6, "tiles": [0.1] * 6},
        {"own": [5.0] * 6, "magic": [1.0] * 6},
        {"torch_f32": [1.0] * 6},
        {},
    ],
    ids=str,
)
def test_times_that_arent_in_order_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: dict[str, Any]
) -> None:
    """And nothing else in the file is."""
    asked = []

    def measure(element: str, rows: int, cols: int, *, fine: bool) -> dict[str, list[float]]:
        asked.append((rows, cols))
        return times_of(element)

    monkeypatch.setattr(operators, "measure", measure)
    file, rows, cols = tmp_path / "operators.json", 1024, 512
    good = times_of("f32", torch_f32=[1.0] * len(ROWS))
    here = {f"f32 {rows}x{cols}": times, f"f32 {cols}x{rows}": good}
    kept = {"another machine": {"f32 1x1": good}, machine_name(): here}
    file.write_text(json.dumps(kept))
    assert report(Operators(file=file))["operators"].keys() == {f"f32 {cols}x{rows}"}
    assert Operators(file=file).choose("f32", rows, cols) == OWN
    assert Operators(file=file).choose("f32", cols, rows) == Choice(("torch_f32",) * len(ROWS))
    assert asked == [(rows, cols)]
    here[f"f32 {rows}x{cols}"] = times_of("f32")
    assert json.loads(file.read_text()) == kept


def a_file(path: Path) -> None:
    path.parent.write_text("")


def a_folder(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "something").touch()


@pytest.mark.parametrize("make", [a_file, a_folder])
def test_a_folder_that_cant_be_written_costs_one_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    asked = []

    def measure(element: str, rows: int, cols: int, *, fine: bool) -> dict[str, list[float]]:
        asked.append((rows, cols))
        return times_of(element)

    monkeypatch.setattr(operators, "measure", measure)
    file = tmp_path / "data" / "operators.json"
    make(file)
    for _ in range(3):
        assert Operators(file=file).choose("f32", *BIG) == OWN
    assert asked == [BIG] and list(Operators(file=file).known()) == [f"f32 {BIG[0]}x{BIG[1]}"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in (["data"], ["something"]), "nothing is left"


def test_every_operator_is_timed_with_every_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "COLD_BYTES", 1)
    monkeypatch.setattr(operators, "SECONDS", 1e-6)
    for element in ("f32", "f16", "bf16"):
        found = operators.measure(element, 24, 40)
        assert list(found) == candidates(element)
        assert all(len(times) == len(ROWS) and min(times) > 0 for times in found.values())


def test_the_number_of_rows_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    class Form(Linear):
        bytes = 7

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, y: np.ndarray, x: np.ndarray, delta: object = None) -> None:
            calls.append((self.name, len(x)))

    monkeypatch.setattr(linear, "FORMS", {name: (lambda weight, name=name: Form(name)) for name in FORMS})
    choice = Choice(("own", "own", "torch_f32", "torch_f32", "torch_f32", "own"))
    chosen = Chosen(torch.zeros(4, 4), choice)
    assert chosen.bytes == 14
    for n in (0, 1, 3, 15, 16, 63, 255, 256, 1000):
        chosen(np.empty((n, 4), dtype=np.float32), np.empty((n, 4), dtype=np.float32))
    assert [name for name, _ in calls] == ["own"] * 4 + ["torch_f32"] * 3 + ["own"] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_embedding_gives_its_rows_exactly(dtype: torch.dtype) -> None:
    table = torch.randn((19, 33), generator=torch.Generator().manual_seed(1)).to(dtype)
    out, ids = np.empty((4, 33), dtype=np.float32), np.array([18, 0, 7, 7], dtype=np.int32)
    embedding = DenseEmbedding(table, OWN)
    embedding(out, ids)
    assert np.array_equal(out, table.float().numpy()[ids])
    assert embedding.bytes == embedding.as_linear().bytes
    # the table that is read is the head's form too, and not held twice
    both = DenseEmbedding(table, Choice(("own", "own", "torch_f32", "torch_f32", "torch_f32", "torch_f32")))
    assert both.bytes == embedding.bytes + table.numel() * 4
    head = DenseEmbedding(table, Choice(("torch_f32",) * len(ROWS)))
    assert head.bytes == both.bytes and head.as_linear().bytes == table.numel() * 4


def test_doctor_reports_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "measure", lambda element, rows, cols, *, fine: times_of(element))
    known = Operators(file=tmp_path / "operators.json")
    assert report(known)["operators"] == {}
    known.choose("f32", *BIG)
    found = report(known)
    assert found["operators"][f"f32 {BIG[0]}x{BIG[1]}"]["chosen"] == ["own"] * len(ROWS)
    assert found["level"] in ("portable", "avx2", "avx512", "amx") and found["packages"]["torch"]
