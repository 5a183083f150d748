"""Tools in the text of a conversation, in the form of Hermes: what Qwen's templates write, and what others are told.

A call is `<tool_call>`, a JSON object with `name` and `arguments`, `</tool_call>`, each on a line of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

BEGIN, END = "<tool_call>", "</tool_call>"

_BEFORE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_AFTER = f"""
</tools>

For each function call, return a json object with function name and arguments within {BEGIN}{END} XML tags:
{BEGIN}
{{"name": <function-name>, "arguments": <args-json-object>}}
{END}"""

Messages = Sequence[Mapping[str, Any]]


def without_tools(messages: Messages, tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """A conversation for a template that knows neither tools nor this form of them: plain texts of the roles system,
    user and assistant. Tools are told in the system's, results in the user's."""
    found: list[dict[str, Any]] = []
    if tools:
        text = _BEFORE + "\n".join(_json(tool) for tool in tools) + _AFTER
        first = messages[0] if messages and messages[0]["role"] == "system" else None
        told = text if first is None else f"{first['content']}\n\n{text}"
        found.append({"role": "system", "content": told})
        messages = messages[first is not None :]
    results = False
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            result = f"<tool_response>\n{content}\n</tool_response>"
            if results:
                found[-1]["content"] += "\n" + result
            else:
                found.append({"role": "user", "content": result})
        elif calls := message.get("tool_calls"):
            parts = [content] if content else []
            found.append({"role": "assistant", "content": "\n".join([*parts, *map(_call, calls)])})
        else:
            found.append(dict(message))
        results = message["role"] == "tool"
    return found


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    told = _json({"name": function["name"], "arguments": function["arguments"]})
    return f"{BEGIN}\n{told}\n{END}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
