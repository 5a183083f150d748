"""`Lengths`: whether a prompt and its answer fit under what serves them."""

from __future__ import annotations

from collections.abc import Sequence

from lorad.engine.handle import EngineHandle
from lorad.errors import InvalidRequest
from lorad.server.registry import Target
from lorad.server.requests import Ask
from lorad.text.tokenizer import Tokenizer

EXACT_CHARACTERS = 1 << 18
"""A text of up to this length is always tokenised, so that its refusal tells its exact number of tokens."""


class Lengths:
    """The context's length, or what the page pool holds beside the adapter. `field`: where the prompt came in."""

    def __init__(self, handle: EngineHandle, tokenizer: Tokenizer) -> None:
        self._handle = handle
        self._tokenizer = tokenizer

    def check_characters(self, target: Target, field: str, characters: int) -> None:
        """Refuses a text that is too long whatever its tokens are, before the work of finding them."""
        at_least = characters // self._tokenizer.longest_token
        if characters > EXACT_CHARACTERS and at_least >= target.tokens_max:
            raise self._too_long(target, field, f"at least {at_least}", 1)

    def fit(self, target: Target, field: str, prompt: Sequence[int], ask: Ask) -> int:
        """How many tokens may be made after this prompt."""
        asked = ask.max_tokens
        if not prompt:
            raise InvalidRequest(f"{field}: at least 1 token, got 0", code="empty_prompt", param=field)
        room = target.tokens_max - len(prompt)
        least = max(1, ask.min_tokens) if asked is None else asked
        if room < least:
            raise self._too_long(target, field, str(len(prompt)), least)
        return room if asked is None else asked

    def _too_long(self, target: Target, field: str, prompt: str, asked: int) -> InvalidRequest:
        limit, model = target.tokens_max, self._handle.model
        why = model.context_limit if limit == model.context_length else "the page pool beside the adapter"
        return InvalidRequest(
            f"{field}: {prompt} prompt tokens and {asked} to make, together at most {limit} ({why})",
            code="context_length_exceeded",
            param=field,
        )
