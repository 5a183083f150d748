"""`DeviceSampling`: rows that are sampled where their logits are, so that only tokens leave the device."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lorad.engine.messages import Sampling
from lorad.kernels.sample.kernel import GREEDY, LEFT, PLAIN, workspace_shape
from lorad.worker.edits import LogitEdits
from lorad.worker.gpu.operators import Operator
from lorad.worker.plan import Ints


def mode_of(sampling: Sampling) -> int:
    """How a request's rows are sampled. What is left to the host: filters, edits, grammars, log-probabilities."""
    filtered = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    if sampling.logprobs >= 0 or sampling.grammar or LogitEdits.wanted(sampling):
        return LEFT
    if sampling.temperature == 0:
        return GREEDY
    return LEFT if filtered else PLAIN


class DeviceSampling:
    """What the sampling kernel reads of each line, and what it writes for each row."""

    def __init__(self, rows_max: int, vocab: int, device: torch.device, sample: Operator) -> None:
        self._sample = sample
        self._mode = np.zeros(rows_max, dtype=np.int32)
        self._host = torch.zeros(4 * rows_max, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._words = self._host.numpy()
        self._device = torch.zeros(4 * rows_max, dtype=torch.int32, device=device)
        mode, temperature, seed = (
            self._device[:rows_max],
            self._device[rows_max:][:rows_max],
            self._device[2 * rows_max :],
        )
        self._by_line = temperature.view(torch.float32), seed.view(rows_max, 2), mode
        self._stale = False
        self._tokens = torch.zeros(rows_max, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(rows_max, dtype=torch.float32, device=device)
        self._space = torch.zeros(math.prod(workspace_shape(rows_max, vocab)), dtype=torch.float32, device=device)

    def open(self, line: int, sampling: Sampling) -> None:
        """A request takes a line."""
        rows = len(self._mode)
        self._mode[line] = self._words[line] = mode_of(sampling)
        self._words[rows + line] = np.float32(sampling.temperature).view(np.int32)
        seed = np.array([sampling.seed], dtype=np.uint64).view(np.int32)
        self._words[2 * rows + 2 * line : 2 * rows + 2 * line + 2] = seed
        self._stale = True

    def send(self) -> None:
        """Copies what has changed to the device, in the stream's order."""
        if self._stale:
            self._device.copy_(self._host, non_blocking=True)
            self._stale = False

    def start(self, logits: Tensor, line: Tensor, position: Tensor, count: Tensor) -> None:
        """Samples the rows of `logits` [rows, vocab] that aren't left to the host. `line`, `position` i32 [rows], of
        their last tokens; `count` i32 [1]."""
        rows, vocab = logits.shape
        shape = workspace_shape(rows, vocab)
        space = self._space[: math.prod(shape)].view(shape)
        tokens, logprobs = self._tokens[:rows], self._logprobs[:rows]
        self._sample(tokens, logprobs, logits, *self._by_line, line, position, count, space)

    def tokens(self, rows: int) -> Ints:
        """What was sampled, of each row. Waits for the device."""
        tokens: Ints = self._tokens.cpu().numpy().copy()  # all: a step that samples nothing is waited for too
        return tokens[:rows]

    def left(self, lines: Ints) -> Ints:
        """Which of a step's rows are left to the host, as indices."""
        return np.flatnonzero(self._mode[lines] == LEFT).astype(np.int32)
