"""Text from tokens as they come: what is complete goes out at once, what isn't waits for the next token.

The text of all pushes and the final flush is the tokenizer's decode of all ids: both join the tokens' bytes and read
them as UTF-8, with one replacement character for each part that can't become a character any more.
"""

from __future__ import annotations

import codecs

from lorad.text.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence."""

    __slots__ = ("_bytes", "_decoder")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        """Special tokens are nothing, or their names."""
        self._bytes = tokenizer.text_bytes if skip_special else tokenizer.token_bytes
        self._decoder = _new_decoder("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        return self._decoder.decode(self._bytes(token_id))

    def flush(self) -> str:
        """What is left when no token follows: a character that was begun and never completed."""
        return self._decoder.decode(b"", final=True)
