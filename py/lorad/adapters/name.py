"""What an adapter may be called."""

from __future__ import annotations

import unicodedata

from lorad.errors import InvalidRequest
from lorad.models.fields import shown

NAME_LENGTH_MAX = 256


def check_name(name: str) -> str:
    """`name`, if it is one: text of 1 to 256 characters that can be written and seen."""
    if not isinstance(name, str):
        raise _refused(f"an adapter's name is text, got {shown(name)}")
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise _refused(f"an adapter's name has 1 to {NAME_LENGTH_MAX} characters, got {len(name)}")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise _refused(f"an adapter's name has no control characters: {name!r}")
    return name


def _refused(what: str) -> InvalidRequest:
    return InvalidRequest(what, code="adapter_name")
