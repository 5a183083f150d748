"""`Sampler`: turns a step's logits into tokens, as each row's request wants them."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.engine.messages import Sampling, TokenLogprobs
from lorad.worker.edits import LogitEdits, StepEdits
from lorad.worker.lines import SamplingLines
from lorad.worker.masks import Masks, Matcher, StepMasks
from lorad.worker.plan import Ints
from lorad.worker.prompt_scores import PromptScores

F32 = NDArray[np.float32]
Kept = TypeVar("Kept")


class Samples(NamedTuple):
    """What a step sampled."""

    tokens: Ints
    """[samples], in plan order; `_core.SAMPLE_FAILED` where a row couldn't be computed."""
    logprobs: dict[int, TokenLogprobs]
    """By request, for those that asked."""


class Draw:
    """The rows of one step, begun before their logits are there: masks are computed meanwhile."""

    def __init__(
        self, lines: Ints, edits: list[LogitEdits | None], matchers: list[Matcher | None], masks: StepMasks | None
    ) -> None:
        """`lines`: of the rows to sample, in plan order."""
        self.lines = lines
        self.edits = edits
        self.matchers = matchers
        self.masks = masks

    def settle(self) -> None:
        """Waits for the masks. Whatever went wrong in the step: the next step's are written to the same memory."""
        if self.masks is not None:
            self.masks.words()

    def changes(self) -> StepEdits | None:
        """What the rows change of their logits. None: no row changes any."""
        if self.masks is not None:
            for row, edit in enumerate(self.edits):
                # A grammar that has come to its end is the end, however few tokens there are.
                if edit is not None and edit.ends and self.masks.row[row] >= 0 and self.masks.only(row, edit.ends):
                    edit.let_end()
        return StepEdits(self.edits, self.masks) if self.masks is not None or any(self.edits) else None

    def only(self, rows: Ints) -> Draw:
        """Some of its rows, by their places."""
        edits = [self.edits[row] for row in rows.tolist()]
        matchers = [self.matchers[row] for row in rows.tolist()]
        return Draw(self.lines[rows], edits, matchers, None if self.masks is None else self.masks.of_rows(rows))

    def took(self, tokens: Ints) -> None:
        """What was sampled; [rows]."""
        for edit, matcher, token in zip(self.edits, self.matchers, tokens.tolist(), strict=True):
            if token != _core.SAMPLE_FAILED:
                if edit is not None:
                    edit.took(token)
                if matcher is not None:
                    matcher.took(token)


class Sampler:
    """What rows are sampled by: parameters by line of the page table, and what outlasts a line, by request."""

    def __init__(self, rows_max: int, vocab: int, threads: int) -> None:
        self.lines = SamplingLines(rows_max)
        self._vocab = vocab
        self._line_request = np.zeros(rows_max, dtype=np.uint64)
        self._edits: dict[int, LogitEdits] = {}
        """By request, of those that change their logits."""
        self._matchers: dict[int, Matcher] = {}
        """By request, of those whose answers follow a grammar."""
        self._masks = Masks(rows_max, vocab, threads)
        self.prompt_scores = PromptScores(rows_max)

    def expect(
        self, request: int, sampling: Sampling, prompt: NDArray[np.uint32], matcher: Matcher | None = None
    ) -> None:
        """Keeps what outlasts a line of a request that was queued, until it's forgotten."""
        if sampling.prompt_logprobs >= 0:
            self.prompt_scores.expect(request, prompt, sampling.prompt_logprobs)
        if LogitEdits.wanted(sampling):
            self._edits[request] = LogitEdits(sampling, prompt, self._vocab)
        if matcher is not None:
            self._matchers[request] = matcher

    def forget(self, request: int) -> str:
        """The request has ended. Gives what its grammar failed at, or ""."""
        self._edits.pop(request, None)
        matcher = self._matchers.pop(request, None)
        return "" if matcher is None else matcher.error

    def open(self, line: int, request: int, sampling: Sampling) -> None:
        """A request takes a line."""
        self.lines.open(line, sampling)
        self._line_request[line] = request

    def request_of(self, lines: Ints) -> NDArray[np.uint64]:
        """Whose the lines are."""
        return self._line_request[lines]

    def begin(self, lines: Ints) -> Draw:
        """A step that will sample these lines."""
        matchers = self._of(lines, self._matchers)
        return Draw(lines, self._of(lines, self._edits), matchers, self._masks.begin(matchers))

    def finish(self, draw: Draw, logits: F32, position: Ints) -> Samples:
        """Draws a token for each row of `logits`, f32 [rows, vocab]. `position`: of each row's last token."""
        lines, best = draw.lines, self.lines.best_wanted(draw.lines)
        rows, width = len(lines), max(best, 0)
        tokens, logprobs = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.float32)
        best_tokens = np.empty((rows, width), dtype=np.int32)
        best_logprobs = np.empty((rows, width), dtype=np.float32)
        changes = draw.changes()
        _core.sample(
            tokens,
            logprobs if best >= 0 else None,
            logits,
            self.lines.temperature[lines],
            self.lines.top_k[lines],
            self.lines.top_p[lines],
            self.lines.min_p[lines],
            self.lines.seed[lines],
            position + 1,
            best_tokens if width else None,
            best_logprobs if width else None,
            None
            if changes is None
            else (changes.offset, changes.token, changes.change, changes.mask_row, changes.mask),
        )
        draw.took(tokens)
        found = {}
        for row in np.flatnonzero(self.lines.logprobs[lines] >= 0).tolist():
            count = int(self.lines.logprobs[lines[row]])
            ids, values = best_tokens[row, :count].tolist(), best_logprobs[row, :count].tolist()
            listed = list(zip(ids, values, strict=True))
            found[int(self._line_request[lines[row]])] = TokenLogprobs(float(logprobs[row]), listed)
        return Samples(tokens, found)

    def close(self) -> None:
        """Ends the threads that compute masks."""
        self._masks.close()

    def _of(self, lines: Ints, kept: dict[int, Kept]) -> list[Kept | None]:
        """What is kept of each row's request."""
        if not kept:
            return [None] * len(lines)
        return [kept.get(request) for request in self._line_request[lines].tolist()]
