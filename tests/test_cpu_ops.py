"""The CPU operators against their plain torch definitions in kernels/, on shapes that don't divide.

Outputs begin as NaN, so an element that isn't written is seen. A row alone must equal the same row in a batch, bit for
bit. The whole file runs once for each instruction level: LORAD_CPU is read when the extension first computes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

import blocks
from lorad import _core
from lorad.kernels.attention import ref as attention_ref
from lorad.kernels.gate_mul import ref as gate_ref
from lorad.kernels.lora import ref as lora_ref
from lorad.kernels.qmatmul import ref as qmatmul_ref
from lorad.kernels.rms_norm import ref as norm_ref
from lorad.kernels.rope import ref as rope_ref
from lorad.kernels.sample import ref as sample_ref

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
RANKS = [1, 2, 3, 7, 8, 9, 16, 31, 64, 128, 256]


def nan(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, dtype=np.float32)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def close(got: np.ndarray, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    size = float(np.nanmax(np.abs(wanted.numpy()), initial=1e-30))
    np.testing.assert_allclose(got, wanted.numpy(), rtol=tolerance, atol=tolerance * size)


@pytest.mark.skipif("LORAD_CPU" in os.environ, reason="this is the run for another level")
@pytest.mark.parametrize("level", _core.cpu_levels()[:-1])
def test_lesser_levels_pass_too(level: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "LORAD_CPU": level}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_level_is_the_one_asked_for() -> None:
    assert _core.cpu_features()["level"] == os.environ.get("LORAD_CPU", _core.cpu_features()["level"])


# LoRA


class Adapters:
    """Random adapters in a small arena of small pages, and the same weights for the definition."""

    def __init__(self, rng: np.random.Generator, shapes: list[tuple[int, int]], page_bytes: int, count: int) -> None:
        """`shapes`: (in, out) of each module; layer 1 of 3 is the one used."""
        self.rng, self.shapes, self.page_bytes = rng, shapes, page_bytes
        self.table = _core.AdapterTable(count, page_bytes, 3, len(shapes))
        self.pages: list[np.ndarray] = []
        self.weights: list[Mapping[int, lora_ref.Weights]] = []
        self.placed: list[tuple[int, _core.AdapterLayout]] = []

    def add(self, rank: int, element: str, modules: list[int]) -> None:
        shape = [(layer, m, *self.shapes[m], rank, 0.5 + m) for layer in (0, 1) for m in modules or [0] if layer or m]
        if not any(entry[0] == 1 for entry in shape):
            shape.append((1, 0, *self.shapes[0], rank, 0.5))
        layout = _core.AdapterLayout(self.page_bytes, element, shape)
        image = self.rng.integers(0, 256, (layout.pages, self.page_bytes), dtype=np.uint8)
        weights = {}
        for layer, module, inputs, outputs, _, scale in shape:
            a = torch.from_numpy(normal(self.rng, rank, inputs) / inputs**0.5).to(TORCH[element])
            b = torch.from_numpy(normal(self.rng, outputs, rank) / rank**0.5).to(TORCH[element])
            layout.pack(image, layer, module, raw(a), raw(b))
            if layer == 1:
                weights[module] = lora_ref.Weights(a, b, scale)
        self.placed.append((sum(len(page) for page in self.pages), layout))
        self.pages.append(image)
        self.weights.append(weights)

    def build(self) -> np.ndarray:
        """Scatters the pages over an arena and fills the table; slot i holds adapter i under tag 1000 + i."""
        flat = np.concatenate(self.pages)
        place = self.rng.permutation(len(flat) + 3)[: len(flat)].astype(np.int32)
        arena = self.rng.integers(0, 256, (len(flat) + 3, self.page_bytes), dtype=np.uint8)
        arena[place] = flat
        for slot, (first, layout) in enumerate(self.placed):
            self.table.set(slot, 1000 + slot, layout, place[first : first + layout.pages])
        return arena


def run_lora(y, x, arena, adapters, modules, offsets, groups, *, exact=False) -> list[int]:
    return _core.lora(y, x, delta_of(arena, adapters, modules, offsets, groups, exact=exact))


def delta_of(arena, adapters, modules, offsets, groups, *, exact=False) -> _core.Delta:
    columns = [np.array(column, dtype=np.int32) for column in zip(*groups, strict=True)]
    return _core.StepAdapters(arena, adapters.table, *columns, exact=exact), 1, modules, offsets


@pytest.mark.parametrize("seed", range(24))
def test_lora_over_mixed_adapters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = int(rng.choice([5, 24, 67, 576]))
    outputs = [int(rng.choice([3, 16, 40, 192, 201])) for _ in range(3)]
    page_bytes = int(rng.choice([64, 192, 1024, 1 << 16])) if inputs < 100 else 1 << 14
    adapters = Adapters(rng, [(inputs, out) for out in outputs], page_bytes, 8)
    for _ in range(8):
        modules = [m for m in range(3) if rng.random() < 0.7]
        adapters.add(int(rng.choice(RANKS)), str(rng.choice(list(TORCH))), modules)
    arena = adapters.build()
    offsets = [2, 2 + outputs[0], 7 + outputs[0] + outputs[1]]
    width = offsets[2] + outputs[2] + 1
    groups, at = [], int(rng.integers(0, 2))
    for slot in rng.permutation(8)[: rng.integers(1, 9)].tolist():
        tokens = int(rng.choice([0, 1, 1, 1, 2, 3, 5, 13, 70]))
        groups.append((slot, 1000 + slot, at, at + tokens))
        at += tokens
    n = at + int(rng.integers(0, 3))
    x, y = normal(rng, n, inputs), normal(rng, n, width)
    wanted = lora_ref.lora(
        torch.from_numpy(y),
        torch.from_numpy(x),
        [0, 1, 2],
        offsets,
        [(begin, end, adapters.weights[slot]) for slot, _, begin, end in groups],
    )
    fast = y.copy()
    assert run_lora(fast, x, arena, adapters, [0, 1, 2], offsets, groups) == []
    close(fast, wanted)
    got = y.copy()
    assert run_lora(got, x, arena, adapters, [0, 1, 2], offsets, groups, exact=True) == []
    close(got, wanted)
    for slot, tag, begin, end in groups:
        for token in range(begin, end):
            alone = y[token : token + 1].copy()
            one = [(slot, tag, 0, 1)]
            run_lora(alone, x[token : token + 1].copy(), arena, adapters, [0, 1, 2], offsets, one, exact=True)
            assert np.array_equal(alone[0], got[token])
    untouched = np.ones(n, dtype=bool)
    for _, _, begin, end in groups:
        untouched[begin:end] = False
    assert np.array_equal(got[untouched], y[untouched])


def test_every_rank_alone() -> None:
    rng = np.random.default_rng(7)
    adapters = Adapters(rng, [(96, 80)], 4096, len(RANKS))
    for rank in RANKS:
        adapters.add(rank, "bf16", [0])
    arena = adapters.build()
    for slot in range(len(RANKS)):
        for tokens in (1, 2, 3, 4, 5, 6, 7, 33):
            x, y = normal(rng, tokens, 96), normal(rng, tokens, 80)
            groups = [(0, tokens, adapters.weights[slot])]
            wanted = lora_ref.lora(torch.from_numpy(y), torch.from_numpy(x), [0], [0], groups)
            run_lora(y, x, arena, adapters, [0], [0], [(slot, 1000 + slot, 0, tokens)])
            close(y, wanted)


def test_a_wrong_tag_poisons_its_rows_only() -> None:
    rng = np.random.default_rng(1)
    adapters = Adapters(rng, [(32, 16)], 1024, 3)
    for _ in range(2):
        adapters.add(4, "bf16", [0])
    arena = adapters.build()
    x, y = normal(rng, 5, 32), normal(rng, 5, 20)
    got = y.copy()
    # Slot 0 with the tag of another generation, slot 2 empty.
    assert run_lora(got, x, arena, adapters, [0], [1], [(0, 999, 0, 2), (1, 1001, 2, 3), (2, 5, 3, 4)]) == [0, 2]
    assert np.isnan(got[:2]).all() and np.isnan(got[3]).all()
    assert np.isfinite(got[2]).all() and not np.array_equal(got[2], y[2])
    assert np.array_equal(got[4], y[4])
    adapters.table.clear(1)
    assert run_lora(got, x, arena, adapters, [0], [1], [(1, 1001, 2, 3)]) == [0]


def test_lora_refuses_what_does_not_fit() -> None:
    rng = np.random.default_rng(1)
    adapters = Adapters(rng, [(32, 16)], 1024, 2)
    adapters.add(4, "bf16", [0])
    arena = adapters.build()
    x, y = normal(rng, 4, 32), normal(rng, 4, 16)
    good = [(0, 1000, 0, 4)]
    for bad in (
        lambda: run_lora(y, x, arena, adapters, [0], [1], good),
        lambda: run_lora(y, x[:3].copy(), arena, adapters, [0], [0], good),
        lambda: run_lora(y, x, arena, adapters, [0], [0], [(0, 1000, 0, 5)]),
        lambda: run_lora(y, x, arena, adapters, [0], [0], [(0, 1000, 2, 4), (0, 1000, 0, 2)]),
        lambda: run_lora(y, x, arena, adapters, [0], [0], [(2, 1000, 0, 4)]),
        lambda: run_lora(y, x, arena[:1], adapters, [0], [0], good),
        lambda: run_lora(y, normal(rng, 4, 31), arena, adapters, [0], [0], good),
        lambda: run_lora(y.astype(np.float64), x, arena, adapters, [0], [0], good),
        lambda: run_lora(y[:, ::2], x, arena, adapters, [0], [0], good),
    ):
        with pytest.raises((ValueError, TypeError)):
            bad()
    run_lora(y, x, arena, adapters, [0], [0], good)


# Attention, with rope and the page writes before it


class Cache:
    """A line of pages for each row, filled through rope_write."""

    def __init__(self, rng: np.random.Generator, geometry: tuple, heads: int, lengths: list[int]) -> None:
        self.layers, self.kv_heads, self.page_tokens, self.head_dim, self.element = self.geometry = geometry
        self.rng, self.heads, self.lengths, self.layer = rng, heads, lengths, geometry[0] - 1
        self.norms: tuple | None = None
        """(weight of q, weight of k, eps), if heads are normed."""
        columns = max(-(-length // self.page_tokens) for length in lengths) + 1
        pages = len(lengths) * columns
        used = self.layers * 2 * self.kv_heads * self.page_tokens * self.head_dim * TORCH[self.element].itemsize
        self.arena = np.full((pages, -(-used // 64) * 64), 0xFF, dtype=np.uint8)  # NaN in every type
        self.table = rng.permutation(pages).astype(np.int32).reshape(len(lengths), columns)
        angles = torch.outer(torch.arange(max(lengths)).float(), torch.rand(self.head_dim // 2) * 2)
        self.cos, self.sin = angles.cos().numpy(), angles.sin().numpy()
        width = (heads + 2 * self.kv_heads) * self.head_dim
        self.qkv = [normal(rng, length, width) for length in lengths]

    def write(self, row: int, begin: int, end: int) -> np.ndarray:
        """Rotates and writes tokens begin..end of a row; returns the rotated buffer."""
        qkv = self.qkv[row][begin:end].copy()
        position = np.arange(begin, end, dtype=np.int32)
        line = np.full(end - begin, row, dtype=np.int32)
        args = (self.cos, self.sin, position, line, self.table, self.arena, self.geometry, self.layer)
        _core.rope_write(qkv, *args, self.norms)
        return qkv

    def read(self, row: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        return rope_ref.read_pages(
            torch.from_numpy(self.arena),
            torch.from_numpy(self.table[row].astype(np.int64)),
            tokens,
            self.layer,
            *self.geometry[:4],
            TORCH[self.element],
        )

    def attend(
        self, q: np.ndarray, rows: list[int], starts: list[int], offsets: list[int], window: int | None = None
    ) -> np.ndarray:
        out = nan(len(q), self.heads * self.head_dim)
        line, start, offset = (np.array(v, dtype=np.int32) for v in (rows, starts, offsets))
        args = (self.arena, self.geometry, self.layer, self.table, line, start, offset, self.head_dim**-0.5)
        _core.paged_attention(out, q, *args, window)
        return out


GEOMETRIES = [
    ((2, 3, 16, 64, "f16"), 9),
    ((1, 1, 16, 64, "bf16"), 4),
    ((2, 2, 8, 40, "f32"), 2),
    ((1, 2, 24, 24, "f16"), 26),
    ((1, 2, 5, 12, "bf16"), 6),
    ((1, 1, 64, 128, "f32"), 8),
    ((1, 3, 128, 16, "f16"), 3),
]


@pytest.mark.parametrize("window", [None, 1, 5, 64, 100])
@pytest.mark.parametrize(("geometry", "heads"), GEOMETRIES)
def test_attention_over_pages(geometry: tuple, heads: int, window: int | None) -> None:
    rng = np.random.default_rng(heads)
    # (tokens before the step, tokens of the step)
    rows = [(0, 1), (0, 37), (5, 1), (63, 1), (64, 1), (65, 3), (200, 1), (0, 130), (129, 70), (17, 0)]
    cache = Cache(rng, geometry, heads, [start + new for start, new in rows])
    kv_heads, head_dim, element = geometry[1], geometry[3], geometry[4]
    fused, keys, values, offsets = [], [], [], [0]
    for row, (start, new) in enumerate(rows):
        if start:
            cache.write(row, 0, start)
        if new:
            fused.append(cache.write(row, start, start + new))
        k, v = cache.read(row, start + new)
        position = torch.arange(start + new)
        raw_k = torch.from_numpy(cache.qkv[row]).view(start + new, -1, head_dim)[:, heads : heads + kv_heads]
        raw_v = torch.from_numpy(cache.qkv[row]).view(start + new, -1, head_dim)[:, heads + kv_heads :]
        exact = rope_ref.rope(raw_k, torch.from_numpy(cache.cos), torch.from_numpy(cache.sin), position)
        step = {"f32": 1e-6, "f16": 5e-4, "bf16": 4e-3}[element]
        torch.testing.assert_close(k, exact, rtol=step, atol=1e-4)
        assert torch.equal(v, raw_v.to(TORCH[element]).float())
        keys.append(k)
        values.append(v)
        offsets.append(offsets[-1] + new)
    q = np.concatenate(fused)
    got = cache.attend(q, list(range(len(rows))), [start for start, _ in rows], offsets, window)
    heads_of_q = torch.from_numpy(q[:, : heads * head_dim]).view(len(q), heads, head_dim)
    wanted = attention_ref.attention(heads_of_q, keys, values, offsets, head_dim**-0.5, window)
    close(got, wanted.reshape(len(q), -1))
    # Each row alone, and each token as if it had been decoded, gives the same bits.
    for row, (start, new) in enumerate(rows):
        own = q[offsets[row] : offsets[row + 1]].copy()
        alone = cache.attend(own, [row], [start], [0, new], window)
        assert np.array_equal(alone, got[offsets[row] : offsets[row + 1]])
        for token in range(0, new, 7):
            decoded = cache.attend(own[token : token + 1].copy(), [row], [start + token], [0, 1], window)
            assert np.array_equal(decoded[0], alone[token])


@pytest.mark.parametrize("geometry", [(1, 2, 16, 64, "f32"), (2, 1, 8, 20, "f32")])
def test_heads_are_normed_before_they_are_rotated(geometry: tuple) -> None:
    rng = np.random.default_rng(5)
    _, kv_heads, _, head_dim, _ = geometry
    cache = Cache(rng, geometry, 3 * kv_heads, [40])
    q_norm, k_norm = normal(rng, head_dim), normal(rng, head_dim)
    cache.norms = (q_norm, k_norm, 1e-6)
    got = torch.from_numpy(cache.write(0, 0, 40)).view(40, 5 * kv_heads, head_dim)
    given = torch.from_numpy(cache.qkv[0]).view(40, 5 * kv_heads, head_dim)
    q, k, _ = given.split([3 * kv_heads, kv_heads, kv_heads], dim=1)
    tables = torch.from_numpy(cache.cos), torch.from_numpy(cache.sin)
    normed = [norm_ref.rms_norm(x, torch.from_numpy(w), 1e-6) for x, w in ((q, q_norm), (k, k_norm))]
    wanted = torch.cat([rope_ref.rope(x, *tables, torch.arange(40)) for x in normed], dim=1)
    close(got[:, : 4 * kv_heads].numpy(), wanted)
    close(cache.read(0, 40)[0].numpy(), wanted[:, 3 * kv_heads :])
    cache.norms = (q_norm[1:].copy(), k_norm, 1e-6)
    with pytest.raises(ValueError, match="q_norm"):
        cache.write(0, 0, 40)


def test_a_window_of_nothing_is_refused() -> None:
    cache = Cache(np.random.default_rng(3), (1, 1, 16, 32, "f16"), 2, [20])
    q = cache.write(0, 0, 20)
    with pytest.raises(ValueError, match="window"):
        cache.attend(q, [0], [0], [0, 20], window=0)


def test_keys_below_the_window_are_not_read() -> None:
    """Whole blocks of them may hold anything, NaN too."""
    rng = np.random.default_rng(3)
    cache = Cache(rng, (1, 1, 16, 32, "f16"), 2, [300])
    q = cache.write(0, 0, 300)[290:].copy()
    wanted = cache.attend(q, [0], [290], [0, 10], window=40)
    cache.arena[cache.table[0, : 192 // 16]] = 0xFF
    assert np.array_equal(cache.attend(q, [0], [290], [0, 10], window=40), wanted)


def test_attention_over_a_long_row() -> None:
    rng = np.random.default_rng(3)
    cache = Cache(rng, (1, 1, 16, 32, "f16"), 2, [4001])
    cache.write(0, 0, 4000)
    q = cache.write(0, 4000, 4001) * 8  # peaked scores
    k, v = cache.read(0, 4001)
    wanted = attention_ref.attention(torch.from_numpy(q[:, :64]).view(1, 2, 32), [k], [v], [0, 1], 32**-0.5)
    close(cache.attend(q, [0], [4000], [0, 1]), wanted.reshape(1, -1))


def test_a_nan_row_stays_its_own() -> None:
    rng = np.random.default_rng(3)
    cache = Cache(rng, (1, 1, 16, 32, "f16"), 2, [20, 20])
    cache.qkv[0][19, :3] = np.nan
    q = np.concatenate([cache.write(row, 0, 20)[19:] for row in (0, 1)])
    got = cache.attend(q, [0, 1], [19, 19], [0, 1, 2])
    assert np.isnan(got[0, :32]).all() and np.isfinite(got[1]).all()


def test_pages_out_of_range_are_refused() -> None:
    rng = np.random.default_rng(3)
    cache = Cache(rng, (1, 1, 16, 32, "f16"), 2, [20])
    q = cache.write(0, 0, 20)
    for bad in (-1, len(cache.arena)):
        cache.table[0, 1] = bad
        with pytest.raises(ValueError, match="page_table"):
            cache.attend(q, [0], [0], [0, 20])
        with pytest.raises(ValueError, match="page_table"):
            cache.write(0, 0, 20)
    cache.table[0, 1] = cache.table[0, 0]
    with pytest.raises(ValueError, match="same place"):
        cache.write(0, 0, 20)
    with pytest.raises(ValueError, match="longer than its line"):
        cache.attend(q, [0], [500], [0, 20])


# Norms, activation, rows


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


# Quantised products


def quantised(rng: np.random.Generator, kind: str, rows: int, cols: int) -> tuple[_core.QuantMatrix, torch.Tensor]:
    data = blocks.quantize(normal(rng, rows, cols), kind)
    matrix = _core.QuantMatrix(kind, np.ascontiguousarray(data).reshape(-1), rows, cols)
    return matrix, torch.from_numpy(quants.dequantize(data, GGMLQuantizationType[kind]))


@pytest.mark.parametrize("kind", sorted(_core.QUANT_KINDS))
@pytest.mark.parametrize(("rows", "cols"), [(1, 32), (7, 64), (8, 32), (65, 96), (200, 576), (24, 1536)])
def test_quantised_products(kind: str, rows: int, cols: int) -> None:
    rng = np.random.default_rng(rows)
    columns, _ = blocks.size(kind)
    cols = -(-cols // columns) * columns
    matrix, weight = quantised(rng, kind, rows, cols)
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
        wanted = qmatmul_ref.qmatmul(torch.from_numpy(x), weight)
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


# Sampling


class Params:
    def __init__(self, rows: int) -> None:
        self.temperature = np.ones(rows, dtype=np.float32)
        self.top_k = np.zeros(rows, dtype=np.int32)
        self.top_p = np.ones(rows, dtype=np.float32)
        self.min_p = np.zeros(rows, dtype=np.float32)
        self.seed = np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self.counter = np.arange(rows, dtype=np.int32)

    def __iter__(self):
        return iter((self.temperature, self.top_k, self.top_p, self.min_p, self.seed, self.counter))


def test_greedy_takes_the_lowest_id_of_the_best() -> None:
    logits = np.zeros((4, 70), dtype=np.float32)
    logits[0, [9, 40, 69]] = 5
    logits[1, 69] = 1
    logits[2] = -np.inf
    logits[2, 33] = -1000
    logits[3, 7] = np.nan
    params = Params(4)
    params.temperature[:] = 0
    tokens, logprobs = np.full(4, -9, dtype=np.int32), nan(4)
    _core.sample(tokens, logprobs, logits, *params)
    assert tokens.tolist() == [9, 69, 33, -1]
    wanted = [float(sample_ref.logprobs(torch.from_numpy(logits[i]))[t]) for i, t in enumerate((9, 69, 33))]
    np.testing.assert_allclose(logprobs[:3], wanted, atol=1e-5)
    assert np.isnan(logprobs[3])
    for bad in (np.inf, -np.inf):
        _core.sample(tokens[:1], None, np.full((1, 70), bad, dtype=np.float32), *Params(1))
        assert tokens[0] == -1


@pytest.mark.parametrize("seed", range(40))
def test_draws_are_those_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab, rows = int(rng.choice([5, 100, 1000, 5001])), 16
    logits = normal(rng, rows, vocab) * float(rng.choice([0.1, 1, 4]))
    if seed % 3 == 0:
        logits = np.round(logits * 2) / 2  # many ties
    params = Params(rows)
    params.seed[:] = rng.integers(0, 2**63, rows, dtype=np.uint64)
    params.counter[:] = rng.integers(0, 10000, rows)
    params.temperature[:] = rng.choice([0.3, 0.8, 1.0, 2.0], rows)
    params.top_k[:] = rng.choice([-1, 0, 1, 2, 40, 900, 3000, 9999], rows)
    params.top_p[:] = rng.choice([0.0, 0.1, 0.5, 0.9, 0.99, 1.0], rows)
    params.min_p[:] = rng.choice([0.0, 0.0, 0.02, 0.3, 1.0], rows)
    tokens, logprobs = np.full(rows, -9, dtype=np.int32), nan(rows)
    count = min(20, vocab)
    best_tokens, best_logprobs = np.full((rows, count), -9, dtype=np.int32), nan(rows, count)
    _core.sample(tokens, logprobs, logits, *params, best_tokens, best_logprobs)
    for row in range(rows):
        row_logits = torch.from_numpy(logits[row])
        arguments = [float(params.temperature[row]), int(params.top_k[row])]
        # The float that arrived is what the definition gets.
        arguments += [float(params.top_p[row]), float(params.min_p[row])]
        probability = sample_ref.probabilities(row_logits, *arguments)
        uniform = sample_ref.uniform(int(params.seed[row]), int(params.counter[row]))
        wanted = sample_ref.draw(probability, uniform)
        if tokens[row] != wanted:
            # Only rounding at a border may explain it.
            sums = probability.cumsum(0)
            assert min(abs(float(s) - uniform) for s in (sums[tokens[row]], sums[wanted])) < 1e-4
        expected = sample_ref.logprobs(row_logits)
        np.testing.assert_allclose(logprobs[row], float(expected[tokens[row]]), atol=2e-5)
        order = torch.sort(row_logits, descending=True, stable=True).indices[:count]
        assert best_tokens[row].tolist() == order.tolist()
        np.testing.assert_allclose(best_logprobs[row], expected[order].numpy(), atol=2e-5)
    # A request depends on its own parameters only.
    for row in (0, 7):
        alone = np.full(1, -9, dtype=np.int32)
        _core.sample(alone, None, logits[row : row + 1].copy(), *(p[row : row + 1].copy() for p in params))
        assert alone[0] == tokens[row]


def test_draws_follow_the_distribution() -> None:
    rng = np.random.default_rng(0)
    rows = 20000
    logits = np.tile(normal(rng, 1, 9), (rows, 1))
    params = Params(rows)
    params.seed[:] = 42
    tokens = np.full(rows, -9, dtype=np.int32)
    _core.sample(tokens, None, logits, *params)
    wanted = torch.from_numpy(logits[0]).softmax(-1).numpy()
    got = np.bincount(tokens, minlength=9) / rows
    np.testing.assert_allclose(got, wanted, atol=0.015)
    assert abs(sample_ref.uniform(42, 3) - sample_ref.uniform(42, 4)) > 1e-6
