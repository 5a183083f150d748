"""Products with four-bit weights as a GPU computes them, under Triton's interpreter, against their definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import interpreted  # noqa: F401  # before Triton
import interpreter_repairs  # noqa: F401
from definitions import int4 as definition
from four_bits import Both, of_awq, of_gguf, of_gptq
from lorad.kernels.int4.kernel import int4_matmul, workspace_shape
from lorad.kernels.int4.tiles import FEW, parts_of
from lorad.kernels.int4.weight import Int4Weight
from products import close, fenced, normal, sum_in_order, untouched_behind, unwritten

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# (format, out, in, group)
WEIGHTS = [
    ("Q4_0", 70, 96, 32),
    ("Q4_0", 1, 1088, 32),
    ("Q4_1", 33, 1056, 32),
    ("Q4_K", 65, 1280, 32),
    ("gptq", 136, 192, 128),
    ("gptq", 64, 72, 0),
    ("awq", 40, 1184, 64),
]


def made(random: torch.Generator, form: str, outputs: int, inputs: int, group: int) -> Both:
    if form in ("gptq", "awq"):
        return (of_gptq if form == "gptq" else of_awq)(random, outputs, inputs, group)
    return of_gguf(random, form, outputs, inputs)


def multiplied(x: Tensor, weight: Int4Weight, bias: Tensor | None = None, of_y: torch.dtype = F32) -> Tensor:
    """By the kernel, which is seen to write y and the workspace alone."""
    y = unwritten(len(x), weight.outputs, of_y)
    shape = workspace_shape(len(x), weight.outputs, weight.inputs)
    workspace = unwritten(shape[0] * shape[1], shape[2], F32)
    int4_matmul(y, x, weight, bias, workspace)
    assert untouched_behind(y) and untouched_behind(workspace)
    return y


@pytest.mark.parametrize("weight", WEIGHTS, ids=lambda weight: "-".join(map(str, weight)))
@pytest.mark.parametrize(
    ("n", "of", "of_y", "of_bias"),
    [(1, F32, F32, None), (19, F32, F32, F16), (66, BF16, BF16, BF16), (3, BF16, F32, F32), (40, F16, F16, None)],
)
def test_products_are_those_of_the_definition(n, of, of_y, of_bias, weight) -> None:
    random = torch.Generator().manual_seed(n + weight[2])
    packed, floats = made(random, *weight)
    x = fenced(normal(random, n, packed.inputs).to(of))
    bias = None if of_bias is None else fenced(normal(random, packed.outputs).to(of_bias))
    y, wanted = multiplied(x, packed, bias, of_y), unwritten(n, packed.outputs, F32)
    definition.int4_matmul(wanted, x, packed, bias, torch.empty(0))
    close(y, wanted)
    if of == F32:
        exact = x.double() @ floats.double().T + (0 if bias is None else bias.double())
        close(y, exact.float())


@pytest.mark.parametrize("of", [F32, BF16])
def test_a_row_has_the_same_bits_alone_and_in_company(monkeypatch: pytest.MonkeyPatch, of: torch.dtype) -> None:
    sum_in_order(monkeypatch)
    random = torch.Generator().manual_seed(7)
    packed = of_gguf(random, "Q4_0", 70, 1120).packed
    x, bias, n = normal(random, 70, 1120).to(of), normal(random, 70), 70
    assert parts_of(70, 1120).number == 2 and n > FEW
    together = multiplied(x, packed, bias)
    for begin, end in [(0, 1), (69, 70), (20, 22), (3, 20), (5, 69)]:
        assert torch.equal(multiplied(x[begin:end].clone(), packed, bias), together[begin:end])


def test_a_row_of_nan_stays_by_itself() -> None:
    random = torch.Generator().manual_seed(8)
    packed, x = of_gguf(random, "Q4_1", 40, 1056).packed, normal(random, 20, 1056)
    clean = multiplied(x, packed)
    x[6] = torch.nan
    y = multiplied(x, packed)
    assert y[6].isnan().all()
    assert torch.equal(torch.cat([y[:6], y[7:]]), torch.cat([clean[:6], clean[7:]]))


@pytest.mark.parametrize(
    ("outputs", "inputs", "number"),
    [(4096, 4096, 5), (4096, 14336, 5), (6144, 4096, 3), (28672, 4096, 1), (960, 576, 1), (576, 1536, 3), (1, 64, 1)],
)
def test_parts_hold_all_of_the_input(outputs: int, inputs: int, number: int) -> None:
    parts = parts_of(outputs, inputs)
    assert parts.number == number
    assert (parts.number - 1) * parts.units < -(-inputs // 64) <= parts.number * parts.units


def test_operands_that_do_not_fit_are_refused() -> None:
    packed = of_gguf(torch.Generator(), "Q4_0", 5, 1088).packed
    x, y, workspace = torch.zeros(2, 1088), torch.zeros(2, 5), torch.zeros(workspace_shape(2, 5, 1088))
    for wrong in (
        (y, x[:, :96].clone(), packed, None, workspace),
        (y.bfloat16(), x, packed, None, workspace),
        (y, x, packed._replace(inputs=1000), None, workspace),
        (y, x, packed._replace(group=48), None, workspace),
        (y, x, packed._replace(scales=packed.scales[:-1]), None, workspace),
        (y, x, packed, torch.zeros(6), workspace),
        (y, x, packed, None, workspace[1:]),
        (y, x, packed, None, workspace.half()),
    ):
        with pytest.raises(ValueError, match=r"is \[|is of|contiguous|groups of|workspace"):
            int4_matmul(*wrong)
