"""`tools`, `tool_choice`, `parallel_tool_calls` and the messages that carry calls and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from lorad.errors import InvalidRequest
from lorad.grammars.build import OBJECT, schema_rule
from lorad.grammars.calls import calls_grammar
from lorad.server.fields import check_length
from lorad.server.structured import NAME, Form

SPACE = r"\x20"
"""Between two parts of a call's arguments: at most one space, as models write them."""

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The parameters of a function that names none."""


class Function(msgspec.Struct, forbid_unknown_fields=True):
    """What a model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    """Only functions are known."""

    type: str
    function: Function | None = None
    custom: Any = None


class ChosenFunction(msgspec.Struct, forbid_unknown_fields=True):
    """Its name."""

    name: str


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """A function that must be called."""

    type: str
    function: ChosenFunction | None = None
    allowed_tools: Any = None
    custom: Any = None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """What an assistant called, with its arguments as JSON text."""

    name: str
    arguments: str
    parsed_arguments: Any = None
    """The same again: the OpenAI client's helpers send back what they made of an answer."""


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call in an assistant's message."""

    id: str
    type: str
    function: CalledFunction
    index: int | None = None
    """Streamed calls have it, and clients send them back."""


class Fields(Protocol):
    """What a request says about tools."""

    ignore_eos: bool | None
    tools: list[Tool] | None
    tool_choice: str | Choice | None
    parallel_tool_calls: bool | None


class Calling(NamedTuple):
    """Tools that an answer may or must call, read and not compiled yet: a `Form` with calls in it."""

    field: str
    functions: Sequence[tuple[int, Function]]
    """Those that may be called, each with its place in the request."""
    required: bool
    several: bool
    answer: Form | None
    """The form of an answer without a call."""
    told: Sequence[Mapping[str, Any]]
    """All of them, as templates know tools."""

    def grammar(self) -> str:
        """llguidance's form of it. Refuses parameters that can't be followed where they have to be."""
        rules = {function.name: self._arguments(index, function) for index, function in self.functions}
        answer = None if self.answer is None or self.answer.rule is None else self.answer.rule()
        return calls_grammar(rules, required=self.required, several=self.several, answer=answer)

    def _arguments(self, index: int, function: Function) -> str:
        schema = NOTHING if function.parameters is None else function.parameters
        if not (self.required or function.strict):
            schema = OBJECT
        # Arguments are an object, whether or not their schema says so.
        whole = {"type": "object", **schema}
        return schema_rule(whole, f"tools[{index}].function.parameters", whitespace=SPACE)


def calling_of(request: Fields, form: Form | None) -> Calling | None:
    """What a request wants of tools, None: they are neither told nor called. `form`: of answers without a call."""
    tools = functions_of(request.tools)
    name = _chosen(request.tool_choice)
    if not tools:
        if name not in ("", "auto", "none"):
            raise _wrong("tool_choice: wants tools", "field_needs", "tool_choice")
        return None
    if name == "none":
        return None
    if request.ignore_eos:
        raise _wrong("ignore_eos: not together with tools, whose calls end the answer", "field_conflict", "ignore_eos")
    if form is not None and form.rule is None:
        raise _wrong(f"{form.field}: not together with tools", "field_conflict", form.field.split(".", maxsplit=1)[0])
    named = isinstance(request.tool_choice, Choice)
    functions = [(index, tool) for index, tool in enumerate(tools) if not named or tool.name == name]
    if not functions:
        raise _wrong(f"tool_choice.function.name: {name[:100]!r} isn't among tools", "field_value", "tool_choice")
    return Calling(
        "tools",
        functions,
        required=named or name == "required",
        several=not named and request.parallel_tool_calls is not False,
        answer=form,
        told=told_of(tools),
    )


def functions_of(given: Sequence[Tool] | None) -> list[Function]:
    """The functions that a request tells of, each with another name."""
    tools = [_function(tool, index) for index, tool in enumerate(given or [])]
    check_length("tools", len(tools))
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise _wrong(f"tools[{index}].function.name: {tool.name!r} is there twice", "duplicate_field", "tools")
        names.add(tool.name)
    return tools


def told_of(functions: Iterable[Function]) -> list[dict[str, Any]]:
    """Functions as templates know tools."""
    return [{"type": "function", "function": _told(function)} for function in functions]


def _function(tool: Tool, index: int) -> Function:
    where = f"tools[{index}]"
    if tool.type != "function":
        raise _wrong(
            f"{where}.type: only 'function' is supported, got {tool.type[:100]!r}", "unsupported_field", "tools"
        )
    if tool.custom is not None:
        raise _wrong(f"{where}.custom: not in a tool of type 'function'", "unsupported_field", "tools")
    if tool.function is None:
        raise _wrong(f"{where}.function: required", "missing_field", "tools")
    if not NAME.fullmatch(tool.function.name):
        raise _wrong(
            f"{where}.function.name: 1 to 64 letters, digits, _ and -, got {tool.function.name[:100]!r}",
            "field_value",
            "tools",
        )
    kind = (tool.function.parameters or {}).get("type", "object")
    if kind != "object":
        raise _wrong(f"{where}.function.parameters.type: 'object', got {str(kind)[:100]!r}", "json_schema", "tools")
    return tool.function


def _chosen(given: str | Choice | None) -> str:
    """none, auto, required, a function's name, or "" where nothing was said."""
    if given is None:
        return ""
    if isinstance(given, str):
        if given not in ("none", "auto", "required"):
            raise _wrong(
                f"tool_choice: none, auto, required or a function, got {given[:100]!r}", "field_value", "tool_choice"
            )
        return given
    if given.type != "function" or given.allowed_tools is not None or given.custom is not None:
        raise _wrong(
            f"tool_choice.type: only 'function' is supported, got {given.type[:100]!r}",
            "unsupported_field",
            "tool_choice",
        )
    if given.function is None:
        raise _wrong("tool_choice.function: required", "missing_field", "tool_choice")
    return given.function.name


def _told(function: Function) -> dict[str, Any]:
    """A function as templates write it: what wasn't given isn't there."""
    told: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        told["description"] = function.description
    return told | {"parameters": NOTHING if function.parameters is None else function.parameters}


def plain_calls(calls: Sequence[ToolCall], where: str) -> list[dict[str, Any]]:
    """An assistant's calls as templates know them: with arguments as values."""
    return [_plain_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]


def _plain_call(call: ToolCall, where: str) -> dict[str, Any]:
    if call.type != "function":
        raise _wrong(
            f"{where}.type: only 'function' is supported, got {call.type[:100]!r}", "unsupported_field", "messages"
        )
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise _wrong(
            f"{where}.function.arguments: a JSON object as text, got {call.function.arguments[:100]!r}",
            "field_value",
            "messages",
        )
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def check_results(messages: Iterable[Mapping[str, Any]]) -> None:
    """Refuses a result of a call that nobody made before it."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        called |= {call["id"] for call in message.get("tool_calls", ())}
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            raise _wrong(
                f"messages[{index}].tool_call_id: no assistant before it has made the call "
                f"{message['tool_call_id'][:100]!r}",
                "tool_call_id",
                "messages",
            )


def _wrong(message: str, code: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, code=code, param=param)
