"""Sampling from vocabularies of real models."""

from __future__ import annotations

import torch

from lorad.kernels.sample.kernel import sample, workspace_shape

VOCABS = [49152, 128256, 151936, 262144, 1001]


def cases() -> None:
    for vocab in VOCABS:
        for of in (torch.float32, torch.bfloat16, torch.float16):
            case(64, vocab, of)
    case(1, 128256, torch.float32)


def case(rows: int, vocab: int, of: torch.dtype) -> None:
    tokens, line, position = torch.empty(3, rows, dtype=torch.int32)
    mode, seed = torch.empty(64, dtype=torch.int32), torch.empty(64, 2, dtype=torch.int32)
    logprobs, temperature, logits = torch.empty(rows), torch.empty(64), torch.empty(rows, vocab, dtype=of)
    count, workspace = torch.empty(1, dtype=torch.int32), torch.empty(workspace_shape(rows, vocab))
    sample(tokens, logprobs, logits, temperature, seed, mode, line, position, count, workspace)
