"""Attention over pages as a GPU computes it, under Triton's interpreter, against its definition.

Outputs begin as NaN, so is what pages hold beside the lines' tokens, and columns after a line's end lead nowhere.
"""

from __future__ import annotations

import interpreted  # isort: skip  # noqa: F401  before Triton

from itertools import pairwise

import pytest
import torch

import interpreter_repairs  # noqa: F401
from attention_steps import BF16, F32, GEOMETRIES, LAYER, ROWS, Step
from definitions import attention as definition
from lorad.kernels.pages import Pages
from paged import NOWHERE, Geometry, fill


@pytest.mark.parametrize(("geometry", "window"), GEOMETRIES)
def test_rows_of_any_length(geometry: Geometry, window: int | None) -> None:
    step = Step(1, geometry, ROWS)
    got = step.attend(window=window)
    step.check(got, step.attend(definition, window))
    for row, (_, new) in enumerate(ROWS):
        own = got[int(step.row_offset[row]) :][:new]
        assert not new or torch.equal(step.alone(row).attend(window=window), own)


@pytest.mark.parametrize("window", [16, 31, 32, 63, 64, 65, 100])
def test_windows_around_borders_of_blocks(window: int) -> None:
    step = Step(2, Geometry(4, 2, 16, 8, F32, F32), [(127, 1), (128, 1), (96, 33), (60, 70)])
    step.check(step.attend(window=window), step.attend(definition, window))
    single = Step(2, step.geometry, [(length - 1, 1) for length in (32, 33, 64, 65, 127, 128, 129)])
    single.check(single.decode(2, window=window), single.decode(2, definition, window))


@pytest.mark.parametrize(
    ("geometry", "window"), [(Geometry(8, 2, 64, 16, F32, F32), 40), (Geometry(6, 2, 32, 16, BF16, BF16), None)]
)
def test_how_a_prompt_is_cut_changes_no_bit(geometry: Geometry, window: int | None) -> None:
    step = Step(3, geometry, [(0, 9), (7, 91)])
    whole = step.attend(window=window)[9:100]
    borders = [0, 1, 14, 30, 64, 65, 91]
    for begin, end in pairwise(borders):
        assert torch.equal(step.alone(1, begin, end).attend(window=window), whole[begin:end]), (begin, end)


@pytest.mark.parametrize(("geometry", "window"), GEOMETRIES)
def test_rows_with_one_token_each(geometry: Geometry, window: int | None) -> None:
    step = Step(4, geometry, [(length - 1, 1) for length in (16, 130, 1, 65)])
    wanted = step.attend(definition, window)
    got = step.decode(3, window=window)
    step.check(got, wanted)
    for row in (1, 3):
        assert torch.equal(step.alone(row).decode(3, window=window, padding=row), got[row : row + 1])
    step.check(step.decode(3, definition, window), wanted)


@pytest.mark.parametrize("splits", [1, 2, 8, 32])
def test_keys_in_any_number_of_splits(splits: int) -> None:
    step = Step(4, Geometry(3, 1, 16, 16, F32, F32), [(length - 1, 1) for length in (1, 31, 32, 33, 200, 300)])
    for window in (None, 70):
        step.check(step.decode(splits, window=window), step.attend(definition, window))


def test_peaked_scores_of_either_sign() -> None:
    step = Step(5, Geometry(2, 1, 16, 16, F32, F32), [(99, 1), (0, 40)])
    step.qkv[0] *= 100
    step.qkv[20] *= -100
    step.check(step.attend(), step.attend(definition))
    single = step.alone(0)
    single.check(single.decode(4), single.attend(definition))


def test_a_row_of_nan_stays_its_own() -> None:
    geometry = Geometry(4, 2, 16, 16, F32, F32)
    step = Step(6, geometry, [(20, 1), (20, 1), (20, 1)])
    step.qkv[0] = torch.nan
    fill(step.random, geometry, step.pages, int(step.row_line[1]), range(4, 5), LAYER, torch.nan)
    for got in (step.attend(), step.decode(2)):
        assert got[:2].isnan().all() and got[2].isfinite().all()


def test_blocks_of_keys_before_the_window_are_not_read() -> None:
    step = Step(7, Geometry(4, 2, 16, 16, F32, F32), [(200, 5), (204, 1)])
    wanted, wanted_single = step.attend(window=40), step.alone(1).decode(2, window=40)
    step.pages.table[:, : 128 // 16] = NOWHERE
    assert torch.equal(step.attend(window=40)[: step.tokens], wanted[: step.tokens])
    assert torch.equal(step.alone(1).decode(2, window=40), wanted_single)


def test_what_does_not_fit_is_refused() -> None:
    step = Step(8, Geometry(4, 2, 16, 16, F32, F32), [(3, 1)])
    with pytest.raises(ValueError, match="window of 0"):
        step.attend(window=0)
    with pytest.raises(ValueError, match="0 splits"):
        step.decode(0)
    for change, message in ((1, "qkv has 129 columns"), (-48, "qkv has 80 columns")):
        step.qkv = torch.zeros(4, step.geometry.width + change)
        with pytest.raises(ValueError, match=message):
            step.attend()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int32"}, "pages of int32"),
        ({"table": torch.zeros(1, 2)}, r"table is of torch\.float32"),
        ({"layers": 3}, "can't hold 3 layers"),
        ({"layers": 1}, "layer 1 of 1"),
        ({"head_dim": 512, "kv_heads": 1}, "too wide"),
    ],
)
def test_pages_that_do_not_fit_are_refused(change: dict, message: str) -> None:
    step = Step(8, Geometry(4, 2, 16, 16, F32, F32), [(3, 1)])
    step.pages = Pages(**{**step.pages._asdict(), **change})
    if "head_dim" in change:
        step.geometry = Geometry(1, 1, 512, 16, F32, F32)
        step.pages = step.pages._replace(arena=torch.zeros(2, 2 * 2 * 16 * 512 * 4, dtype=torch.uint8))
        step.qkv = torch.zeros(4, step.geometry.width)
    with pytest.raises(ValueError, match=message):
        step.attend()
