"""JSON schemas, regular expressions, choices and grammars as the texts that llguidance compiles.

Each is checked where it's made: what is wrong with it is the request's fault, and is told before the engine hears of
it. Lengths are bounded so that no mask of a step takes long: llguidance's own limits bound the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lorad.errors import InvalidRequest
from lorad.grammars.place import place_of, strings_of

SCHEMA_CHARACTERS = 1 << 16
"""Of a schema as compact JSON. One as long takes about a second to compile, off the step."""
STRING_CHARACTERS = 1 << 12
"""Of one text in a schema that the answer follows: a constant, a pattern, a name."""
REGEX_CHARACTERS = 1 << 12
GRAMMAR_CHARACTERS = 1 << 14
CHOICES, CHOICE_CHARACTERS = 1024, 1024

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
"""Between two parts of JSON. Without a limit a small model may never leave it."""

OBJECT: dict[str, Any] = {"type": "object"}

_SHOWN_MAX = 300


def of_rule(rule: str) -> str:
    """The grammar of an answer that is one of the rules below."""
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_lark(f"start: {rule}\n"))


def schema_rule(schema: Any, where: str, *, whitespace: str | None = WHITESPACE) -> str:
    """JSON that follows a schema. Refuses one that can't be followed, naming the place.

    `where`: the schema's own place in the request; `whitespace`: an expression for what may stand between two parts,
    None: nothing.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(
            f"{where}: a JSON schema is an object, got {type(schema).__name__}", code="json_schema", param=_field(where)
        )
    spaces = {"whitespace_flexible": False} if whitespace is None else {"whitespace_pattern": whitespace}
    try:
        text = _compact(schema)
    except RecursionError:
        raise InvalidRequest(f"{where}: it is nested too deeply", code="json_schema", param=_field(where)) from None
    _check_length(where, text, SCHEMA_CHARACTERS)
    for place, string in strings_of(schema):
        _check_length(where + place, string, STRING_CHARACTERS)
    text = _compact({**schema, "x-guidance": spaces})
    if error := _error_of_schema(text):
        place = place_of(schema, error, _error_of_schema)
        raise InvalidRequest(f"{where}{place}: {_short(error)}", code="json_schema", param=_field(where))
    return f"%json {text}"


def regex_rule(expression: str, where: str) -> str:
    """Text that is matched as a whole by an expression in the syntax of Rust's `regex`, where \\d and \\w are ASCII."""
    from llguidance import regex_to_lark

    _check_length(where, expression, REGEX_CHARACTERS)
    rule = f"/{regex_to_lark(expression, 'dw')}/"
    _check(of_rule(rule), where, "regex")
    return rule


def choice_rule(choices: Sequence[str], where: str) -> str:
    """One of these texts."""
    if not 1 <= len(choices) <= CHOICES:
        raise InvalidRequest(
            f"{where}: 1 to {CHOICES} entries, got {len(choices)}", code="field_length", param=_field(where)
        )
    for index, choice in enumerate(choices):
        if not choice:
            raise InvalidRequest(f"{where}[{index}]: an empty string", code="field_length", param=_field(where))
        _check_length(f"{where}[{index}]", choice, CHOICE_CHARACTERS)
    _check_length(where, "".join(choices), SCHEMA_CHARACTERS)
    rule = " | ".join(map(literal, choices))
    _check(of_rule(rule), where, "choice")
    return rule


def of_grammar(text: str, where: str) -> str:
    """The grammar of an answer that follows one in llguidance's variant of Lark, or in GBNF."""
    from llguidance import grammar_from

    _check_length(where, text, GRAMMAR_CHARACTERS)
    try:
        grammar = grammar_from("grammar", text)
    except ValueError as error:
        raise InvalidRequest(f"{where}: {_short(str(error))}", code="grammar", param=_field(where)) from None
    _check(grammar, where, "grammar")
    return grammar


def literal(text: str) -> str:
    """A text as it stands in a rule."""
    return json.dumps(text, ensure_ascii=False)


def _compact(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _error_of_schema(text: str) -> str:
    from llguidance import LLMatcher

    return _error_of(LLMatcher.grammar_from_json_schema(text))


def _error_of(grammar: str) -> str:
    from llguidance import LLMatcher

    error = str(LLMatcher.validate_grammar(grammar))
    return "" if error.startswith("WARNING") else error


def _check(grammar: str, where: str, code: str) -> None:
    if error := _error_of(grammar):
        raise InvalidRequest(f"{where}: {_short(error)}", code=code, param=_field(where))


def _check_length(where: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidRequest(
            f"{where}: at most {limit} characters, got {len(text)}", code="field_length", param=_field(where)
        )


def _field(where: str) -> str:
    return re.split(r"[.\[]", where, maxsplit=1)[0]


def _short(error: str) -> str:
    text = " ".join(error.split())
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
