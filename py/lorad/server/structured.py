"""`response_format`, vLLM's `structured_outputs` and its older `guided_…` fields: one form that an answer takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from lorad.errors import InvalidRequest
from lorad.grammars.build import OBJECT, WHITESPACE, choice_rule, of_grammar, of_rule, regex_rule, schema_rule

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Of a schema or a function, as OpenAI wants them."""


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A named schema. It's followed whatever `strict` says."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's, since 0.12."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None
    structural_tag: Any = None


class Fields(Protocol):
    """What a request says about the form of its answers."""

    ignore_eos: bool | None
    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    guided_json: str | dict[str, Any] | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None


class Form(NamedTuple):
    """The form of an answer, read and not compiled yet: that may take a second and belongs on a thread."""

    field: str
    """The field that asked for it, for messages."""
    rule: Callable[[], str] | None
    """Makes the rule that an answer follows. None: `text` is a whole grammar."""
    text: str = ""

    def grammar(self) -> str:
        """llguidance's form of it. Refuses what can't be followed."""
        return of_grammar(self.text, self.field) if self.rule is None else of_rule(self.rule())


def form_of(request: Fields) -> Form | None:
    """The form that a request wants, None: any text. Refuses several at once."""
    found = [form for form in (_of_format(request.response_format), *_of_structured(request)) if form is not None]
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[1].field}: not together with {found[0].field}",
            code="field_conflict",
            param=found[1].field.split(".", maxsplit=1)[0],
        )
    if found and request.ignore_eos:
        raise InvalidRequest(
            f"ignore_eos: not together with {found[0].field}, which says where the answer ends",
            code="field_conflict",
            param="ignore_eos",
        )
    return found[0] if found else None


def _of_format(given: ResponseFormat | None) -> Form | None:
    if given is None:
        return None
    field, schema = "response_format", given.json_schema
    if given.type not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(
            f"{field}.type: one of text, json_object, json_schema, got {given.type[:100]!r}",
            code="field_value",
            param=field,
        )
    if (schema is None) == (given.type == "json_schema"):
        wrong = "required with" if schema is None else "not with"
        raise InvalidRequest(f"{field}.json_schema: {wrong} type {given.type!r}", code="field_needs", param=field)
    if given.type == "text":
        return None
    if schema is None:
        return Form(field, lambda: schema_rule(OBJECT, field))
    if not NAME.fullmatch(schema.name):
        raise InvalidRequest(
            f"{field}.json_schema.name: 1 to 64 letters, digits, _ and -, got {schema.name[:100]!r}",
            code="field_value",
            param=field,
        )
    wanted = OBJECT if schema.schema is None else schema.schema
    return Form(field, lambda: schema_rule(wanted, f"{field}.json_schema.schema"))


def _of_structured(request: Fields) -> list[Form | None]:
    found = [
        _of_json(request.guided_json, "guided_json", WHITESPACE),
        _of_regex(request.guided_regex, "guided_regex"),
        _of_choice(request.guided_choice, "guided_choice"),
        _of_text(request.guided_grammar, "guided_grammar"),
    ]
    given, field = request.structured_outputs, "structured_outputs"
    if given is None:
        return found
    for name in ("structural_tag", "disable_additional_properties", "disable_fallback"):
        if getattr(given, name) not in (None, False):
            raise InvalidRequest(f"{field}.{name}: not supported yet", code="unsupported_field", param=field)
    whitespace = None if given.disable_any_whitespace else given.whitespace_pattern or WHITESPACE
    one = [
        _of_json(given.json, f"{field}.json", whitespace),
        _of_json(OBJECT if given.json_object else None, f"{field}.json_object", whitespace),
        _of_regex(given.regex, f"{field}.regex"),
        _of_choice(given.choice, f"{field}.choice"),
        _of_text(given.grammar, f"{field}.grammar"),
    ]
    if not any(one):
        raise InvalidRequest(
            f"{field}: one of json, json_object, regex, choice, grammar is required", code="field_needs", param=field
        )
    return found + one


def _of_json(given: str | dict[str, Any] | None, field: str, whitespace: str | None) -> Form | None:
    if given is None:
        return None
    schema: Any = given
    if isinstance(given, str):
        try:
            schema = msgspec.json.decode(given)  # the body's decoder: what isn't text there isn't here
        except (ValueError, RecursionError):
            raise InvalidRequest(
                f"{field}: a JSON schema, or one as text, got a text that isn't JSON",
                code="json_schema",
                param=field.split(".", maxsplit=1)[0],
            ) from None
    return Form(field, lambda: schema_rule(schema, field, whitespace=whitespace))


def _of_regex(expression: str | None, field: str) -> Form | None:
    return None if expression is None else Form(field, lambda: regex_rule(expression, field))


def _of_choice(choices: list[str] | None, field: str) -> Form | None:
    return None if choices is None else Form(field, lambda: choice_rule(choices, field))


def _of_text(grammar: str | None, field: str) -> Form | None:
    return None if grammar is None else Form(field, None, grammar)
