"""`Echo`: a prompt as the beginning of its answer, with how probable each of its tokens was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lorad.engine.messages import TokenLogprobs
from lorad.text.stream import TextStream
from lorad.text.tokenizer import Tokenizer


class EchoEntry(NamedTuple):
    """One token of the prompt; `offset` is where its text begins."""

    token: int
    offset: int
    logprobs: TokenLogprobs | None
    """None: the first one, which nothing comes before."""


class Echo(NamedTuple):
    """A prompt's text and tokens."""

    text: str
    entries: tuple[EchoEntry, ...]
    """Empty if nobody asked for log-probabilities."""


def echo_of(
    tokenizer: Tokenizer, prompt: Sequence[int], scores: Sequence[TokenLogprobs], *, skip_special: bool = True
) -> Echo:
    """`scores`: of the tokens from the second on, or none at all. `skip_special`: special tokens are no text."""
    stream, parts, offsets = TextStream(tokenizer, skip_special=skip_special), [], []
    for token in prompt:
        offsets.append(stream.characters)
        parts.append(stream.push(token))
    text = "".join(parts) + stream.flush()
    if len(scores) != len(prompt) - 1:
        return Echo(text, ())
    return Echo(text, tuple(map(EchoEntry, prompt, offsets, (None, *scores))))
