"""`response_format`, `structured_outputs` and the `guided_…` fields: what reaches the engine, and what is refused."""

from __future__ import annotations

from typing import Any

import openai
import pydantic
import pytest

from lorad.errors import InvalidRequest
from lorad.grammars.build import OBJECT, choice_rule, of_grammar, of_rule, regex_rule, schema_rule
from serving import serving
from test_server_requests import BOTH, GOOD, refused

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"name": "thing", "schema": SCHEMA}
FORMAT = {"type": "json_schema", "json_schema": NAMED}

TAKEN: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "text"}}, ""),
    ({"response_format": {"type": "json_object"}}, of_rule(schema_rule(OBJECT, "x"))),
    ({"response_format": FORMAT}, of_rule(schema_rule(SCHEMA, "x"))),
    (
        {"response_format": {**FORMAT, "json_schema": {**NAMED, "strict": True, "description": "d"}}},
        of_rule(schema_rule(SCHEMA, "x")),
    ),
    ({"response_format": {**FORMAT, "json_schema": {"name": "any"}}}, of_rule(schema_rule(OBJECT, "x"))),
    ({"structured_outputs": {"json": SCHEMA}}, of_rule(schema_rule(SCHEMA, "x"))),
    ({"structured_outputs": {"json": '{"type": "object"}', "regex": None}}, of_rule(schema_rule(OBJECT, "x"))),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        of_rule(schema_rule(SCHEMA, "x", whitespace=None)),
    ),
    (
        {"structured_outputs": {"json_object": True, "whitespace_pattern": " "}},
        of_rule(schema_rule(OBJECT, "x", whitespace=" ")),
    ),
    ({"structured_outputs": {"regex": "a+", "disable_fallback": False}}, of_rule(regex_rule("a+", "x"))),
    ({"structured_outputs": {"choice": ["a", "b"]}}, of_rule(choice_rule(["a", "b"], "x"))),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, of_grammar('start: "a"', "x")),
    ({"guided_json": SCHEMA}, of_rule(schema_rule(SCHEMA, "x"))),
    ({"guided_regex": "a+"}, of_rule(regex_rule("a+", "x"))),
    ({"guided_choice": ["a", "b"]}, of_rule(choice_rule(["a", "b"], "x"))),
    ({"guided_grammar": 'root ::= "a"'}, of_grammar('root ::= "a"', "x")),
]


@BOTH
async def test_every_spelling_reaches_the_engine(path: str) -> None:
    async with serving() as client:
        for fields, grammar in TAKEN:
            status, answer = await client.post(path, **GOOD[path], **fields, n=2)
            assert status == 200, (fields, answer)
            assert [request.sampling.grammar for request in client.engine.submitted[-2:]] == [grammar] * 2, fields


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "field_value", "response_format.type: one of text, json_object"),
    ({"response_format": {}}, "missing_field", "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "field_needs", "response_format.json_schema: required with"),
    ({"response_format": {**FORMAT, "type": "json_object"}}, "field_needs", "response_format.json_schema: not with"),
    ({"response_format": {**FORMAT, "json_schema": {"schema": SCHEMA}}}, "missing_field", "json_schema.name"),
    ({"response_format": {**FORMAT, "json_schema": {**NAMED, "name": "a b"}}}, "field_value", "1 to 64 letters"),
    ({"response_format": {**FORMAT, "json_schema": {**NAMED, "name": "x" * 65}}}, "field_value", "1 to 64 letters"),
    ({"response_format": {**FORMAT, "json_schema": {**NAMED, "schema": [1]}}}, "field_type", "json_schema.schema"),
    ({"response_format": {**FORMAT, "mode": "x"}}, "unknown_field", "response_format.mode"),
    (
        {"response_format": {**FORMAT, "json_schema": {"name": "a", "schema": {"properties": {"b": {"not": {}}}}}}},
        "json_schema",
        "response_format.json_schema.schema.properties.b: Unimplemented",
    ),
    ({"structured_outputs": {}}, "field_needs", "structured_outputs: one of json"),
    ({"structured_outputs": {"json_object": False}}, "field_needs", "structured_outputs: one of json"),
    ({"structured_outputs": {"json": "{"}}, "json_schema", "structured_outputs.json: a JSON schema"),
    ({"structured_outputs": {"json": "5"}}, "json_schema", "an object, got int"),
    ({"guided_json": "null"}, "json_schema", "an object, got NoneType"),
    ({"guided_json": '{"const": "\\ud800"}'}, "json_schema", "guided_json: a JSON schema"),
    ({"guided_json": '{"maximum": NaN}'}, "json_schema", "guided_json: a JSON schema"),
    ({"structured_outputs": {"regex": "("}}, "regex", "structured_outputs.regex: "),
    ({"structured_outputs": {"choice": []}}, "field_length", "structured_outputs.choice: 1 to 1024 entries, got 0"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "field_length", "structured_outputs.choice[1]: an empty"),
    ({"structured_outputs": {"choice": ["x" * 1025]}}, "field_length", "at most 1024 characters, got 1025"),
    ({"structured_outputs": {"grammar": "start: nobody"}}, "grammar", "structured_outputs.grammar: "),
    ({"structured_outputs": {"structural_tag": "{}"}}, "unsupported_field", "structured_outputs.structural_tag"),
    ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "("}}, "json_schema", "structured_outputs.json: "),
    (
        {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
        "field_conflict",
        "structured_outputs.regex: not together",
    ),
    ({"structured_outputs": {"regex": "a"}, "response_format": FORMAT}, "field_conflict", "with response_format"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "field_conflict", "guided_choice: not together with guided_regex"),
    ({"guided_grammar": "x" * 16385}, "field_length", "guided_grammar: at most 16384 characters, got 16385"),
    (
        {"response_format": FORMAT, "ignore_eos": True},
        "field_conflict",
        "ignore_eos: not together with response_format",
    ),
    ({"guided_decoding_backend": "outlines"}, "unsupported_field", "guided_decoding_backend"),
]


@BOTH
async def test_what_is_refused_names_its_place(path: str) -> None:
    async with serving() as client:
        for fields, code, shown in REFUSED:
            error = refused(await client.post(path, **GOOD[path], **fields))
            assert error["code"] == code and shown in error["message"], (fields, error)
            assert error["param"].split(".")[0] in fields and len(error["message"]) < 500
        assert client.engine.submitted == []
        await client.alive()


@BOTH
async def test_the_engines_word_about_a_grammar_names_the_field(path: str) -> None:
    async with serving() as client:
        client.engine.refuse = InvalidRequest("grammar: it has too many states", code="grammar", param="grammar")
        for fields, param in (
            ({"guided_regex": "a"}, "guided_regex"),
            ({"response_format": FORMAT}, "response_format"),
        ):
            assert refused(await client.post(path, **GOOD[path], **fields))["param"] == param


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


async def test_the_openai_clients_helper() -> None:
    async with serving() as client:
        client.engine.script = lambda request: list(b'{"city":"Oslo","degrees":-3}')
        async with openai.AsyncOpenAI(base_url=client.address + "/v1", api_key="none", max_retries=0) as sdk:
            messages: list[Any] = [{"role": "user", "content": "hi"}]
            asked = await sdk.chat.completions.parse(model="base", messages=messages, response_format=Weather)
            assert asked.choices[0].message.parsed == Weather(city="Oslo", degrees=-3)
            assert "degrees" in client.engine.submitted[-1].sampling.grammar
            async with sdk.chat.completions.stream(model="base", messages=messages, response_format=Weather) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.parsed == Weather(city="Oslo", degrees=-3)
            with pytest.raises(openai.LengthFinishReasonError):
                await sdk.chat.completions.parse(model="base", messages=messages, response_format=Weather, max_tokens=5)
            done = await sdk.completions.create(
                model="base", prompt="a", extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
            )
            assert done.choices and '"yes" | "no"' in client.engine.submitted[-1].sampling.grammar
