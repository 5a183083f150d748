"""Edits, temperature, min_p, top_k, top_p, in this order; a draw by Philox-4x32-10 (Salmon et al. 2011)."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def edited(
    logits: Tensor,  # f32 [vocab]
    token: Tensor,  # i64 [edits], each once
    change: Tensor,  # f32 [edits, 3]: added, then dividing a positive logit or multiplying another, then subtracted
    allowed: Tensor | None = None,  # bool [vocab]
) -> Tensor:
    """Returns f32 [vocab], what a token is chosen by."""
    out = logits.clone()
    added, repetition, subtracted = change.unbind(1)
    some = out[token] + added
    out[token] = torch.where(some > 0, some / repetition, some * repetition) - subtracted
    return out if allowed is None else out.masked_fill(~allowed, float("-inf"))


def probabilities(
    logits: Tensor,  # f32 [vocab]
    temperature: float,  # above 0
    top_k: int,  # 0 or less: off
    top_p: float,  # 1 or more: off
    min_p: float,  # 0: off
) -> Tensor:
    """Returns f64 [vocab], what a token is drawn from. Ties in logit go to the lower id."""
    order = torch.sort(logits, descending=True, stable=True).indices
    weight = ((logits.double() - logits.max().double()) / temperature).exp()[order]
    keep = weight >= min_p
    if 0 < top_k < len(logits):
        keep[top_k:] = False
    weight = torch.where(keep, weight, 0)
    if top_p < 1:
        before = weight.cumsum(0) - weight
        weight = torch.where((before < top_p * weight.sum()) | (torch.arange(len(weight)) == 0), weight, 0)
    out = torch.empty_like(weight)
    out[order] = weight / weight.sum()
    return out


def draw(
    probability: Tensor,  # f64 [vocab]
    uniform: float,  # in [0, 1)
) -> int:
    """Returns the token at which the running sum, by ascending id, passes `uniform`."""
    sums = probability.cumsum(0)
    return int(torch.searchsorted(sums, uniform * float(sums[-1]), right=True))


def logprobs(
    logits: Tensor,  # f32 [vocab]
) -> Tensor:
    """Returns f32 [vocab]: log-softmax of the logits as they are, without edits, temperature and filters."""
    return logits.log_softmax(-1)


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) from a 64-bit seed and a 32-bit counter."""
    state, key = [counter, 0, 0, 0], [seed & _MASK, seed >> 32]
    for _ in range(10):
        a, b = state[0] * 0xD2511F53, state[2] * 0xCD9E8D57
        state = [(b >> 32) ^ state[1] ^ key[0], b & _MASK, (a >> 32) ^ state[3] ^ key[1], a & _MASK]
        key = [(key[0] + 0x9E3779B9) & _MASK, (key[1] + 0xBB67AE85) & _MASK]
    return ((state[0] << 32 | state[1]) >> 11) / (1 << 53)
