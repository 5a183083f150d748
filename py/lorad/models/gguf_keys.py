"""`Keys`: what a GGUF file says about itself, each key read as the type that its use wants.

A file may have anything under any key. Nothing looks at a value but through this class, so one of another type is
refused by the key's name, wherever it is used, and code that uses it never meets one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lorad.errors import ModelRejected
from lorad.models import fields

Value = TypeVar("Value")


class Keys:
    """Checked reads. A key that is missing is the default; without one it's refused."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """`prefix` of every name, as in `llama.`."""
        self._values, self._prefix = values, prefix

    def within(self, prefix: str) -> Keys:
        """The keys that begin with `prefix`."""
        return Keys(self._values, self._prefix + prefix)

    def has(self, name: str) -> bool:
        """Is it there, whatever it is?"""
        return self._prefix + name in self._values

    def says(self, name: str) -> bool:
        """Is it there, and neither 0 nor false nor empty?"""
        return bool(self._values.get(self._prefix + name))

    def integer(self, name: str, default: int | None = None) -> int:
        return self._read(name, default, fields.integer)

    def number(self, name: str, default: float | None = None) -> float:
        return self._read(name, default, fields.number)

    def text(self, name: str, default: str | None = None) -> str:
        return self._read(name, default, fields.text)

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._read(name, default, fields.flag)

    def texts(self, name: str, default: list[str] | None = None) -> list[str]:
        return self._read(name, default, fields.texts)

    def integers(self, name: str, default: list[int] | None = None) -> list[int]:
        return self._read(name, default, fields.integers)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A token id, several, or none."""
        return self._read(name, (), fields.token_ids)

    def _read(self, name: str, default: Value | None, checked: Callable[[Any, str], Value]) -> Value:
        name = self._prefix + name
        if name in self._values:
            return checked(self._values[name], f"GGUF: {name}")
        if default is None:
            raise ModelRejected(f"GGUF: {name} is missing", code="model_config")
        return default


def end_ids(ggml: Keys) -> tuple[int, ...]:
    """All the tokens that end an answer: end of text, of turn, of message. `ggml`: the keys of the tokenizer."""
    found: dict[int, None] = {}
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        found |= dict.fromkeys(ggml.token_ids(key))
    return tuple(found)
