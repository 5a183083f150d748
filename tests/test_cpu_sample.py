"""Sampling against its plain torch definition.

Outputs begin as NaN, so an element that isn't written is seen. A row alone must equal the same row in a batch, bit for
bit. Run once for each instruction level, see test_cpu_levels.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cpu_ops import nan, normal
from lorad import _core
from lorad.kernels.sample import ref as sample_ref


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


@pytest.mark.parametrize("seed", range(20))
def test_edited_rows_are_those_of_the_definition(seed: int) -> None:
    """A third of the rows with single tokens changed, a third with a mask, the others as if nobody had edits."""
    rng = np.random.default_rng(seed)
    vocab, rows = int(rng.choice([5, 33, 1000, 5001])), 12
    logits = normal(rng, rows, vocab) * 4
    params = Params(rows)
    params.temperature[:] = rng.choice([0.0, 1.0], rows)
    tokens = [rng.permutation(vocab)[: rng.integers(1, vocab)] if row % 3 == 0 else [] for row in range(rows)]
    offset = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
    token = np.concatenate(tokens).astype(np.int32)
    change = np.stack([normal(rng, len(token)), rng.uniform(0.2, 2, len(token)), normal(rng, len(token))], axis=1)
    change = change.astype(np.float32)
    change[rng.random(len(token)) < 0.1, 0] = -np.inf
    allowed = rng.random((2, vocab)) < 0.3
    allowed[:, vocab - 1] = True
    mask = np.zeros((2, -(-vocab // 32) * 4), dtype=np.uint8)
    packed = np.packbits(allowed, axis=1, bitorder="little")
    mask[:, : packed.shape[1]] = packed
    mask_row = np.array([rng.integers(2) if row % 3 == 1 else -1 for row in range(rows)], dtype=np.int32)
    got, logprobs = np.full(rows, -9, dtype=np.int32), nan(rows)
    edits = (offset, token, change, mask_row, mask.view(np.int32))
    _core.sample(got, logprobs, logits, *params, None, None, edits)
    for row in range(rows):
        raw = torch.from_numpy(logits[row])
        mine = slice(offset[row], offset[row + 1])
        only = torch.from_numpy(allowed[mask_row[row]]) if mask_row[row] >= 0 else None
        changed = sample_ref.edited(raw, torch.from_numpy(token[mine]).long(), torch.from_numpy(change[mine]), only)
        if params.temperature[row] == 0:
            assert got[row] == int(changed.argmax())
        else:
            probability = sample_ref.probabilities(changed, 1.0, 0, 1.0, 0.0)
            uniform = sample_ref.uniform(int(params.seed[row]), int(params.counter[row]))
            if got[row] != sample_ref.draw(probability, uniform):
                sums = probability.cumsum(0)
                assert abs(float(sums[got[row]]) - uniform) < 1e-4 or abs(float(sums[got[row] - 1]) - uniform) < 1e-4
        np.testing.assert_allclose(logprobs[row], float(sample_ref.logprobs(raw)[got[row]]), atol=2e-5)
    alone, alone_logprobs = np.full(rows, -9, dtype=np.int32), nan(rows)
    _core.sample(alone, alone_logprobs, logits, *params)
    untouched = np.arange(rows) % 3 == 2
    assert (alone[untouched] == got[untouched]).all() and (alone_logprobs[untouched] == logprobs[untouched]).all()


def test_a_row_of_which_nothing_may_be_chosen_has_failed_alone() -> None:
    logits = np.zeros((3, 70), dtype=np.float32)
    tokens, logprobs = np.full(3, -9, dtype=np.int32), nan(3)
    nothing = np.zeros((1, 3), dtype=np.int32)
    empty = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32), np.empty((0, 3), dtype=np.float32)
    edits = (*empty, np.array([-1, 0, -1], dtype=np.int32), nothing)
    _core.sample(tokens, logprobs, logits, *Params(3), None, None, edits)
    assert tokens[1] == -1 and np.isnan(logprobs[1]) and (tokens[[0, 2]] >= 0).all() and np.isfinite(logprobs[0])
    with pytest.raises(ValueError, match="mask row"):
        _core.sample(tokens, logprobs, logits, *Params(3), None, None, (*empty, np.full(3, 1, np.int32), nothing))
