"""The one way from token ids to a client's text, for every endpoint, streamed or not."""

from __future__ import annotations

from collections.abc import Sequence

from lorad.text.detokenize import Detokenizer
from lorad.text.stops import StopMatcher
from lorad.text.tokenizer import Tokenizer


class TextStream:
    """Decodes one sequence and cuts it at its stop strings."""

    __slots__ = ("_detokenizer", "_matcher", "_tokens_left", "characters")

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        skip_special: bool = True,
        keep_stop: bool = False,
    ) -> None:
        """`min_tokens`: a stop string that these complete doesn't count. `skip_special`: special tokens are no text.
        `keep_stop`: the text ends with the stop string that ended it."""
        self._tokens_left = min_tokens
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._matcher = StopMatcher(stops, keep=keep_stop) if stops else None
        self.characters = 0
        """Characters decoded so far, whether sent or held."""

    @property
    def stopped(self) -> bool:
        """A stop string was found: what follows isn't wanted."""
        return self._matcher is not None and self._matcher.stopped

    def push(self, token_id: int) -> str:
        """The text that may go out now that this token has come."""
        text = self._detokenizer.push(token_id)
        self.characters += len(text)
        if self._matcher is None:
            return text
        self._tokens_left -= 1
        return self._matcher.push(text, counts=self._tokens_left < 0)

    def flush(self) -> str:
        """The rest, when no token follows."""
        text = self._detokenizer.flush()
        if self._matcher is None:
            return text
        return self._matcher.push(text, counts=self._tokens_left < 0) + self._matcher.flush()
