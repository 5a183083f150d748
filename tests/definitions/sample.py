"""Sampling by its definition, on the kernels' buffers. The workspace stays as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.sample import ref
from lorad.kernels.sample.kernel import LEFT, PLAIN


def sample(
    tokens: Tensor,
    logprobs: Tensor,
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    mode: Tensor,
    line: Tensor,
    position: Tensor,
    count: Tensor,
    workspace: Tensor,
) -> None:
    lines = (temperature, seed, mode)
    launch(_sample, None, tokens, logprobs, logits, *lines, line, position, count, workspace)


def _sample(
    tokens: Tensor,
    logprobs: Tensor,
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    mode: Tensor,
    line: Tensor,
    position: Tensor,
    count: Tensor,
    workspace: Tensor,
) -> None:
    for row in range(int(count)):
        of, row_logits = int(line[row]), logits[row].float()
        if mode[of] >= LEFT:
            continue
        heat = float(temperature[of])
        if not row_logits.max().isfinite():
            tokens[row], logprobs[row] = -1, torch.nan
            continue
        if mode[of] == PLAIN and heat > 0:
            low, high = (half & 0xFFFFFFFF for half in seed[of].tolist())
            uniform = ref.uniform(high << 32 | low, int(position[row]) + 1)
            token = ref.draw(ref.probabilities(row_logits, heat, top_k=0, top_p=1, min_p=0), uniform)
        else:
            token = int((row_logits == row_logits.max()).nonzero()[0])
        tokens[row], logprobs[row] = token, ref.logprobs(row_logits)[token]
