"""Which tokens may come next in answers that follow a grammar: computed by llguidance while the step computes logits.

A matcher belongs to a request and goes with it through preemption. All of a step are worked on in one call, on a thread
that needs the interpreter for its beginning and end only; the step waits for it just before it samples.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from lorad.worker.plan import Ints

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

log = logging.getLogger("lorad.engine")

MASK_THREADS_MAX = 4
WORD = 32
"""Tokens in a word of a mask."""
NO_MASK = -1


class Matcher:
    """How far one answer has come in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        """`matcher`: nobody else's."""
        self.matcher = matcher
        self.error = ""
        """Why it can't go on."""
        self._token: int | None = None

    def took(self, token: int) -> None:
        """The answer's next token; it's looked at with the next mask."""
        self._token = token

    def token(self) -> list[tuple[LLMatcher, int]]:
        """What was taken and not looked at yet."""
        token, self._token = self._token, None
        return [] if token is None else [(self.matcher, token)]


def error_of(matcher: LLMatcher) -> str:
    """Why it can't go on, without its state, which llguidance tells at length."""
    return matcher.get_error().partition("\n<state>")[0]


class Masks:
    """The masks of one step at a time."""

    def __init__(self, rows_max: int, vocab: int, threads: int) -> None:
        self._words = np.zeros((rows_max, -(-vocab // WORD)), dtype=np.int32)
        self._threads = min(threads, MASK_THREADS_MAX)
        self._beside: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def begin(self, matchers: Sequence[Matcher | None]) -> StepMasks | None:
        """Begins to compute the masks of a step's sampled rows. None: no row has a matcher."""
        rows = [row for row, matcher in enumerate(matchers) if matcher is not None]
        if not rows:
            return None
        mask_row = np.full(len(matchers), NO_MASK, dtype=np.int32)
        mask_row[rows] = np.arange(len(rows), dtype=np.int32)
        found = [matcher for matcher in matchers if matcher is not None]
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, thread_name_prefix="lorad-masks")
        return StepMasks(mask_row, self._words[: len(rows)], self._beside.submit(self._fill, found))

    def close(self) -> None:
        """Ends the thread."""
        if self._beside is not None:
            self._beside.shutdown()

    def _fill(self, matchers: list[Matcher]) -> None:
        """llguidance keeps an error with the matcher that it's of. That row's mask is empty: it fails, and no other."""
        words = self._words[: len(matchers)]
        try:
            self._compute(matchers, words)
        except Exception:
            log.exception("the masks of a step failed")
            for matcher in matchers:
                matcher.error = "its mask could not be computed"
        for row, matcher in enumerate(matchers):
            if matcher.matcher.is_error():
                matcher.error = error_of(matcher.matcher)
            if matcher.error:
                words[row] = 0

    def _compute(self, matchers: list[Matcher], words: Ints) -> None:
        from llguidance import LLExecutor
        from llguidance.numpy import consume_token_par, fill_next_token_bitmask_par

        if self._executor is None:
            self._executor = LLExecutor(self._threads)
        if tokens := [token for matcher in matchers for token in matcher.token()]:
            consume_token_par(self._executor, tokens)
        numbered = [(matcher.matcher, row) for row, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, numbered, words)


class StepMasks:
    """The masks of one step, as the sampler takes them; valid until the next step's are begun."""

    def __init__(self, mask_row: Ints, words: Ints, work: Future[None]) -> None:
        self.row = mask_row
        """[rows], each row's mask or -1."""
        self._words = words
        self._work = work

    def words(self) -> Ints:
        """[masks, words], when they are there."""
        self._work.result()
        return self._words

    def of_rows(self, rows: Ints) -> StepMasks:
        """The same for some rows, by their places."""
        return StepMasks(self.row[rows], self._words, self._work)

    def only(self, row: int, tokens: Sequence[int]) -> bool:
        """Whether a row may take nothing but these."""
        left = self.words()[self.row[row]].view(np.uint32).copy()
        for token in tokens:
            left[token // WORD] &= ~np.uint32(1 << token % WORD)
        return not left.any()
