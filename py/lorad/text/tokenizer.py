"""`Tokenizer`: text to ids and back, over the `tokenizers` library, with the bytes of every token at hand.

Decoding a token at a time needs each token's bytes, so a tokenizer whose decoder isn't a plain map from tokens to bytes
is refused at load. The two that occur are: byte-level BPE (GPT-2's alphabet) and SentencePiece with byte fallback.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import tokenizers

from lorad.errors import InvalidRequest, ModelRejected

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_PIECE_DECODERS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class Tokenizer:
    """A tokenizer of one base model. Safe to use from several threads."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        end_ids: Iterable[int],
        bos_token: str = "",
        eos_token: str = "",
    ) -> None:
        self.core = core
        core.no_truncation()
        core.no_padding()
        self.size: int = core.get_vocab_size(with_added_tokens=True)
        self.end_ids = tuple(sorted(set(end_ids)))
        """Tokens that end a text."""
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.special_ids = frozenset(
            token_id for token_id, token in core.get_added_tokens_decoder().items() if token.special
        )
        self._byte_level = _is_byte_level(core)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; with the tokens that the model puts around a plain text, if it has any."""
        try:
            ids: list[int] = self.core.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequest(
                    f"prompt: half of a surrogate pair isn't text, got {text[error.start]!r}",
                    code="text_unicode",
                    param="prompt",
                ) from None
            raise
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; special tokens are left out, or are there by name. Ids that are no token are nothing."""
        text: str = self.core.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def names(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        return [self.core.id_to_token(token_id) or "" for token_id in ids]

    def text_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text: nothing for special tokens and for ids beyond the vocabulary."""
        table = self._text_bytes
        return table[token_id] if 0 <= token_id < len(table) else b""

    def token_bytes(self, token_id: int) -> bytes:
        """What a token is called in log-probabilities: special tokens have their names here."""
        if token_id in self.special_ids:
            return (self.core.id_to_token(token_id) or "").encode()
        return self.text_bytes(token_id)

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: a text of n bytes has at least n / longest_token tokens."""
        return max((len(self.token_bytes(token_id)) for token_id in range(self.size)), default=1)

    @cached_property
    def _text_bytes(self) -> list[bytes]:
        table = [b""] * self.size
        added = self.core.get_added_tokens_decoder()
        for token, token_id in self.core.get_vocab(with_added_tokens=True).items():
            if token_id >= len(table):
                table.extend([b""] * (token_id + 1 - len(table)))
            if token_id in self.special_ids:
                continue
            if token_id in added and not self._byte_level:
                table[token_id] = token.encode()
            else:
                table[token_id] = _level_bytes(token) if self._byte_level else _piece_bytes(token)
        return table


def _is_byte_level(core: tokenizers.Tokenizer) -> bool:
    """Which of the two known decoders this is."""
    state = json.loads(core.decoder.__getstate__()) if core.decoder is not None else {}
    parts = state["decoders"] if state.get("type") == "Sequence" else [state]
    kinds = {part.get("type") for part in parts}
    if kinds == {"ByteLevel"}:
        return True
    if kinds and kinds <= _PIECE_DECODERS:
        return False
    raise ModelRejected(
        f"the tokenizer's decoder ({', '.join(sorted(map(str, kinds)))}) isn't a map from tokens to bytes",
        code="tokenizer_decoder",
    )


def byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return letters


_ALPHABET = byte_alphabet()


def _level_bytes(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[letter] for letter in token])
    except KeyError:
        # An added token in plain letters: it stands for itself.
        return token.encode()


def _piece_bytes(token: str) -> bytes:
    byte = _BYTE_TOKEN.match(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
