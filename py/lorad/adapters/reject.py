"""Refusals of adapters, by code.

adapter_missing         no folder or file, or no config or tensors in it (or in a format that isn't read)
adapter_file            a file that can't be read, is cut, or changed while it was read
adapter_split           tensors in several files that don't belong together as their index says
adapter_config          a field of adapter_config.json of the wrong type or value
adapter_feature         a feature that isn't supported, named by its field or tensor
adapter_added_tokens    tokens beyond the base's vocabulary
adapter_tensor          a tensor that nothing in the base corresponds to, or that is there twice
adapter_target          tensors of a module that adapter_config.json leaves out
adapter_base            made for a base of another architecture
adapter_pair            A without B, or B without A
adapter_dtype           a number type that isn't read
adapter_shape           a tensor that doesn't fit the base
adapter_rank            a rank that differs from the config's
adapter_rank_limit      a rank above --max-lora-rank
adapter_not_finite      NaN or infinity, or numbers that make them
adapter_no_effect       all its products are zero
adapter_chat_template   a chat template that can't be read, is too long, or doesn't parse
adapter_parity          its pages don't compute what its file says
adapter_image           no room on the disk for its pages, or too many files open
"""

from __future__ import annotations

import re

from lorad.errors import AdapterRejected

MESSAGE_LENGTH_MAX = 2000
_KEPT = 80
"""Of a longer word's beginning, and of its end."""
_LONG = re.compile(rf"\S{{{2 * _KEPT + 40},}}")


def readable(message: str) -> str:
    """`message` as one line of a terminal or a log can have it, whatever a file's names hold: a broken one may have
    megabytes, control characters, or halves of surrogate pairs, which no encoding takes."""
    cut = _LONG.sub(lambda match: f"{match[0][:_KEPT]}…{match[0][-_KEPT:]}", message)
    cut = cut if len(cut) <= MESSAGE_LENGTH_MAX else cut[: MESSAGE_LENGTH_MAX - 1] + "…"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in cut)


def reject(code: str, message: str) -> AdapterRejected:
    """A refusal with one of the codes above; `load_adapter` adds the adapter's name."""
    return AdapterRejected(message, code=code)
