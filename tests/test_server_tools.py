"""Tools over HTTP: what reaches the model and the engine, what comes back, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest

from lorad.engine.messages import Generate
from lorad.grammars.build import OBJECT, schema_rule
from lorad.grammars.calls import calls_grammar
from lorad.server.tools import NOTHING, SPACE
from serving import TEXT, Client, serving
from test_server_requests import CHAT, GOOD, MESSAGES, refused

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now", "parameters": PARAMETERS}}
TIME = {"type": "function", "function": {"name": "time"}}
TOOLS = [WEATHER, TIME]
NAMED = {"type": "function", "function": {"name": "time"}}

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
BOTH = CALL + '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


def says(text: str) -> Callable[[Generate], list[int]]:
    return lambda request: list(text.encode())


def rule(schema: dict[str, Any]) -> str:
    return schema_rule(schema, "x", whitespace=SPACE)


async def ask(client: Client, **fields: Any) -> dict[str, Any]:
    status, answer = await client.post(CHAT, **{"model": "base", "messages": MESSAGES, "tools": TOOLS} | fields)
    assert status == 200, answer
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def prompt(client: Client) -> str:
    """The last prompt, special tokens left out."""
    return TEXT.tokenizer.decode(client.engine.submitted[-1].prompt)


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools' text is longer than the small model's context."""
    monkeypatch.setattr("serving.CONTEXT", 4096)


async def test_choices_reach_the_engine_as_grammars() -> None:
    free, right, none = rule(OBJECT), rule(PARAMETERS), rule(NOTHING)
    strict = [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}, TIME]
    auto = {"weather": free, "time": free}
    for fields, rules, more in (
        ({}, auto, {"required": False, "several": True}),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, auto, {"required": False, "several": False}),
        ({"tools": strict}, {"weather": right, "time": free}, {"required": False, "several": True}),
        ({"tool_choice": "required"}, {"weather": right, "time": none}, {"required": True, "several": True}),
        ({"tool_choice": NAMED}, {"time": none}, {"required": True, "several": False}),
        (
            {"response_format": {"type": "json_object"}},
            auto,
            {"required": False, "several": True, "answer": schema_rule(OBJECT, "x")},
        ),
    ):
        async with serving() as client:
            client.engine.script = says("hi")
            await ask(client, **fields)
            assert client.engine.submitted[-1].sampling.grammar == calls_grammar(rules, **more), fields
            assert '"description": "Now"' in prompt(client) and "<tools>" in prompt(client)


async def test_no_tools_are_told_when_none_may_be_called() -> None:
    async with serving() as client:
        client.engine.script = says(CALL)
        for fields in ({"tool_choice": "none"}, {"tools": []}, {"tools": None, "tool_choice": "auto"}):
            choice = await ask(client, **fields)
            assert choice["message"]["content"] == CALL and "tool_calls" not in choice["message"]
            assert choice["finish_reason"] == "stop" and not client.engine.submitted[-1].sampling.grammar
            assert "<tools>" not in prompt(client)


async def test_calls_come_back() -> None:
    async with serving() as client:
        for said, content, names in (
            (CALL, None, ["weather"]),
            ("So: " + BOTH, "So: ", ["weather", "time"]),
            ("Nothing.", "Nothing.", []),
        ):
            client.engine.script = says(said)
            choice = await ask(client, logprobs=True)
            message = choice["message"]
            assert message["content"] == content and choice["finish_reason"] == ("tool_calls" if names else "stop")
            calls = message.get("tool_calls", [])
            assert [call["function"]["name"] for call in calls] == names
            assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
            assert not names or json.loads(calls[0]["function"]["arguments"]) == {"city": "Oslo"}
            assert len(choice["logprobs"]["content"]) == len(said)
        client.engine.script = says(CALL)
        choice = await ask(client, max_tokens=len(CALL) - 25)
        assert choice["finish_reason"] == "length" and choice["message"]["tool_calls"][0]["function"]["name"]


async def test_streams_tell_the_same() -> None:
    async with serving() as client:
        client.engine.script = says("So: " + BOTH)
        async with openai.AsyncOpenAI(base_url=client.address + "/v1", api_key="none", max_retries=0) as sdk:
            chunks = [
                chunk
                async for chunk in await sdk.chat.completions.create(
                    model="base",
                    messages=MESSAGES,  # type: ignore[arg-type]
                    tools=TOOLS,  # type: ignore[arg-type]
                    stream=True,
                    logprobs=True,
                    n=2,
                )
            ]
        for index in range(2):
            mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
            assert "".join(choice.delta.content or "" for choice in mine) == "So: "
            assert mine[-1].finish_reason == "tool_calls"
            assert sum(len(choice.logprobs.content or []) for choice in mine if choice.logprobs) == len("So: " + BOTH)
            calls = [call for choice in mine for call in choice.delta.tool_calls or []]
            for number, (name, arguments) in enumerate((("weather", {"city": "Oslo"}), ("time", {}))):
                news = [call for call in calls if call.index == number]
                assert news[0].id and news[0].type == "function" and news[0].function
                assert news[0].function.name == name and not any(call.id for call in news[1:])
                assert json.loads("".join(call.function.arguments or "" for call in news if call.function)) == arguments


async def test_results_are_told() -> None:
    async with serving() as client:
        client.engine.script = says("Rain.")
        call = {
            "id": "c1",
            "type": "function",
            "index": 0,
            "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
        }
        messages = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
        ]
        for tools in (TOOLS, None):
            choice = await ask(client, messages=messages, tools=tools)
            assert choice["message"]["content"] == "Rain."
            assert 'assistant:<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in prompt(
                client
            )
            assert "user:<tool_response>\nrain\n</tool_response>" in prompt(client)


class Weather(pydantic.BaseModel):
    city: str


async def test_the_openai_clients_helpers() -> None:
    async with serving() as client:
        client.engine.script = says(CALL.replace("weather", "Weather"))
        async with openai.AsyncOpenAI(base_url=client.address + "/v1", api_key="none", max_retries=0) as sdk:
            tool = openai.pydantic_function_tool(Weather)
            asked: dict[str, Any] = {"model": "base", "messages": MESSAGES, "tools": [tool]}
            answer = await sdk.chat.completions.parse(**asked)
            (call,) = answer.choices[0].message.tool_calls or []
            assert call.function.parsed_arguments == Weather(city="Oslo")
            async with sdk.chat.completions.stream(**asked) as stream:
                final = await stream.get_final_completion()
            (call,) = final.choices[0].message.tool_calls or []
            assert call.function.parsed_arguments == Weather(city="Oslo")
            # What was answered goes back as it came.
            messages = [
                *MESSAGES,
                final.choices[0].message,
                {"role": "tool", "tool_call_id": call.id, "content": "rain"},
            ]
            client.engine.script = says("Rain.")
            last = await sdk.chat.completions.create(**{**asked, "messages": messages})
            assert last.choices[0].message.content == "Rain."


def tool(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **function}}]


NOT = {"type": "object", "properties": {"a": {"not": {}}}}


@pytest.mark.parametrize(
    ("fields", "code", "shown"),
    [
        ({"tools": [{"type": "custom"}]}, "unsupported_field", "tools[0].type: only 'function'"),
        ({"tools": [{"type": "function", "custom": {}, **NAMED}]}, "unsupported_field", "tools[0].custom"),
        ({"tools": [{"type": "function"}]}, "missing_field", "tools[0].function: required"),
        ({"tools": tool(name="a b")}, "field_value", "tools[0].function.name: 1 to 64 letters"),
        ({"tools": tool(name="x" * 65)}, "field_value", "tools[0].function.name: 1 to 64 letters"),
        ({"tools": tool(mood="x")}, "unknown_field", "tools[0].function.mood"),
        ({"tools": tool(parameters={"type": "array"})}, "json_schema", "tools[0].function.parameters.type: 'object'"),
        ({"tools": [TIME, TIME]}, "duplicate_field", "tools[1].function.name: 'time' is there twice"),
        ({"tools": [WEATHER] * 129}, "field_length", "tools: at most 128 entries, got 129"),
        ({"tools": tool(parameters=NOT, strict=True)}, "json_schema", "tools[0].function.parameters.properties.a: "),
        (
            {"tools": [TIME, *tool(parameters=NOT)], "tool_choice": "required"},
            "json_schema",
            "tools[1].function.parameters.properties.a: ",
        ),
        ({"tools": TOOLS, "tool_choice": "any"}, "field_value", "tool_choice: none, auto, required or a function"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "missing_field", "tool_choice.function: required"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "unsupported_field", "tool_choice.type"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "unsupported_field",
            "tool_choice.type",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "field_value",
            "tool_choice.function.name: 'other' isn't among tools",
        ),
        ({"tool_choice": "required"}, "field_needs", "tool_choice: wants tools"),
        ({"tool_choice": NAMED}, "field_needs", "tool_choice: wants tools"),
        ({"tools": TOOLS, "ignore_eos": True}, "field_conflict", "ignore_eos: not together with tools"),
        ({"tools": TOOLS, "guided_grammar": 'start: "a"'}, "field_conflict", "guided_grammar: not together with tools"),
    ],
)
async def test_what_is_refused_names_its_place(fields: dict[str, Any], code: str, shown: str) -> None:
    async with serving() as client:
        error = refused(await client.post(CHAT, **GOOD[CHAT], **fields))
        assert error["code"] == code and shown in error["message"], error
        assert error["param"].split("[")[0].split(".")[0] in ("tools", *fields) and len(error["message"]) < 500
        assert client.engine.submitted == []


async def test_parameters_that_nobody_has_to_follow_may_be_anything() -> None:
    async with serving() as client:
        client.engine.script = says("hi")
        await ask(client, tools=tool(parameters=NOT))
        await ask(client, tools=tool(parameters=NOT), tool_choice="none")
