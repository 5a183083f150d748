"""Four-bit formats of files in the form that kernels read: each weight is the file's, bit for bit."""

from __future__ import annotations

import pytest
import torch

from four_bits import AWQ_ORDER, GPTQ_ORDER, Both, Grouped, of_awq, of_gguf, of_gptq, words
from lorad.kernels.int4 import pack
from lorad.kernels.int4.weight import stack


def same(both: Both) -> bool:
    return torch.equal(pack.unpack(both.packed), both.floats)


@pytest.mark.parametrize(("kind", "inputs"), [("Q4_0", 32), ("Q4_0", 576), ("Q4_1", 96), ("Q4_K", 256), ("Q4_K", 768)])
def test_blocks_of_gguf(kind: str, inputs: int) -> None:
    random = torch.Generator().manual_seed(inputs)
    both = of_gguf(random, kind, 37, inputs)
    assert same(both)
    assert both.packed.scales.dtype == (torch.float32 if kind == "Q4_K" else torch.float16)


def test_scales_that_float16_cannot_hold_are_kept_whole() -> None:
    blocks = torch.full((1, 18), 0x77, dtype=torch.uint8)
    blocks[0, :2] = torch.tensor([60000.0]).half().view(torch.uint8)
    packed = pack.from_gguf("Q4_0", blocks)
    assert packed.scales.dtype == torch.float32
    assert (pack.unpack(packed) == -60000).all()


@pytest.mark.parametrize(("inputs", "group"), [(128, 32), (256, 128), (320, 64), (72, 0), (192, 128)])
@pytest.mark.parametrize("v2", [False, True])
def test_gptq(inputs: int, group: int, v2: bool) -> None:
    random = torch.Generator().manual_seed(inputs)
    both = of_gptq(random, 40, inputs, group, v2=v2)
    assert same(both)


def test_gptq_with_its_zeros_in_the_middle_is_held_in_16_bits() -> None:
    qweight = torch.randint(-(2**31), 2**31, (16, 8), generator=torch.Generator().manual_seed(1)).int()
    qzeros = torch.full((4, 1), 0x77777777, dtype=torch.int32)
    scales = torch.rand(4, 8).half()
    packed = pack.from_gptq(qweight, qzeros, scales, 32)
    assert packed.scales.dtype == torch.float16
    assert torch.equal(packed.scales, torch.stack([scales, 8 * scales], -1))


def test_gptq_in_an_order_of_its_own_is_refused() -> None:
    random = torch.Generator().manual_seed(2)
    grouped = Grouped.of(random, 8, 64, 32, 1)
    qweight, qzeros = words(grouped.codes.T, GPTQ_ORDER).T, words(grouped.zeros - 1, GPTQ_ORDER)
    with pytest.raises(ValueError, match="desc_act"):
        pack.from_gptq(qweight, qzeros, grouped.scales, 32, torch.arange(64) % 2)


@pytest.mark.parametrize(("inputs", "group"), [(128, 32), (256, 128), (96, 0)])
def test_awq(inputs: int, group: int) -> None:
    assert same(of_awq(torch.Generator().manual_seed(group), 40, inputs, group))


def test_parts_that_do_not_belong_together_are_refused() -> None:
    random = torch.Generator().manual_seed(3)
    grouped = Grouped.of(random, 16, 64, 16, 0)
    arguments = [words(part, AWQ_ORDER) for part in (grouped.codes, grouped.zeros)]
    with pytest.raises(ValueError, match="groups of 16"):
        pack.from_awq(*arguments, grouped.scales, 16)
    with pytest.raises(ValueError, match="zeros"):
        pack.from_awq(*arguments, grouped.scales, 32)
    with pytest.raises(ValueError, match="Q8_0"):
        pack.from_gguf("Q8_0", torch.zeros(1, 34, dtype=torch.uint8))


def test_weights_over_one_input_are_stacked() -> None:
    random = torch.Generator().manual_seed(4)
    parts = [of_gguf(random, kind, outputs, 256) for kind, outputs in (("Q4_0", 3), ("Q4_K", 5), ("Q4_1", 1))]
    stacked = stack([part.packed for part in parts])
    assert same(Both(stacked, torch.cat([part.floats for part in parts])))
    assert stack([parts[0].packed, parts[2].packed]).scales.dtype == torch.float16
    with pytest.raises(ValueError, match="differ"):
        stack([parts[0].packed, of_awq(random, 8, 256, 64).packed])
