"""Products as a GPU computes them for `--deterministic`, under Triton's interpreter, against their definition."""

from __future__ import annotations

import pytest
import torch

import interpreted  # noqa: F401  # before Triton
import interpreter_repairs  # noqa: F401
from definitions import matmul as definition
from lorad.kernels.matmul.kernel import matmul
from products import close, fenced, normal, sum_in_order, untouched_behind, unwritten

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("n", "inputs", "outputs", "of", "of_y", "of_bias"),
    [
        (1, 64, 64, F32, F32, None),
        (1, 1, 1, F32, F32, F32),
        (3, 100, 33, F32, F32, F32),
        (17, 31, 200, F32, F32, None),
        (130, 65, 70, F32, F32, F16),
        (1, 576, 65, BF16, BF16, None),
        (16, 129, 64, BF16, F32, BF16),
        (65, 200, 129, BF16, BF16, F32),
        (129, 70, 1100, BF16, F32, None),
        (5, 72, 130, F16, F16, F16),
        (300, 40, 140, F16, F32, None),
    ],
)
def test_products_are_those_of_the_definition(n, inputs, outputs, of, of_y, of_bias) -> None:
    random = torch.Generator().manual_seed(n * outputs)
    x, weight = fenced(normal(random, n, inputs).to(of)), fenced(normal(random, outputs, inputs).to(of))
    bias = None if of_bias is None else fenced(normal(random, outputs).to(of_bias))
    y, wanted = unwritten(n, outputs, of_y), unwritten(n, outputs, F32)
    matmul(y, x, weight, bias)
    definition.matmul(wanted, x, weight, bias)
    close(y, wanted)
    assert untouched_behind(y)


@pytest.mark.parametrize("of", [F32, BF16, F16])
def test_a_row_has_the_same_bits_alone_and_in_company(monkeypatch: pytest.MonkeyPatch, of: torch.dtype) -> None:
    sum_in_order(monkeypatch)
    random = torch.Generator().manual_seed(7)
    inputs, outputs = 200, 150
    x, weight, bias = (normal(random, *shape).to(of) for shape in ((140, inputs), (outputs, inputs), (outputs,)))
    together = unwritten(140, outputs, F32)
    matmul(together, x, weight, bias)
    for begin, end in [(0, 1), (1, 2), (139, 140), (20, 22), (3, 20), (70, 134)]:
        y = unwritten(end - begin, outputs, F32)
        matmul(y, x[begin:end].clone(), weight, bias)
        assert torch.equal(y, together[begin:end])


def test_a_row_of_nan_stays_by_itself() -> None:
    random = torch.Generator().manual_seed(8)
    x, weight = normal(random, 20, 70), normal(random, 40, 70)
    clean, y = unwritten(20, 40, F32), unwritten(20, 40, F32)
    matmul(clean, x, weight, None)
    x[6] = torch.nan
    matmul(y, x, weight, None)
    assert y[6].isnan().all()
    assert torch.equal(torch.cat([y[:6], y[7:]]), torch.cat([clean[:6], clean[7:]]))


def test_operands_that_do_not_fit_are_refused() -> None:
    x, weight, y = torch.zeros(2, 32), torch.zeros(4, 32), torch.zeros(2, 4)
    for wrong in (
        (y, x, torch.zeros(4, 31), None),
        (y, x, weight.half(), None),
        (y.half(), x, weight, None),
        (torch.zeros(4, 2).T, x, weight, None),
        (y, x, weight, torch.zeros(5)),
    ):
        with pytest.raises(ValueError, match=r"is \[|is of|contiguous"):
            matmul(*wrong)
