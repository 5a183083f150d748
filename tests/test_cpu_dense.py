"""Norms, gates and rows of tables against their plain torch definitions.

Outputs begin as NaN, so an element that isn't written is seen. A row alone must equal the same row in a batch, bit for
bit. Run once for each instruction level, see test_cpu_levels.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cpu_ops import TORCH, close, nan, normal
from lorad import _core
from lorad.kernels.gate_mul import ref as gate_ref
from lorad.kernels.rms_norm import ref as norm_ref


@pytest.mark.parametrize("hidden", [1, 7, 32, 100, 576])
def test_norms(hidden: int) -> None:
    rng = np.random.default_rng(hidden)
    for n in (0, 1, 5):
        x, residual, weight = normal(rng, n, hidden) * 3, normal(rng, n, hidden), normal(rng, hidden)
        out = nan(n, hidden)
        _core.rms_norm(out, x, weight, 1e-5)
        wanted = norm_ref.rms_norm(torch.from_numpy(x), torch.from_numpy(weight), 1e-5)
        close(out, wanted, 1e-6)
        same = x.copy()
        _core.rms_norm(same, same, weight, 1e-5)
        assert np.array_equal(same, out)
        out, total = nan(n, hidden), residual.copy()
        _core.add_rms_norm(out, total, x, weight, 1e-5)
        wanted, sums = norm_ref.add_rms_norm(*map(torch.from_numpy, (residual, x, weight)), 1e-5)
        close(out, wanted, 1e-6)
        assert np.array_equal(total, sums.numpy())


@pytest.mark.parametrize("gate", sorted(gate_ref.GATES))
@pytest.mark.parametrize("width", [1, 9, 64, 1536])
def test_gated_activations(width: int, gate: str) -> None:
    rng = np.random.default_rng(width)
    gate_up = normal(rng, 9, 2 * width) * 4
    gate_up[0, 0], gate_up[1, 0] = -200, 200
    out = nan(9, width)
    _core.gate_mul(out, gate_up, gate)
    # torch's 1 + tanh loses the digits of large negative gates, ours doesn't: there the values are about 0.
    tolerance = {"rtol": 3e-6, "atol": 1e-30} if gate == "silu" else {"rtol": 3e-6, "atol": 3e-6}
    np.testing.assert_allclose(out, gate_ref.gate_mul(torch.from_numpy(gate_up), gate).numpy(), **tolerance)
    gate_up[2] = np.nan
    _core.gate_mul(out, gate_up, gate)
    assert np.isnan(out[2]).all() and np.isfinite(out[3]).all()


def test_rows_by_index() -> None:
    rng = np.random.default_rng(0)
    table, ids = normal(rng, 30, 21), rng.integers(0, 30, 11).astype(np.int32)
    for element, dtype in TORCH.items():
        typed = torch.from_numpy(table).to(dtype)
        given = table if element == "f32" else typed.view(torch.int16).numpy().view(np.uint16)
        out = nan(11, 21)
        _core.embed(out, given, ids, element)
        assert np.array_equal(out, typed.float().numpy()[ids])
    out = nan(11, 21)
    _core.gather_rows(out, table, ids)
    assert np.array_equal(out, table[ids])
    with pytest.raises(ValueError, match="out of range"):
        _core.gather_rows(out, table, ids + 20)
