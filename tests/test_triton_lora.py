"""The Triton kernels of batched LoRA against their plain torch definition, under Triton's interpreter.

Shapes that don't divide, adapters cut by small pages, number types mixed. What a kernel must not write begins as NaN or
garbage and is still that afterwards.
"""

from __future__ import annotations

import interpreted  # isort: skip  # noqa: F401  before Triton


import numpy as np
import pytest
import torch

import interpreter_repairs  # noqa: F401
from definitions import lora as by_definition
from gpu_adapters import LAYER, GpuAdapters, Tile, tiles_of, work_list
from lora_cases import CLOSE, GROUPS, MIXED, check, make
from lorad.kernels.lora import ref
from lorad.kernels.lora.kernel import lora, lora_embed
from lorad.kernels.lora.shrink import workspace_shape
from lorad.kernels.lora.tiles import fused_pays, split_of


@pytest.mark.parametrize(
    ("inputs", "widths", "page_bytes", "dtype"),
    [
        (67, [40, 3, 70], 320, torch.float32),  # pieces of ten columns
        (600, [96, 33, 130], 1 << 13, torch.float32),
        (608, [48, 144, 16], 1 << 14, torch.bfloat16),  # runs at multiples of 16 throughout
        (130, [72, 24, 8], 1 << 12, torch.float16),
    ],
)
def test_mixed_adapters(inputs: int, widths: list[int], page_bytes: int, dtype: torch.dtype) -> None:
    """All that there may be in one launch, and the same bits from one launch as from two, alone as in company."""
    case = make(inputs, inputs, widths, page_bytes, dtype, MIXED, GROUPS)
    got = case.run("two")
    check(case, got)
    assert torch.equal(case.run("fused").view(torch.uint8), got.view(torch.uint8))
    for slot, tag, begin, _ in case.tiles[:6]:
        x, y = case.x[begin : begin + 1], case.y[begin : begin + 1]
        alone = case.run("fused", x, y, [(slot, tag, 0, 1)], room=0)
        assert torch.equal(alone.view(torch.uint8), got[begin : begin + 1].view(torch.uint8))


def test_definition_is_what_the_kernels_do() -> None:
    case = make(3, 96, [40, 24, 16], 512, torch.float32, MIXED, GROUPS)
    check(case, case.run("definition"))
    torch.testing.assert_close(case.run("lora"), case.run("definition"), rtol=2e-5, atol=2e-5, equal_nan=True)


def test_where_pages_lie_changes_no_bit() -> None:
    """Runs are cut where pages end, or go on in the next."""
    adapters = [{"rank": 50, "element": "bf16", "modules": [0], "gains": True}]
    apart, together = (
        make(5, 64, [48], 4096, torch.bfloat16, adapters, [(0, 5)], neighbours=neighbours)
        for neighbours in (False, True)
    )
    runs = [int((case.table.runs[:, 1] != 0).sum()) for case in (apart, together)]
    assert runs[0] > runs[1]
    x, y = together.x, together.y
    assert torch.equal(apart.run("two", x, y).view(torch.int16), together.run("two").view(torch.int16))


def test_highest_rank_and_split_input() -> None:
    adapters = [{"rank": 256, "element": "bf16", "modules": [0]}, {"rank": 1, "element": "bf16", "modules": [0]}]
    case = make(7, 1100, [64], 1 << 16, torch.bfloat16, adapters, [(0, 2), (1, 17)], y_dtype=torch.float32)
    assert split_of(1100).blocks == 3 and not fused_pays(len(case.x), 1100)
    got = case.run("lora")
    check(case, got)
    assert torch.equal(case.run("fused"), got)


def test_values_that_sixteen_bits_have_no_room_for() -> None:
    """x Aᵀ beyond float16's range, and so small that it would be no normal number of it."""
    adapters = [{"rank": 8, "element": "f16", "modules": [0]}]
    case = make(9, 64, [32], 4096, torch.float16, adapters, [(0, 4)], y_dtype=torch.float32)
    for size in (6e4, 1e-7):
        x = torch.full_like(case.x, size)
        x[:, ::2] *= 0.5
        scaled = case._replace(x=x, y=case.y * 0)
        check(scaled, scaled.run("two"))


@pytest.mark.parametrize("tiles", [[], [(0, 1000, 2, 2)]])
def test_nothing_to_do(tiles: list[Tile]) -> None:
    case = make(1, 33, [20], 256, torch.float32, MIXED[3:4], [(0, 3)])
    for form in ("two", "fused", "definition"):
        assert torch.equal(case.run(form, tiles=tiles), case.y)
        assert torch.equal(case.run(form, tiles=[], room=0), case.y)


def test_garbage_beside_the_tokens_does_not_leak() -> None:
    """Rows of no tile, and pages where no adapter is, may hold NaN."""
    adapters = [{"rank": 5, "element": "f32", "modules": [0], "gains": True}]
    case = make(2, 40, [24], 1024, torch.float32, adapters, [(0, 3), (-1, 2)])
    x, y = case.x.clone(), case.y.clone()
    x[4:], y[4:], x[0], y[0] = torch.nan, torch.nan, torch.nan, torch.nan
    arena = case.arena.clone().view(-1)
    used = torch.zeros(len(arena), dtype=torch.bool)
    for address, rank, _, length in case.table.runs.tolist():
        used[address * 64 :][: (rank >> 16) * length * 4] = True
    arena[~used] = 0xFF  # NaN in each number type
    dirty = case._replace(arena=arena.view_as(case.arena))
    for form in ("two", "fused"):
        got = dirty.run(form, x, y)
        assert torch.equal(got[1:4], case.run(form)[1:4])
        assert got[4:].isnan().all() and got[0].isnan().all()


def test_a_rank_above_the_workspace_is_not_cut_off() -> None:
    case = make(4, 40, [24], 1024, torch.float32, [{"rank": 5, "element": "f32", "modules": [0]}], [(0, 3)])
    case.adapters.rank_max = 4
    for form in ("two", "fused"):
        got = case.run(form)
        assert got[1:4, 2:26].isnan().all() and torch.equal(got[4:], case.y[4:])


@pytest.mark.parametrize(
    ("dtype", "page_bytes", "vocab"), [(torch.float32, 64, 29), (torch.float16, 512, 80), (torch.bfloat16, 4096, 333)]
)
def test_embedding(dtype: torch.dtype, page_bytes: int, vocab: int) -> None:
    """As with one-hot rows for x."""
    rng = np.random.default_rng(page_bytes)
    width = 2 * vocab // 3
    adapters = GpuAdapters(rng, [(vocab, width)], page_bytes)
    for adapter in MIXED:
        adapters.add(**adapter | {"modules": [0]})
    arena, table = adapters.build()
    tiles = [*tiles_of(0, 1, 18), *tiles_of(1, 21, 2), *tiles_of(2, 23, 1), *tiles_of(3, 24, 2), (4, 999, 26, 27)]
    ids = torch.from_numpy(rng.integers(0, vocab, 30).astype(np.int32))
    hidden = torch.from_numpy(rng.standard_normal((30, width), dtype=np.float32)).to(dtype)
    one_hot = torch.eye(vocab)[ids.long()]
    groups = [(begin, end, adapters.weights[slot] if tag != 999 else None) for slot, tag, begin, end in tiles]
    wanted = ref.lora(hidden.float(), one_hot, [0], [0], groups)
    got, defined = hidden.clone(), hidden.clone()
    work = work_list(tiles, 2)
    lora_embed(got, ids, arena, table.table, *work, LAYER, 0)
    by_definition.lora_embed(defined, ids, arena, table.table, *work, LAYER, 0)
    size = float(wanted.nan_to_num().abs().max())
    for result in (got, defined):
        torch.testing.assert_close(result.float(), wanted, rtol=CLOSE[dtype], atol=CLOSE[dtype] * size, equal_nan=True)
        assert torch.equal(result[[0, 19, 20, 27, 28, 29]], hidden[[0, 19, 20, 27, 28, 29]])
    for slot, tag, begin, _ in tiles[:3]:
        alone = hidden[begin : begin + 1].clone()
        alone_work = work_list([(slot, tag, 0, 1)], 0)
        lora_embed(alone, ids[begin : begin + 1], arena, table.table, *alone_work, LAYER, 0)
        assert torch.equal(alone[0], got[begin])


def test_what_does_not_fit_is_refused() -> None:
    adapters = [{"rank": 2, "element": "f32", "modules": [0]}]
    case = make(1, 33, [20, 12], 256, torch.float32, adapters, [])
    work = work_list([], 1)
    workspace = torch.empty(workspace_shape(*case.x.shape, 2, 2))

    def call(y=case.y, x=case.x, columns=(2, 23), widths=(20, 12), workspace=workspace, modules=(0, 1)) -> None:
        lora(y, x, case.arena, case.table, *work, LAYER, modules, columns, widths, workspace)

    call()
    for bad in (
        {"modules": (0,)},
        {"modules": (0, 1, 1, 1), "columns": (0, 0, 0, 0), "widths": (1, 1, 1, 1)},
        {"y": case.y[:-1]},
        {"widths": (20, 40)},
        {"y": case.y.half()},
        {"x": case.x.double()},
        {"x": case.x.T.contiguous().T},
        {"workspace": workspace[:, :1]},
        {"workspace": workspace[:, :, 1:]},
    ):
        with pytest.raises(ValueError):
            call(**bad)
