"""What one request changes of its logits before a token is chosen: bias, penalties, end tokens that come too early.

The order is vLLM's: the bias is added, end tokens are masked, the repetition penalty divides or multiplies, the others
are subtracted. Tokens that nothing happens to have no entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lorad.engine.messages import Sampling
from lorad.worker.masks import StepMasks
from lorad.worker.plan import Ints

BIAS, REPETITION, PENALTY = range(3)
"""Columns of a change: added, then dividing a positive logit or multiplying another, then subtracted."""

REPETITION_LEAST = 1e-20
"""A smaller one would leave the range of f32, and orders the tokens no other way."""


class LogitEdits:
    """The edits of one request. They are the request's, not its line's: a preempted one goes on with them."""

    def __init__(self, sampling: Sampling, prompt: NDArray[np.uint32], vocab: int) -> None:
        self._min_tokens = sampling.min_tokens
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._repetition = max(sampling.repetition_penalty, REPETITION_LEAST)
        self._bias = sampling.logit_bias
        self._counts = bool(self._presence or self._frequency or self._repetition != 1.0)
        self.ends = [token for token in sampling.stop_token_ids if token < vocab] if self._min_tokens else []
        """Tokens that are masked still."""
        self._places: dict[int, int] = {}
        """Of each token that has an entry."""
        self._tokens = np.zeros(64, dtype=np.int32)
        self._changes = _no_changes(64)
        self._made = 0
        self._times: dict[int, int] = {}
        """How often each token was made."""
        for token, bias in self._bias.items():
            self._change(token)[BIAS] = bias
        for token in self.ends:
            self._change(token)[BIAS] = -np.inf
        if self._repetition != 1.0:
            for token in np.unique(prompt).tolist():
                self._change(token)[REPETITION] = self._repetition

    @staticmethod
    def wanted(sampling: Sampling) -> bool:
        """Whether a request changes its logits at all."""
        return bool(
            sampling.logit_bias
            or sampling.min_tokens
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1.0
        )

    @property
    def tokens(self) -> Ints:
        """[entries], each once."""
        return self._tokens[: len(self._places)]

    @property
    def changes(self) -> NDArray[np.float32]:
        """[entries, 3]."""
        return self._changes[: len(self._places)]

    def took(self, token: int) -> None:
        """The request's next token."""
        self._made += 1
        if self._counts:
            times = self._times[token] = self._times.get(token, 0) + 1
            change = self._change(token)
            change[REPETITION] = self._repetition
            change[PENALTY] = self._presence + self._frequency * times
        if self._made >= self._min_tokens and self.ends:
            self.let_end()

    def let_end(self) -> None:
        """Takes the mask off the end tokens."""
        for token in self.ends:
            self._change(token)[BIAS] = self._bias.get(token, 0.0)
        self.ends = []

    def _change(self, token: int) -> NDArray[np.float32]:
        """[3], of the token's entry, which is made if need be."""
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
                self._changes = np.concatenate([self._changes, _no_changes(len(self._changes))])
            self._tokens[place] = token
        found: NDArray[np.float32] = self._changes[place]
        return found


def _no_changes(count: int) -> NDArray[np.float32]:
    return np.tile(np.array([0, 1, 0], dtype=np.float32), (count, 1))


class StepEdits:
    """The edits of one call of the sampler, as it takes them."""

    def __init__(self, rows: Sequence[LogitEdits | None], masks: StepMasks | None) -> None:
        """`rows`: of each row to sample; `masks`: theirs, if any has one."""
        edits = [edit for edit in rows if edit is not None]
        counts = [0 if edit is None else len(edit.tokens) for edit in rows]
        self.offset: Ints = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        self.token: Ints = np.concatenate([np.empty(0, dtype=np.int32), *(edit.tokens for edit in edits)])
        self.change: NDArray[np.float32] = np.concatenate(
            [np.empty((0, 3), dtype=np.float32), *(edit.changes for edit in edits)]
        )
        none = np.empty(0, dtype=np.int32)
        self.mask_row: Ints = none if masks is None else masks.row
        self.mask: Ints = none if masks is None else masks.words()
