"""The base that an adapter says it was trained on, beside the one that it's loaded for.

Names prove nothing: one model has many (a quantised copy, a fork, a folder), and another may have its shapes. What the
weights need is checked by shapes and, where parts need it, by the base's values; of a name that has nothing in common
with the base's the operator is told.
"""

from __future__ import annotations

import re
from typing import Any

_REPOSITORY = re.compile(r"[\w.-]+/([\w.-]+)")
"""organisation/name on the Hub. Anything else is a path of the machine that it was trained on."""
_SHORTEST = 3
_HASH = re.compile(r"[0-9a-f]{32,}")
"""What a folder of the Hub's cache is called."""
_COMMON = {
    "base", "model", "instruct", "chat", "gguf", "bnb", "awq", "gptq", "int", "mlx", "final", "checkpoint", "merged",
}  # fmt: skip
"""Words that many models have."""


def doubt(declared: Any, base: str) -> tuple[str, ...]:
    """A warning if `base_model_name_or_path` shares no word with the base's name, as far as both have any."""
    repository = _REPOSITORY.fullmatch(declared) if isinstance(declared, str) else None
    if repository is None:
        return ()
    there, here = _words(repository[1]), _words(base)
    if not there or not here or there & here:
        return ()
    return (
        f"base_model_name_or_path = {declared!r}, the base here is {base!r}: if they aren't the same model, its "
        "answers are wrong",
    )


def _words(name: str) -> set[str]:
    """Those that say which model it is; "Llama-3.1-8B", "llama3" → {"llama"}, as many are of 8 B."""
    whole = re.split(r"[^a-z0-9]+", name.lower())
    words = {word.rstrip("0123456789") for word in whole if not _HASH.fullmatch(word)}
    return {word for word in words if len(word) >= _SHORTEST and word[0].isalpha() and word not in _COMMON}
