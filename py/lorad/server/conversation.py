"""A conversation as clients send it, and as templates know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from lorad.errors import InvalidRequest
from lorad.server.fields import check_length
from lorad.server.tools import ToolCall, check_results, plain_calls
from lorad.text.template import OWN_NAMES, Rendering

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles of a message and the one that the template sees. `developer` is OpenAI's later word for `system`."""


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message's content. Only text is served; the other parts' fields are known to be refused by type."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: Any = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    audio: Any = None
    annotations: Any = None
    function_call: Any = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    parsed: Any = None
    """The content again: the OpenAI client's helpers send back what they made of an answer."""


class RenderingFields(Protocol):
    """What a request says about how its conversation is written."""

    @property
    def messages(self) -> Sequence[Message] | None:
        """The conversation; None: there's another prompt."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None


def rendering_of(request: RenderingFields) -> Rendering:
    """How the template writes a request's conversation. A message that is continued leaves no room for the beginning of
    another one, which is the default otherwise."""
    begin, go_on = request.add_generation_prompt, bool(request.continue_final_message)
    field = "continue_final_message"
    if go_on and begin:
        raise InvalidRequest(f"{field}: not with add_generation_prompt true", code="field_conflict", param=field)
    if go_on and request.messages and request.messages[-1].tool_calls:
        raise InvalidRequest(f"{field}: not behind a message with tool_calls", code="field_conflict", param=field)
    return Rendering(not go_on if begin is None else begin, go_on, _variables(request.chat_template_kwargs or {}))


def _variables(given: dict[str, Any]) -> dict[str, Any]:
    field = "chat_template_kwargs"
    check_length(field, len(given))
    for name in given:
        if name in OWN_NAMES:
            raise InvalidRequest(
                f"{field}.{name}: the template has this from elsewhere, so no variable may be called so",
                code="template_variable",
                param=f"{field}.{name}",
            )
    check_length(f"{field}[]", len(msgspec.json.encode(given)), param=field)
    return given


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation, checked, in the form that templates know."""
    if not messages:
        raise InvalidRequest("messages: at least 1 entry, got 0", code="field_length", param="messages")
    check_length("messages", len(messages))
    plain = [_plain(message, index) for index, message in enumerate(messages)]
    check_results(plain)
    return plain


def _plain(message: Message, index: int) -> dict[str, Any]:
    """A message as templates know it: a role, a text, and what it has to do with tools."""
    where = f"messages[{index}]"
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{where}.role: one of {', '.join(ROLES)}, got {message.role[:100]!r}", code="field_value", param="messages"
        )
    calls, result = message.tool_calls or None, message.tool_call_id
    absent: Mapping[str, Any] = {
        "refusal": message.refusal,
        "audio": message.audio,
        "annotations": message.annotations or None,
        "function_call": message.function_call,
        "tool_calls": None if message.role == "assistant" else calls,
        "tool_call_id": None if message.role == "tool" else result,
    }
    for name, value in absent.items():
        if value is not None:
            why = f"not in a message of role {message.role!r}" if name.startswith("tool") else "not supported yet"
            raise InvalidRequest(f"{where}.{name}: {why}", code="unsupported_field", param="messages")
    if message.content is None and calls is None:
        raise InvalidRequest(f"{where}.content: a string or text parts, got null", code="field_type", param="messages")
    plain: dict[str, Any] = {"role": ROLES[message.role], "content": _text(message.content or "", where)}
    if message.name is not None:
        plain["name"] = message.name
    if calls is not None:
        plain["tool_calls"] = plain_calls(calls, where)
    if message.role == "tool":
        if result is None:
            raise InvalidRequest(f"{where}.tool_call_id: required", code="missing_field", param="messages")
        plain["tool_call_id"] = result
    return plain


def _text(content: str | list[TextPart], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type != "text":
            raise InvalidRequest(
                f"{where}.content[{index}].type: only 'text' is supported, got {part.type[:100]!r}",
                code="unsupported_field",
                param="messages",
            )
        for name in ("image_url", "input_audio", "file", "refusal"):
            if getattr(part, name) is not None:
                raise InvalidRequest(
                    f"{where}.content[{index}].{name}: not in a part of type 'text'",
                    code="unsupported_field",
                    param="messages",
                )
        if part.text is None:
            raise InvalidRequest(f"{where}.content[{index}].text: required", code="missing_field", param="messages")
        texts.append(part.text)
    return "\n".join(texts)
