"""Quantised products, alone and with adapters and a gate, against their plain torch definitions.

Outputs begin as NaN, so an element that isn't written is seen. A row alone must equal the same row in a batch, bit for
bit. Run once for each instruction level, see test_cpu_levels.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

import blocks
from cpu_ops import RANKS, Adapters, close, delta_of, nan, normal
from lorad import _core
from lorad.kernels.gate_mul import ref as gate_ref
from lorad.kernels.qmatmul import ref as qmatmul_ref


def quantised(
    rng: np.random.Generator, kind: str, rows: int, cols: int, *, fine: bool = False
) -> tuple[_core.QuantMatrix, torch.Tensor]:
    data = blocks.quantize(normal(rng, rows, cols), kind)
    matrix = _core.QuantMatrix(kind, np.ascontiguousarray(data).reshape(-1), rows, cols, fine=fine)
    return matrix, torch.from_numpy(quants.dequantize(data, GGMLQuantizationType[kind]))


@pytest.mark.parametrize("kind", sorted(_core.QUANT_KINDS))
@pytest.mark.parametrize(("rows", "cols"), [(1, 32), (7, 64), (8, 32), (65, 96), (200, 576), (24, 1536)])
@pytest.mark.parametrize("fine", [False, True])
def test_quantised_products(kind: str, rows: int, cols: int, fine: bool) -> None:
    rng = np.random.default_rng(rows)
    columns, _ = blocks.size(kind)
    cols = -(-cols // columns) * columns
    matrix, weight = quantised(rng, kind, rows, cols, fine=fine)
    assert (matrix.kind, matrix.rows, matrix.cols) == (kind, rows, cols)
    whole = nan(rows, cols)
    matrix.dequantize(whole)
    assert np.array_equal(whole, weight.numpy())
    ids = rng.integers(0, rows, 5).astype(np.int32)
    some = nan(5, cols)
    matrix.dequantize_rows(some, ids)
    assert np.array_equal(some, weight.numpy()[ids])
    for n in (0, 1, 2, 3, 4, 5, 8, 33, 150):
        x = normal(rng, n, cols) * np.exp(normal(rng, n, cols))  # outliers
        if n > 2:
            x[1] = 0
        y = nan(n, rows)
        matrix.matmul(y, x)
        wanted = qmatmul_ref.qmatmul(torch.from_numpy(x), weight, fine=fine)
        close(y, wanted, 5e-6)
        exact = (torch.from_numpy(x).double() @ weight.double().T).float()
        bound = qmatmul_ref.rounding_bound(torch.from_numpy(x), weight).numpy()
        assert (np.abs(y - exact.numpy()) <= bound * 1.001 + 1e-4).all()
        for row in range(n):
            alone = nan(1, rows)
            matrix.matmul(alone, x[row : row + 1].copy())
            assert np.array_equal(alone[0], y[row])


@pytest.mark.parametrize("kind", sorted(_core.QUANT_KINDS))
@pytest.mark.parametrize("seed", range(4))
def test_any_block_is_what_gguf_makes_of_it(kind: str, seed: int) -> None:
    """Random bytes, scalars of zero, subnormal, largest: equal bit for bit, the sign of zero too."""
    rng = np.random.default_rng(seed)
    rows, cols = (1, 7, 8, 37)[seed], blocks.size(kind)[0] * (3, 1, 4, 2)[seed]
    for _ in range(20):
        data = blocks.random_blocks(rng, kind, rows, cols)
        wanted = quants.dequantize(data, GGMLQuantizationType[kind])
        matrix = _core.QuantMatrix(kind, data.reshape(-1), rows, cols)
        found = nan(rows, cols)
        matrix.dequantize(found)
        assert np.array_equal(found.view(np.int32), wanted.view(np.int32))
        ids = rng.integers(0, rows, 5).astype(np.int32)
        some = nan(5, cols)
        matrix.dequantize_rows(some, ids)
        assert np.array_equal(some.view(np.int32), wanted[ids].view(np.int32))


@pytest.mark.parametrize("kind", sorted(_core.QUANT_KINDS))
def test_extreme_blocks(kind: str) -> None:
    rng = np.random.default_rng(5)
    # Every quant and sub-scale at an end, and activations at full scale everywhere: 16-bit sums must not saturate.
    columns, size = blocks.size(kind)
    data = np.full((16, 3, size), 0xFF, dtype=np.uint8)
    if kind == "Q8_0":
        data[:] = 0x7F
        data[3::4, :, 2:] = 0x80
    if kind == "Q6_K":
        data[3::4, :, :192] = 0
        data[:, :, 192:208] = 0x7F
    for at, scalar in zip(blocks.HALVES[kind], (0.5, -1.5), strict=False):
        data[:, :, at : at + 2] = np.frombuffer(np.float16(scalar).tobytes(), dtype=np.uint8)
    cols = 3 * columns
    matrix = _core.QuantMatrix(kind, data.reshape(-1), 16, cols)
    weight = nan(16, cols)
    matrix.dequantize(weight)
    x = np.where(rng.random((6, cols)) < 0.5, -3, 3).astype(np.float32)
    x[0], x[1] = 3, -3
    y = nan(6, 16)
    matrix.matmul(y, x)
    close(y, torch.from_numpy(x) @ torch.from_numpy(weight).T, 1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_activation_poisons_its_row_only(bad: float) -> None:
    rng = np.random.default_rng(0)
    for kind in sorted(_core.QUANT_KINDS):
        cols = max(64, blocks.size(kind)[0])
        matrix, _ = quantised(rng, kind, 24, cols)
        x = normal(rng, 6, cols)
        x[2, 40] = bad
        y = nan(6, 24)
        matrix.matmul(y, x)
        assert np.isnan(y[2]).all()
        assert np.isfinite(np.delete(y, 2, 0)).all()


@pytest.mark.parametrize("gate", [None, *sorted(gate_ref.GATES)])
@pytest.mark.parametrize("groups", [2, 9])
def test_a_product_takes_adapters_and_gate_along(groups: int, gate: str | None) -> None:
    """As product, LoRA and gate one after the other; by tiles near it. 9 groups: each is taken by itself."""
    rng = np.random.default_rng(groups)
    rows, cols = 128, 96
    matrix, _ = quantised(rng, "Q4_1", rows, cols)
    adapters = Adapters(rng, [(cols, rows // 2)] * 2, 4096, groups)
    for slot in range(groups):
        adapters.add(int(rng.choice(RANKS)), "bf16", [[0, 1], [0], [1]][slot % 3])
    arena = adapters.build()
    counts = [17, 1, 3, 1, 2, 40, 1, 1, 5][:groups]
    ends = np.cumsum(counts).tolist()
    spans = [(slot, 1000 + slot, end - count, end) for slot, (end, count) in enumerate(zip(ends, counts, strict=True))]
    spans[-1] = (groups - 1, 999, *spans[-1][2:])  # another generation
    n = ends[-1] + 1
    x, y = normal(rng, n, cols), nan(n, rows)
    matrix.matmul(y, x)
    delta = delta_of(arena, adapters, [0, 1], [0, rows // 2], spans, exact=True)
    assert _core.lora(y, x, delta) == [groups - 1]
    if gate is not None:
        wanted = nan(n, rows // 2)
        _core.gate_mul(wanted, y, gate)
        y = wanted
    got = nan(*y.shape)
    assert matrix.matmul(got, x, delta=delta, gate=gate) == [groups - 1]
    assert np.array_equal(got, y, equal_nan=True)
    if _core.cpu_features()["level"] == "amx":
        fast = delta_of(arena, adapters, [0, 1], [0, rows // 2], spans)
        assert matrix.matmul(got, x, tiles=True, delta=fast, gate=gate) == [groups - 1]
        assert np.isnan(got[n - 1 - counts[-1] : n - 1]).all()
        close(np.nan_to_num(got), torch.from_numpy(np.nan_to_num(y)), 2e-2)


def test_a_gate_needs_whole_panels_and_a_name() -> None:
    matrix, _ = quantised(np.random.default_rng(0), "Q4_1", 96, 64)
    with pytest.raises(ValueError, match="rows in multiples of 64: rows, got 96"):
        matrix.matmul(nan(2, 48), nan(2, 64), gate="silu")
    with pytest.raises(ValueError, match='gate: silu or gelu_tanh expected, got "relu"'):
        matrix.matmul(nan(2, 48), nan(2, 64), gate="relu")


def test_quantised_shapes_are_checked() -> None:
    data = np.zeros(20 * 6, dtype=np.uint8)
    _core.QuantMatrix("Q4_1", data, 3, 64)
    for kind, rows, cols in [("Q4_1", 3, 63), ("Q4_1", 0, 64), ("Q4_1", 4, 64), ("Q8_0", 3, 64), ("Q9", 3, 64)]:
        with pytest.raises(ValueError):
            _core.QuantMatrix(kind, data, rows, cols)
    for kind in ("Q4_K", "Q5_K", "Q6_K"):
        with pytest.raises(ValueError, match="cols must be a positive multiple of 256, got 64"):
            _core.QuantMatrix(kind, data, 3, 64)
    matrix = _core.QuantMatrix("Q4_1", data, 3, 64)
    with pytest.raises(ValueError):
        matrix.matmul(nan(2, 3), nan(3, 64))
    with pytest.raises(ValueError):
        matrix.dequantize_rows(nan(1, 64), np.array([3], dtype=np.int32))
