"""Where in a JSON schema the fault is: llguidance says what is wrong, and not where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

PROBES = 256
"""Schemas that are compiled to find the place; what is found by then is told."""

SHOWN_MAX = 64
"""Characters of a name in a path."""

_REMARKS = ("title", "description", "$comment", "examples", "default")
_MAPS = ("$defs", "definitions", "properties", "patternProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONES = ("items", "additionalProperties")


def place_of(schema: Any, error: str, error_of: Callable[[str], str]) -> str:
    """The path to the innermost part of `schema` that has this error by itself, as `.properties.age`; "": the whole."""
    root, path, probes = schema, "", 0
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root} if isinstance(root, dict) else {}
    while isinstance(schema, dict):
        for step, part in _parts(schema):
            probes += 1
            if probes > PROBES:
                return path
            # What a part refers to is found where it was.
            if isinstance(part, dict) and error_of(json.dumps({**shared, **part})) == error:
                schema, path = part, path + step
                break
        else:
            break
    return path


def strings_of(schema: Any) -> Iterator[tuple[str, str]]:
    """(path, text) of all that an answer may have to spell: constants, patterns, names."""
    rest = [("", schema)]
    while rest:
        path, part = rest.pop()
        if isinstance(part, str):
            yield path, part
        elif isinstance(part, list):
            rest += [(f"{path}[{index}]", item) for index, item in enumerate(part)]
        elif isinstance(part, dict):
            yield from ((path, key) for key in part)
            named = [(f"{path}.{key[:SHOWN_MAX]}", key, item) for key, item in part.items()]
            rest += [(path, item) for path, key, item in named if key not in _REMARKS or not isinstance(item, str)]


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _MAPS:
        if isinstance(parts := schema.get(key), dict):
            yield from ((f".{key}.{name[:SHOWN_MAX]}", part) for name, part in parts.items())
    for key in _LISTS:
        if isinstance(parts := schema.get(key), list):
            yield from ((f".{key}[{index}]", part) for index, part in enumerate(parts))
    yield from ((f".{key}", schema[key]) for key in _ONES if key in schema)
