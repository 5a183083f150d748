"""Norms and gates as a GPU computes them, under Triton's interpreter, against their definitions.

Outputs begin as NaN. A row alone must equal the same row among others, bit for bit.
"""

from __future__ import annotations

import interpreted  # isort: skip  # noqa: F401  before Triton

import pytest
import torch
from torch import Tensor

import interpreter_repairs  # noqa: F401
from definitions import gate_mul as gate_definition
from definitions import rms_norm as norm_definition
from lorad.kernels.gate_mul import kernel as gate
from lorad.kernels.gate_mul.ref import GATES
from lorad.kernels.rms_norm import kernel as norm
from paged import close, normal

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ROUNDING = {F32: 2e-6, F16: 1e-3, BF16: 8e-3}


def nan(like: Tensor, *shape: int) -> Tensor:
    return torch.full(shape, torch.nan, dtype=like.dtype)


@pytest.mark.parametrize("width", [1, 7, 64, 100, 576, 4096, 16384])
@pytest.mark.parametrize(("of", "of_weight"), [(F32, F32), (F16, F32), (BF16, F32), (BF16, BF16)])
def test_norms(width: int, of: torch.dtype, of_weight: torch.dtype) -> None:
    random = torch.Generator().manual_seed(width)
    x, residual = ((normal(random, 3, width) * size).to(of) for size in (3, 1))
    weight = normal(random, width).to(of_weight)
    got, wanted = nan(x, 3, width), nan(x, 3, width)
    norm.rms_norm(got, x, weight, 1e-5)
    norm_definition.rms_norm(wanted, x, weight, 1e-5)
    close(got, wanted, ROUNDING[of])
    alone = nan(x, 1, width)
    norm.rms_norm(alone, x[2:], weight, 1e-5)
    assert torch.equal(alone, got[2:])

    sums, wanted_sums = residual.clone(), residual.clone()
    total, wanted = nan(x, 3, width), nan(x, 3, width)
    norm.add_rms_norm(total, sums, x, weight, 1e-5)
    norm_definition.add_rms_norm(wanted, wanted_sums, x, weight, 1e-5)
    assert torch.equal(sums, wanted_sums)
    close(total, wanted, ROUNDING[of])
    # The norm is that of the sum as it's stored, and may take its input's place.
    norm.rms_norm(sums, sums, weight, 1e-5)
    assert torch.equal(sums, total)


def test_a_sum_of_two_types_is_stored_in_the_residuals() -> None:
    random = torch.Generator().manual_seed(1)
    residual, x, weight = normal(random, 2, 9), normal(random, 2, 9).bfloat16(), normal(random, 9)
    wanted, out = residual + x.float(), nan(x, 2, 9)
    norm.add_rms_norm(out, residual, x, weight, 1e-5)
    assert torch.equal(residual, wanted)


def test_rows_of_zeros_and_of_nan() -> None:
    x = torch.zeros(3, 20)
    x[1, 4] = torch.nan
    out = nan(x, 3, 20)
    norm.rms_norm(out, x, torch.ones(20), 1e-5)
    assert out[1].isnan().all() and torch.equal(out[::2], x[::2])
    norm.rms_norm(out[:0], x[:0], torch.ones(20), 1e-5)


def test_norms_that_do_not_fit_are_refused() -> None:
    x = torch.zeros(2, 20)
    with pytest.raises(ValueError, match="weight is \\[19\\], not \\[20\\]"):
        norm.rms_norm(x, x, torch.ones(19), 1e-5)
    with pytest.raises(ValueError, match="residual is \\[1, 20\\], not \\[2, 20\\]"):
        norm.add_rms_norm(x, x[:1], x, torch.ones(20), 1e-5)
    with pytest.raises(ValueError, match="of 16385 are wider than 16384"):
        norm.rms_norm(torch.zeros(1, 16385), torch.zeros(1, 16385), torch.ones(16385), 1e-5)
    with pytest.raises(ValueError, match="out isn't contiguous"):
        norm.rms_norm(torch.zeros(20, 2).T, x, torch.ones(20), 1e-5)


@pytest.mark.parametrize("name", sorted(GATES))
@pytest.mark.parametrize(("width", "of"), [(1, F32), (9, F16), (100, BF16), (1024, F32), (1500, F32), (1500, BF16)])
def test_gates(width: int, of: torch.dtype, name: str) -> None:
    random = torch.Generator().manual_seed(width)
    gate_up = (normal(random, 4, 2 * width) * 4).to(of)
    got, wanted = nan(gate_up, 4, width), nan(gate_up, 4, width)
    gate.gate_mul(got, gate_up, name)
    gate_definition.gate_mul(wanted, gate_up, name)
    close(got, wanted, ROUNDING[of])
    alone = nan(gate_up, 1, width)
    gate.gate_mul(alone, gate_up[3:], name)
    assert torch.equal(alone, got[3:])


@pytest.mark.parametrize("name", sorted(GATES))
def test_gates_at_both_ends(name: str) -> None:
    z = torch.tensor([-3e38, -1e13, -200, -88, -20, -5, -0.0, 0.0, 5, 20, 88, 200, 1e13, 3e38])
    out = nan(z, 1, len(z))
    gate.gate_mul(out, torch.cat([z, torch.ones_like(z)])[None], name)
    exact = GATES[name](z.double()).float()
    # Digits stay where 1 + tanh has none left: relative, not only to the largest. Below -20 they're about 0.
    near = z.abs() <= 5
    torch.testing.assert_close(out[0, near], exact[near], rtol=3e-6, atol=0)
    torch.testing.assert_close(out[0, ~near], exact[~near], rtol=3e-6, atol=1e-7)


def test_gates_of_nan_stay_their_own() -> None:
    gate_up = torch.ones(2, 20)
    gate_up[0, 3] = gate_up[1, 14] = torch.nan
    out = nan(gate_up, 2, 10)
    gate.gate_mul(out, gate_up, "silu")
    assert out.isnan().nonzero().tolist() == [[0, 3], [1, 4]]


def test_gates_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="gate is 'relu'"):
        gate.gate_mul(torch.zeros(2, 5), torch.zeros(2, 10), "relu")
    with pytest.raises(ValueError, match="gate_up is \\[2, 9\\], not \\[2, 10\\]"):
        gate.gate_mul(torch.zeros(2, 5), torch.zeros(2, 9), "silu")
