"""The best token of each row, or a draw by its temperature: `ref.py` where nothing else is asked of a row.

The first pass sums up blocks of the vocabulary; the second finds the block, by all sums of the row, and the token in
it. Weights are f32, sums of them f64: a draw is another one than the definition's only where its uniform number is
within 1e-6 of the border between the two tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.require import FLOATS, require
from lorad.kernels.sample.tiles import TILES

GREEDY, PLAIN, LEFT = 0, 1, 2
"""Modes of a row: the best token; a draw by temperature alone; for others to choose, who need more than that."""


def workspace_shape(rows: int, vocab: int) -> tuple[int, int, int]:
    """Of what `sample` needs."""
    return 3, rows, triton.cdiv(vocab, TILES.tokens)


def sample(
    tokens: Tensor,  # i32 [rows]
    logprobs: Tensor,  # f32 [rows]
    logits: Tensor,  # f32, f16 or bf16 [rows, vocab]
    temperature: Tensor,  # f32 [lines]; 0 or less or NaN: greedy
    seed: Tensor,  # i32 [lines, 2]: low and high half of a u64
    mode: Tensor,  # i32 [lines]: GREEDY, PLAIN or LEFT
    line: Tensor,  # i32 [rows]
    position: Tensor,  # i32 [rows], of the row's last token; the one that's drawn is counted one more
    count: Tensor,  # i32 [1]: how many rows there are; the others are anything
    workspace: Tensor,  # f32, contiguous, of `workspace_shape`
) -> None:
    """Writes the tokens of the first `count` rows whose lines aren't LEFT, and their log-probabilities by the logits as
    they are. Of equal logits the lower token is the best. −1 and NaN where logits hold a NaN or +infinity, or nothing
    but −infinity.

    Two launches. Raises ValueError if shapes or types differ from those.
    """
    require("logits", logits, (None, None), *FLOATS)
    rows, vocab = logits.shape
    require("tokens", tokens, (rows,), torch.int32)
    require("logprobs", logprobs, (rows,), torch.float32)
    require("temperature", temperature, (None,), torch.float32)
    require("seed", seed, (len(temperature), 2), torch.int32)
    require("mode", mode, (len(temperature),), torch.int32)
    require("line", line, (rows,), torch.int32)
    require("position", position, (rows,), torch.int32)
    require("count", count, (1,), torch.int32)
    require("workspace", workspace, workspace_shape(rows, vocab), torch.float32)
    blocks = workspace.shape[2]
    parameters = (temperature, mode, line, count)
    launch(
        _sum_blocks,
        (blocks, rows),
        workspace,
        logits,
        *parameters,
        rows,
        vocab,
        TOKENS=TILES.tokens,
        num_warps=TILES.warps,
    )
    launch(
        _choose,
        (rows,),
        tokens,
        logprobs,
        workspace,
        logits,
        *parameters,
        seed,
        position,
        rows,
        vocab,
        blocks,
        TOKENS=TILES.tokens,
        BLOCKS=triton.next_power_of_2(blocks),
        num_warps=TILES.warps,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _block_of(
    logits: tl.tensor,  # [rows, vocab]
    row: tl.tensor,
    token: tl.tensor,  # i32 [TOKENS]
    vocab: tl.tensor,
) -> tl.tensor:
    """f32 [TOKENS] of a row; −infinity after the last token."""
    at = logits + row.to(tl.int64) * vocab + token
    return tl.load(at, mask=token < vocab, other=float("-inf")).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(
    logit: tl.tensor,  # f32 [TOKENS]
    most: tl.tensor,  # f32, the greatest of them
    temperature: tl.tensor,
) -> tl.tensor:
    """f32 [TOKENS], 1 for the greatest; 0 where a logit is −infinity."""
    possible = logit > float("-inf")
    return tl.where(possible, tl.exp(tl.where(possible, logit - most, 0) / temperature), 0)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _sum_blocks(
    workspace: tl.tensor,  # f32 [3, rows, blocks]: greatest logit, or NaN; Σ exp(logit − greatest); with temperature
    logits: tl.tensor,  # [rows, vocab]
    temperature: tl.tensor,  # f32 [lines]
    mode: tl.tensor,  # i32 [lines]
    line: tl.tensor,  # i32 [rows]
    count: tl.tensor,  # i32 [1]
    rows: tl.tensor,
    vocab: tl.tensor,
    TOKENS: tl.constexpr,
) -> None:
    block, row = tl.program_id(0), tl.program_id(1)
    if row >= tl.load(count):
        return
    of = tl.load(line + row)
    how = tl.load(mode + of)
    if (how != 0) & (how != 1):
        return
    heat = tl.load(temperature + of)
    logit = _block_of(logits, row, block * TOKENS + tl.arange(0, TOKENS), vocab)
    wrong = ~(logit < float("inf"))  # NaN too
    logit = tl.where(wrong, float("-inf"), logit)
    most = tl.max(logit, 0)
    blocks = tl.num_programs(0)
    at = workspace + row.to(tl.int64) * blocks + block
    plane = tl.cast(rows, tl.int64) * blocks
    tl.store(at, tl.where(tl.max(wrong.to(tl.int32), 0) > 0, float("nan"), most))
    tl.store(at + plane, tl.sum(_weights(logit, most, 1.0), 0))
    if (how == 1) & (heat > 0):
        tl.store(at + 2 * plane, tl.sum(_weights(logit, most, heat).to(tl.float64), 0).to(tl.float32))


@triton.jit  # type: ignore[untyped-decorator]
def _passing(
    weight: tl.tensor,  # f64 [BLOCK]
    index: tl.tensor,  # i32 [BLOCK]: 0, 1, …
    share: tl.tensor,  # f64
    of_sum: tl.constexpr,  # whether `share` is of the sum of the weights
) -> tuple[tl.tensor, tl.tensor]:
    """(where the running sum passes `share`, what's left of it there)."""
    sums = tl.cumsum(weight, 0)
    if of_sum:
        share *= tl.max(sums, 0)
    passed = tl.sum((sums <= share).to(tl.int32), 0)
    # What was rounded up may never be passed: then it's the last that has any weight.
    found = tl.minimum(passed, tl.max(tl.where(weight > 0, index, 0), 0))
    return found, share - tl.max(tl.where(index < found, sums, 0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _uniform(
    low: tl.tensor,  # i32, of the seed
    high: tl.tensor,  # i32
    counter: tl.tensor,  # i32
) -> tl.tensor:
    """f64 in [0, 1)."""
    key = (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)
    first, second, _, _ = tl.philox(key, counter, counter * 0, counter * 0, counter * 0)
    bits = ((first.to(tl.uint64) << 32) | second.to(tl.uint64)) >> 11
    return bits.to(tl.float64) * (1.0 / (1 << 53))


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _choose(
    tokens: tl.tensor,  # i32 [rows]
    logprobs: tl.tensor,  # f32 [rows]
    workspace: tl.tensor,  # f32 [3, rows, blocks]
    logits: tl.tensor,  # [rows, vocab]
    temperature: tl.tensor,  # f32 [lines]
    mode: tl.tensor,  # i32 [lines]
    line: tl.tensor,  # i32 [rows]
    count: tl.tensor,  # i32 [1]
    seed: tl.tensor,  # i32 [lines, 2]
    position: tl.tensor,  # i32 [rows]
    rows: tl.tensor,
    vocab: tl.tensor,
    blocks: tl.tensor,
    TOKENS: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    if row >= tl.load(count):
        return
    of = tl.load(line + row)
    how = tl.load(mode + of)
    if (how != 0) & (how != 1):
        return
    heat = tl.load(temperature + of)
    block, index = tl.arange(0, BLOCKS), tl.arange(0, TOKENS)
    real = block < blocks
    at = workspace + row.to(tl.int64) * blocks + block
    plane = tl.cast(rows, tl.int64) * blocks
    most = tl.load(at, mask=real, other=float("-inf"))
    wrong = ~(most < float("inf"))
    best = tl.max(tl.where(wrong, float("-inf"), most), 0)
    if (tl.max(wrong.to(tl.int32), 0) > 0) | (best == float("-inf")):
        tl.store(tokens + row, -1)
        tl.store(logprobs + row, float("nan"))
        return
    mass = tl.sum(_weights(most, best, 1.0) * tl.load(at + plane, mask=real, other=0), 0)
    if (how == 1) & (heat > 0):
        weight = _weights(most, best, heat) * tl.load(at + 2 * plane, mask=real, other=0)
        uniform = _uniform(tl.load(seed + of * 2), tl.load(seed + of * 2 + 1), tl.load(position + row) + 1)
        found, left = _passing(weight.to(tl.float64), block, uniform, of_sum=True)
        logit = _block_of(logits, row, found * TOKENS + index, vocab)
        top = tl.max(logit, 0)
        weight = _weights(logit, top, heat) * tl.exp((top - best) / heat)
        within, _ = _passing(weight.to(tl.float64), index, left, of_sum=False)
    else:
        found = tl.min(tl.where(most == best, block, BLOCKS), 0)
        logit = _block_of(logits, row, found * TOKENS + index, vocab)
        within = tl.min(tl.where(logit == best, index, TOKENS), 0)
    chosen = tl.max(tl.where(index == within, logit, float("-inf")), 0)
    tl.store(tokens + row, found * TOKENS + within)
    tl.store(logprobs + row, chosen - best - tl.log(mass))
