"""`Asked`: what of a request's body decides where it goes. Whether the body is right, the server says that gets it."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import msgspec

UNIT_BYTES = 4
"""The router counts prompts in units of so many bytes, as it has no tokenizer."""
BLOCK_UNITS = 64
BLOCK_BYTES = UNIT_BYTES * BLOCK_UNITS
BLOCKS_MAX = 256
"""Blocks of a prompt that are looked at: a beginning that goes on after them is long enough."""


class _Fields(msgspec.Struct):
    model: str = ""
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    explain: bool = False


_decoder = msgspec.json.Decoder(_Fields)


class Asked(NamedTuple):
    """A request, as the router sees it."""

    model: str
    """"" for one that can't be read."""
    text: bytes
    """Of the prompt, as JSON: what two requests have in common at their beginnings, they have in common here."""
    units: int
    """Of the whole body."""
    explain: bool


def read(body: bytes) -> Asked:
    """What of it matters; a body that isn't right may go anywhere."""
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Asked("", b"", len(body) // UNIT_BYTES, False)
    # Without the end of the list: the next turn of a conversation goes on there.
    text = bytes(fields.messages).rstrip().removesuffix(b"]") or bytes(fields.prompt)
    return Asked(fields.model, text, len(body) // UNIT_BYTES, fields.explain)


def blocks(name: str, text: bytes) -> list[int]:
    """A hash of each whole block of a prompt and all before it, under an adapter's name."""
    hasher = blake2b(name.encode(errors="surrogatepass"), digest_size=8)
    hashes = []
    for begin in range(0, min(len(text), BLOCKS_MAX * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        hasher.update(text[begin : begin + BLOCK_BYTES])
        hashes.append(int.from_bytes(hasher.copy().digest(), "little"))
    return hashes


def key(name: str) -> int:
    """A name's hash: the same on every router, and after each start."""
    return int.from_bytes(blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
