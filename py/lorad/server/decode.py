"""A request's body to a struct: exactly JSON, exactly an object, exactly the known fields, exactly their types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from lorad.errors import InvalidRequest
from lorad.server.fields import RANGES, check_default, out_of_range

T = TypeVar("T", bound=msgspec.Struct)

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<where>.*?)(?P<key>\[\.\.\.\])?`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`")
_TOO_LARGE = ("Number out of range", "Integer value out of range")
_NAMES_SHOWN_MAX = 10
_NAME_SHOWN_MAX = 100

_top: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_content_type(given: str) -> None:
    """JSON only: a browser's form could send anything else across origins. An absent header is fine."""
    kind = given.partition(";")[0].strip().lower()
    if kind not in ("", "application/json") and not (kind.startswith("application/") and kind.endswith("+json")):
        raise InvalidRequest(
            f"Content-Type: application/json is wanted, got {kind[:_NAME_SHOWN_MAX]!r}", code="content_type"
        )


def decode(body: bytes, kind: type[T], defaults_only: dict[str, tuple[Any, ...]]) -> T:
    """The struct that `body` holds; `defaults_only` are known fields that are taken at these values only."""
    if not body.strip():
        raise InvalidRequest("the body is empty; a JSON object is wanted", code="body_json")
    fields: dict[str, msgspec.Raw] = {}
    try:
        fields = _top.decode(body)
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        unknown = [name for name in fields if name not in known and name not in defaults_only]
        if unknown:
            raise InvalidRequest(
                f"unknown field{'s' if len(unknown) > 1 else ''}: {_listed(unknown)}",
                code="unknown_field",
                param=unknown[0][:_NAME_SHOWN_MAX],
            )
        decoded = msgspec.json.decode(body, type=kind)
        # Which of two equal keys counts differs between parsers; what a proxy checked must be what runs here.
        json.loads(body, object_pairs_hook=_no_duplicates)
        for name in fields:
            if name in defaults_only:
                check_default(name, json.loads(bytes(fields[name])), defaults_only[name])
        return decoded
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), fields) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else _lone_surrogate(body) or str(error)
        raise InvalidRequest(f"the body isn't valid JSON: {why}", code="body_json") from None


def _lone_surrogate(body: bytes) -> str:
    """What is wrong with a body that is JSON but for half of a surrogate pair, which no text has; "" for others."""
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"{error.object[error.start]!a} is half of a surrogate pair"
    except (ValueError, RecursionError):
        pass
    return ""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidRequest(
            f"the field {twice[:_NAME_SHOWN_MAX]!r} is given twice",
            code="duplicate_field",
            param=twice[:_NAME_SHOWN_MAX],
        )


def _wrong_type(message: str, fields: Mapping[str, msgspec.Raw]) -> InvalidRequest:
    """msgspec's message with the field first; `fields`: what each was given as."""
    match = _AT.match(message)
    what, where = (match["what"], match["where"] or "") if match else (message, "")
    if missing := _MISSING.match(what):
        name = _joined(where, missing["field"])
        return InvalidRequest(f"{name}: required", code="missing_field", param=name)
    if unknown := _UNKNOWN.match(what):
        name = _joined(where, unknown["field"][:_NAME_SHOWN_MAX])
        return InvalidRequest(f"unknown field: {name!r}", code="unknown_field", param=name)
    if what in _TOO_LARGE and where in RANGES:
        return out_of_range(where, bytes(fields[where]).decode())
    if not where:
        return InvalidRequest(f"the body: {what[0].lower()}{what[1:]}", code="body_object")
    return InvalidRequest(f"{where}: {what[0].lower()}{what[1:]}", code="field_type", param=where.split("[")[0])


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name[:_NAME_SHOWN_MAX]) for name in names[:_NAMES_SHOWN_MAX])
    return shown + (f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else "")
