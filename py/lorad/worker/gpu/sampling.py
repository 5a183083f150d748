"""`DeviceSampling`: rows that are sampled where their logits are, so that only tokens leave the device."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

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


class Brought(NamedTuple):
    """Tokens on their way to the host."""

    tokens: Tensor
    """i32 [rows], pinned."""
    event: torch.cuda.Event | None
    """Recorded after the copy, which is after all of the step's kernels."""

    def wait(self, rows: int) -> Ints:
        """Those of the first rows."""
        if self.event is not None:
            self.event.synchronize()
        tokens: Ints = self.tokens[:rows].numpy().copy()
        return tokens


class DeviceSampling:
    """What the sampling kernel reads of each line, and what it writes for each row."""

    def __init__(self, rows_max: int, vocab: int, device: torch.device, sample: Operator, *, steps: int = 1) -> None:
        """`steps`: that may be under way at once."""
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
        self._order = torch.arange(rows_max, dtype=torch.int32, device=device)
        # by line; rows of a graph's bucket that a step doesn't have write to the last place
        self._last = torch.zeros(rows_max + 1, dtype=torch.int32, device=device)
        on_gpu = device.type == "cuda"
        self._brought = deque(
            Brought(
                torch.zeros(rows_max, dtype=torch.int32, pin_memory=on_gpu),
                torch.cuda.Event() if on_gpu else None,  # type: ignore[no-untyped-call]
            )
            for _ in range(steps)
        )
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

    def keep(self, rows: int, line: Tensor, count: Tensor) -> None:
        """Keeps what was sampled of the first `count` rows, by their lines, for the next step."""
        place = torch.where(self._order[:rows] < count, line, len(self._mode))
        self._last.index_copy_(0, place.long(), self._tokens[:rows])

    def fill_in(self, token: Tensor, line: Tensor) -> None:
        """Puts the tokens that were sampled last in the place of those that the plan doesn't know: i32 [tokens], −1.
        Those of rows that failed are 0: nobody is told what comes of them."""
        last = torch.index_select(self._last, 0, line)
        token.copy_(torch.where(token < 0, last, token).clamp_(min=0))

    def bring(self) -> Brought:
        """Begins to copy what was sampled to the host."""
        self._brought.rotate()
        brought = self._brought[0]
        brought.tokens.copy_(self._tokens, non_blocking=True)
        if brought.event is not None:
            brought.event.record()
        return brought

    def left(self, lines: Ints) -> Ints:
        """Which of a step's rows are left to the host, as indices."""
        return np.flatnonzero(self._mode[lines] == LEFT).astype(np.int32)
