"""Batched LoRA against its plain torch definition, on shapes that don't divide.

Outputs begin as NaN, so an element that isn't written is seen. A row alone must equal the same row in a batch, bit for
bit. Run once for each instruction level, see test_cpu_levels.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cpu_ops import RANKS, TORCH, Adapters, close, delta_of, normal, run_lora
from lorad import _core
from lorad.kernels.lora import ref as lora_ref


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


@pytest.mark.parametrize("seed", range(12))
def test_lora_on_an_embedding(seed: int) -> None:
    """As with one-hot rows for x."""
    rng = np.random.default_rng(seed)
    vocab, hidden = int(rng.choice([3, 40, 333])), int(rng.choice([8, 31, 64]))
    adapters = Adapters(rng, [(vocab, hidden)], int(rng.choice([64, 256, 4096])), 6)
    for _ in range(6):
        adapters.add(int(rng.choice(RANKS)), str(rng.choice(list(TORCH))), [0])
    arena = adapters.build()
    ends = np.cumsum(rng.choice([0, 1, 2, 40], 6)).tolist()
    groups = [(slot, 1000 + slot, begin, end) for slot, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))]
    n = ends[-1] + 2
    ids, y = rng.integers(0, vocab, n).astype(np.int32), normal(rng, n, hidden)
    spans = [(begin, end, adapters.weights[slot]) for slot, _, begin, end in groups]
    one_hot = torch.eye(vocab)[torch.from_numpy(ids).long()]
    wanted = lora_ref.lora(torch.from_numpy(y), one_hot, [0], [0], spans)
    got = y.copy()
    delta = delta_of(arena, adapters, [0], [0], groups)
    assert _core.lora_embed(got, ids, vocab, delta) == []
    close(got, wanted)
    assert np.array_equal(got[-2:], y[-2:])
    for slot, tag, begin, end in groups:
        for token in range(begin, end):
            alone, one = y[token : token + 1].copy(), delta_of(arena, adapters, [0], [0], [(slot, tag, 0, 1)])
            _core.lora_embed(alone, ids[token : token + 1].copy(), vocab, one)
            assert np.array_equal(alone[0], got[token])
    other = delta_of(arena, adapters, [0], [0], [(0, 999, 0, 1)])
    assert _core.lora_embed(got, ids, vocab, other) == [0]
    assert np.isnan(got[0]).all() and np.isfinite(got[1:]).all()
    for bad_ids, bad_vocab in (
        (ids[:-1].copy(), vocab),
        (ids, vocab + 1),
        (np.full_like(ids, vocab), vocab),
        (-1 - ids, vocab),
    ):
        with pytest.raises(ValueError):
            _core.lora_embed(y.copy(), bad_ids, bad_vocab, delta)


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
        lambda: run_lora(y, x, arena[:0], adapters, [0], [0], good),
        lambda: run_lora(y, normal(rng, 4, 31), arena, adapters, [0], [0], good),
        lambda: run_lora(y.astype(np.float64), x, arena, adapters, [0], [0], good),
        lambda: run_lora(y[:, ::2], x, arena, adapters, [0], [0], good),
    ):
        with pytest.raises((ValueError, TypeError)):
            bad()
    run_lora(y, x, arena, adapters, [0], [0], good)
