"""Tools in the text of a conversation, and calls read out of an answer wherever it's cut."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lorad.text.calls import CallDelta, CallReader
from lorad.text.template import ChatTemplate, Rendering
from lorad.text.tools import without_tools

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Now", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]
CALLS = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}]
CONVERSATION = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "tool", "content": "rain", "tool_call_id": "1"},
    {"role": "tool", "content": "wind", "tool_call_id": "1"},
]
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}"""  # noqa: E501
"""Qwen2.5's template, shortened to what it does with tools."""
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_a_template_knows_tools_in_this_form_or_is_told_them() -> None:
    assert ChatTemplate(QWEN).tools
    assert not ChatTemplate(PLAIN).tools
    assert not ChatTemplate("{% if tools %}{{ tools }}[TOOL_CALLS]{% endif %}").tools, "another form"
    assert not ChatTemplate("<tool_call>{{ messages }}").tools


def test_what_others_are_told_is_what_qwens_template_writes() -> None:
    told = ChatTemplate(QWEN).render(CONVERSATION, tools=TOOLS, rendering=Rendering(add_generation_prompt=False))
    plain = without_tools(CONVERSATION, TOOLS)
    assert ChatTemplate(PLAIN).render(plain, rendering=Rendering(add_generation_prompt=False)) == told
    assert '{"name": "weather", "arguments": {"city": "Zürich"}}' in told and "rain" in told


def test_without_tools_only_roles_change() -> None:
    plain = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert without_tools(plain, None) == plain and without_tools([], []) == []
    told = without_tools(plain[:1], TOOLS)
    assert [message["role"] for message in told] == ["system", "user"]
    assert [message["role"] for message in without_tools(CONVERSATION, None)] == ["system", "user", "assistant", "user"]


ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "a\\"}{", "b": [{"c": "\\\\"}]}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
ARGUMENTS = ['{"city": "a\\"}{", "b": [{"c": "\\\\"}]}', "{}"]


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        ("", "", 0),
        ("Hello <b>there</b> <tool_cal", "Hello <b>there</b> <tool_cal", 0),
        (ONE, "", 1),
        (ONE + "\n" + TWO, "", 2),
        ("I look.\n" + ONE + "\n" + TWO + "\n", "I look.\n", 2),
        (ONE + "\nDone < that.", "\nDone < that.", 1),
        ('Well <tool_call>\n{"name": "wea', 'Well <tool_call>\n{"name": "wea', 0),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_calls_are_read_wherever_an_answer_is_cut(answer: str, text: str, calls: int, seed: int) -> None:
    dice, reader = random.Random(seed), CallReader()
    news: list[str | CallDelta] = []
    rest = answer
    while rest:
        size = 1 if seed == 0 else dice.randint(1, 30)
        news += reader.push(rest[:size])
        rest = rest[size:]
    assert not reader.inside or not calls
    assert "".join([one for one in news if isinstance(one, str)] + [reader.flush()]) == text
    assert [(call.name, call.arguments) for call in reader.calls] == list(
        zip(["weather", "time"], ARGUMENTS, strict=True)
    )[:calls]
    for call in reader.calls:
        mine = [one for one in news if isinstance(one, CallDelta) and one.number == call.number]
        assert (mine[0].name, mine[0].arguments) == (call.name, "") and {one.id for one in mine} == {call.id}
        assert "".join(one.arguments for one in mine) == call.arguments
        assert all(one.name is None for one in mine[1:])
    assert len({call.id for call in reader.calls}) == calls


def test_an_answer_that_is_cut_in_a_call_has_its_beginning() -> None:
    reader = CallReader()
    reader.push(ONE[:-30])
    assert reader.inside and reader.flush() == ""
    assert reader.calls[0].name == "weather" and ARGUMENTS[0].startswith(reader.calls[0].arguments)
    held: Any = CallReader()
    assert held.push("a <") == ["a "] and held.push("b") == ["<b"]
