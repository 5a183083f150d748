"""Grammars compiled for the base's vocabulary; the last ones are kept, as most requests bring one of them.

They are kept for each tenant by itself: a grammar that needn't be compiled answers sooner, by up to a second, and that
would tell whether somebody else has used it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from lorad.errors import InvalidRequest
from lorad.worker.masks import Matcher, error_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from lorad.text.tokenizer import Tokenizer

KEPT_MAX = 32


class Grammars:
    """Matchers for grammars, by tenants and texts. Safe on any thread."""

    def __init__(self, tokenizer: Callable[[], Tokenizer], vocab: int) -> None:
        """`tokenizer`: asked for at the first grammar; `vocab`: tokens that the base's logits have."""
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._kept: OrderedDict[tuple[int, str], LLMatcher] = OrderedDict()

    def matcher(self, grammar: str, tenant: int) -> Matcher:
        """A matcher at the beginning of an answer. Refuses a grammar that can't be compiled, or not within the limits.

        The first grammar takes the time to put the vocabulary in order, a new one to compile: neither holds the
        interpreter.
        """
        with self._lock:
            found = self._kept.pop((tenant, grammar), None) or self._compile(grammar)
            self._kept[tenant, grammar] = found
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
            return Matcher(found.deep_copy())

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher, LLTokenizer

        if self._vocabulary is None:
            tokenizer = self._tokenizer()
            if not tokenizer.end_ids:
                raise InvalidRequest(
                    "grammar: this model has no end token, so an answer could not end with its grammar",
                    code="grammar_end",
                    param="grammar",
                )
            # Ids beyond the tokenizer's are never allowed.
            ends = list(tokenizer.end_ids)
            self._vocabulary = LLTokenizer(tokenizer.core.to_str(), n_vocab=self._vocab, eos_token=ends)
        made = LLMatcher(self._vocabulary, grammar, log_level=0)
        # The first mask is the slowest: it isn't left to a step, and a grammar that can't give one is refused.
        if not made.is_error():
            made.compute_bitmask()
        if made.is_error():
            raise InvalidRequest(
                f"grammar: it can't be followed: {error_of(made)[:300]}", code="grammar", param="grammar"
            )
        return made
