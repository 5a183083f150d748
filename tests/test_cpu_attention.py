"""Paged attention, with rope and the page writes before it, against its plain torch definition.

Outputs begin as NaN, so an element that isn't written is seen. A row alone must equal the same row in a batch, bit for
bit. Run once for each instruction level, see test_cpu_levels.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cpu_ops import TORCH, close, nan, normal
from lorad import _core
from lorad.kernels.attention import ref as attention_ref
from lorad.kernels.rms_norm import ref as norm_ref
from lorad.kernels.rope import ref as rope_ref


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
