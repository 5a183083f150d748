"""What is refused, and how: every field by type, range and length, on both endpoints, the server well afterwards."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from asking import BOTH, CHAT, COMPLETIONS, GOOD, MESSAGES, refused
from lorad.server.fields import LENGTHS, RANGES, unsupported
from serving import VOCAB, Client, serving

OF_ENDPOINT = {CHAT: "chat", COMPLETIONS: "completion"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TYPES: dict[str, Any] = {
    "null": None,
    "bool": True,
    "int": 3,
    "float": 0.5,
    "string": "x",
    "list": [],
    "strings": ["x"],
    "ids": [1],
    "object": {},
    "nested": [{"a": 1}],
}
"""A value of each JSON type."""

ALLOWED = {
    "model": {"string"},
    "stream": {"null", "bool"},
    "stream_options": {"null", "object"},
    "max_tokens": {"null", "int"},
    "max_completion_tokens": {"null", "int"},
    "temperature": {"null", "int", "float"},
    "top_p": {"null", "int", "float"},
    "top_k": {"null", "int"},
    "min_p": {"null", "int", "float"},
    "seed": {"null", "int"},
    "n": {"null", "int"},
    "stop": {"null", "string", "list", "strings"},
    "stop_token_ids": {"null", "list", "ids"},
    "ignore_eos": {"null", "bool"},
    "include_stop_str_in_output": {"null", "bool"},
    "skip_special_tokens": {"null", "bool"},
    "logit_bias": {"null", "object"},
    "presence_penalty": {"null", "int", "float"},
    "frequency_penalty": {"null", "int", "float"},
    "repetition_penalty": {"null", "int", "float"},
    "min_tokens": {"null", "int"},
    "best_of": {"null", "int"},
    "response_format": {"null"},
    "tools": {"null", "list"},
    "tool_choice": {"null"},
    "parallel_tool_calls": {"null", "bool"},
    "add_generation_prompt": {"null", "bool"},
    "continue_final_message": {"null", "bool"},
    "chat_template_kwargs": {"null", "object"},
    "structured_outputs": {"null"},
    "guided_json": {"null", "object"},
    "guided_regex": {"null", "string"},
    "guided_choice": {"null", "strings"},
    "guided_grammar": {"null"},
    "messages": {"list"},
    "prompt": {"string", "list", "strings", "ids"},
}
LOGPROBS = {
    CHAT: {"logprobs": {"null", "bool"}, "top_logprobs": {"null", "int"}},
    COMPLETIONS: {"logprobs": {"null", "int"}},
}
ONLY = {
    CHAT: {
        *("messages", "max_completion_tokens", "tools", "tool_choice", "parallel_tool_calls"),
        *("add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    },
    COMPLETIONS: {"prompt"},
}


def fields_of(path: str) -> dict[str, set[str]]:
    other = COMPLETIONS if path == CHAT else CHAT
    return {**{name: kinds for name, kinds in ALLOWED.items() if name not in ONLY[other]}, **LOGPROBS[path]}


def _first(path: str) -> str:
    return re.split(r"[.\[]", path)[0]


@BOTH
async def test_wrong_types_name_the_field(path: str) -> None:
    async with serving() as client:
        for field, allowed in fields_of(path).items():
            for kind, value in TYPES.items():
                if kind not in allowed:
                    refused(await client.post(path, **{**GOOD[path], field: value}), field)
        assert client.engine.submitted == []
        await client.alive()


@BOTH
async def test_integers_are_not_rounded(path: str) -> None:
    async with serving() as client:
        for field in ("max_tokens", "n", "seed", "top_k", "min_tokens", "best_of"):
            for value in (1.5, 2.0, "3"):
                refused(await client.post(path, **{**GOOD[path], field: value}), field)


@BOTH
async def test_numbers_out_of_range_name_field_limit_and_value(path: str) -> None:
    async with serving() as client:
        for field in fields_of(path):
            if field not in RANGES or (path == CHAT and field == "logprobs"):
                continue
            low, high, above = RANGES[field]
            whole = field not in ("temperature", "top_p", "min_p") and "penalty" not in field
            wrong: list[float] = [low - 1, high + 1, -1e30, 1e30] + ([low] if above else [])
            for value in map(int, wrong) if whole else map(float, wrong):
                more = {"logprobs": True} if field == "top_logprobs" else {}
                error = refused(await client.post(path, **{**GOOD[path], **more, field: value}), field)
                assert error["code"] == "field_range" and str(value) in error["message"], error
                assert f"{high:g}" in error["message"] or str(int(high)) in error["message"]
        await client.alive()


@BOTH
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"NaN"', '"Infinity"'])
async def test_what_is_no_finite_number(path: str, text: str) -> None:
    async with serving() as client:
        for field in ("temperature", "top_p", "min_p", "top_k", "max_tokens", "seed", "n"):
            fields = b"".join(b'"%s":%s,' % (name.encode(), _json(value)) for name, value in GOOD[path].items())
            body = b"{" + fields.replace(b'"max_tokens":5,', b"") + b'"%s":%s}' % (field.encode(), text.encode())
            refused(await client.raw(path, body))
        await client.alive()


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


@BOTH
async def test_border_values_are_taken(path: str) -> None:
    async with serving() as client:
        for field, values in {
            "temperature": [0, 1e-9, 2, 2.0],
            "top_p": [1e-9, 1, 1.0],
            "min_p": [0, 1],
            "top_k": [-1, 0, 1, 1 << 20],
            "seed": [-(1 << 63), 0, (1 << 63) - 1],
            "n": [1, 128],
            "stop": [[], "x", ["x"] * 16, "x" * 1024],
            "stop_token_ids": [[], [0, VOCAB - 1], [1] * 63],
            "logit_bias": [{}, {"0": -100, str(VOCAB - 1): 100.0}, {str(token): 0 for token in range(VOCAB)}],
            "presence_penalty": [-2, 0, 2.0],
            "frequency_penalty": [-2, 2],
            "repetition_penalty": [1e-9, 2],
            "min_tokens": [0, 5],
            "best_of": [1],
        }.items():
            for value in values:
                status, body = await client.post(path, **{**GOOD[path], field: value})
                assert status == 200, (field, value, body)
        sampled = [request.sampling for request in client.engine.submitted]
        assert sampled[0].temperature == sampled[1].temperature == 0.0, "so small a temperature is greedy"
        assert all(0 <= sampling.seed < 1 << 64 for sampling in sampled)


@BOTH
async def test_lists_and_strings_too_long(path: str) -> None:
    async with serving() as client:
        for field, value in (
            ("stop", ["x"] * 17),
            ("stop", ["x"] * 10000),
            ("stop", "x" * 1025),
            ("stop", ["ok", "x" * 100_000]),
            ("stop", ""),
            ("stop", ["a", ""]),
            ("stop_token_ids", [1] * 2000),
        ):
            error = refused(await client.post(path, **{**GOOD[path], field: value}), field)
            assert error["code"] == "field_length"
        # The model's one end token counts, unless it is ignored.
        error = refused(await client.post(path, **{**GOOD[path], "stop_token_ids": [1] * 64}), "stop_token_ids")
        assert "at most 63 entries (beside the model's 1 end token), got 64" in error["message"]
        fields = {**GOOD[path], "ignore_eos": True}
        assert (await client.post(path, **fields, stop_token_ids=list(range(64))))[0] == 200
        assert len(client.engine.submitted[-1].sampling.stop_token_ids) == 64
        error = refused(await client.post(path, **fields, stop_token_ids=[1] * 65), "stop_token_ids")
        assert "at most 64 entries, got 65" in error["message"]
        assert LENGTHS["stop"] == 16 and LENGTHS["stop[]"] == 1024 and LENGTHS["stop_token_ids"] == 64
        await client.alive()


@BOTH
@pytest.mark.parametrize("wrong", [VOCAB, VOCAB + 1000, -1, 2**40, -(2**40), 2**70])
async def test_token_ids_out_of_the_vocabulary(path: str, wrong: int) -> None:
    async with serving() as client:
        refused(await client.post(path, **{**GOOD[path], "stop_token_ids": [1, wrong]}), "stop_token_ids[1]")
        if path == COMPLETIONS:
            refused(await client.post(path, **{**GOOD[path], "prompt": [1, wrong]}), "prompt[1]")
            refused(await client.post(path, **{**GOOD[path], "prompt": [[1], [2, wrong]]}), "prompt[1][1]")
        await client.alive()


@BOTH
async def test_unknown_fields_are_all_named(path: str) -> None:
    async with serving() as client:
        error = refused(await client.post(path, **{**GOOD[path], "temprature": 1, "frequency": 2}), "temprature")
        assert "'frequency'" in error["message"]
        error = refused(await client.post(path, **{**GOOD[path], **{f"x{i}": 1 for i in range(1000)}}), "x0")
        assert "990 more" in error["message"] and len(error["message"]) < 2000
        error = refused(await client.post(path, **{**GOOD[path], "y" * 100_000: 1}))
        assert len(error["message"]) < 500
        refused(await client.post(path, **{**GOOD[path], "stream": True, "stream_options": {"usage": True}}))


async def test_unknown_fields_inside_messages() -> None:
    async with serving() as client:
        error = refused(await client.post(CHAT, **{**GOOD[CHAT], "messages": [{**MESSAGES[0], "mood": "good"}]}))
        assert error["param"] == "messages[0].mood"


@BOTH
async def test_fields_not_supported_yet_are_taken_at_their_defaults_only(path: str) -> None:
    async with serving() as client:
        for field, accepted in unsupported(OF_ENDPOINT[path]).items():
            for value in accepted:
                status, body = await client.post(path, **{**GOOD[path], field: value})
                assert status == 200, (field, value, body)
            for value in (7, "other", [1], {"a": 1}, True not in accepted):
                if not any(value == default and type(value) is type(default) for default in accepted):
                    error = refused(await client.post(path, **{**GOOD[path], field: value}), field)
                    assert error["code"] == "unsupported_field"
        # 1 is not true, and 0 is not false.
        if path == COMPLETIONS:
            refused(await client.post(path, **{**GOOD[path], "echo": 0}), "echo")
        await client.alive()


LABELS = {"user": "u-1", "metadata": {"run": "7"}, "prompt_cache_key": "k", "safety_identifier": "s"}


@BOTH
async def test_labels_for_others_change_nothing(path: str) -> None:
    labels = LABELS if path == CHAT else {"user": LABELS["user"]}
    async with serving() as client:
        status, plain = await client.post(path, **GOOD[path])
        assert status == 200
        for name, value in labels.items():
            status, answer = await client.post(path, **{**GOOD[path], name: value})
            assert status == 200 and answer["choices"] == plain["choices"], (name, answer)
            assert (await client.post(path, **{**GOOD[path], name: None}))[0] == 200
            assert refused(await client.post(path, **{**GOOD[path], name: 7}), name)["code"] == "field_type"
        await client.alive()


@BOTH
@pytest.mark.parametrize("name", ["nobody", "Devil", "devil ", " devil", "devi", "base ", "org/name", "*", "x" * 5000])
async def test_unknown_models_are_404(path: str, name: str) -> None:
    async with serving() as client:
        error = refused(await client.post(path, **{**GOOD[path], "model": name}), status=404)
        assert error["param"] == "model" and error["code"] == "model_not_found" and name[:200] in error["message"]
        assert client.engine.submitted == []


@BOTH
async def test_a_model_must_be_named(path: str) -> None:
    async with serving() as client:
        refused(await client.post(path, **{**GOOD[path], "model": ""}), "model")
        without = {name: value for name, value in GOOD[path].items() if name != "model"}
        refused(await client.post(path, **without), "model")


@BOTH
async def test_required_fields(path: str) -> None:
    async with serving() as client:
        refused(await client.post(path, model="base"), "messages" if path == CHAT else "prompt")


async def test_conversations_that_cant_be_rendered() -> None:
    async with serving() as client:
        for messages in (
            [],
            [{"role": "user"}],
            [{"role": "user", "content": None}],
            [{"role": "user", "content": 1}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            [{"role": "user", "content": [{"type": "text"}]}],
            [{"role": "user", "content": ["x"]}],
            [{"role": "robot", "content": "x"}],
            [{"role": "tool", "content": "x", "tool_call_id": "1"}],
            [{"content": "x"}],
            [{"role": "assistant", "content": "x", "tool_calls": [{}]}],
            [{"role": "tool", "content": "x"}],
            [{"role": "user", "content": "x", "tool_call_id": "1"}],
            [{"role": "user", "content": "x", "tool_calls": [CALL]}],
            [{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}],
            [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[1]"}}]}],
            [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]}],
            [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a":NaN}'}}]}],
            [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"\\ud800":1}'}}]}],
            [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x", "tool_call_id": "other"}],
            [{"role": "user", "content": "boom"}],
            ["x"],
            [None],
            [{"role": "user", "content": "x"}] * 4097,
        ):
            refused(await client.post(CHAT, model="base", messages=messages), "messages")
        assert client.engine.submitted == []
        for messages in (
            [{"role": "user", "content": ""}],
            [{"role": "user", "content": []}],
            [{"role": "developer", "content": "x"}],
            [{"role": "assistant", "content": "x", "tool_calls": [], "refusal": None}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ):
            assert (await client.post(CHAT, model="base", messages=messages, max_tokens=3))[0] == 200
        assert client.engine.submitted[-1].prompt[1:-1] == list(b"user:a\nb")
        assert client.engine.submitted[-3].prompt[1:-1] == list(b"system:x")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "refusal", "refusal": "no"},
    ],
)
async def test_parts_that_are_no_text_are_refused_by_their_type(part: dict[str, Any]) -> None:
    async with serving() as client:
        messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
        error = refused(await client.post(CHAT, model="base", messages=messages), "messages")
        assert f"content[1].type: only 'text' is supported, got '{part['type']}'" in error["message"]
        messages = [{"role": "user", "content": [{"text": "a", **part, "type": "text"}]}]
        error = refused(await client.post(CHAT, model="base", messages=messages), "messages")
        assert f"content[0].{part['type']}: not in a part of type 'text'" in error["message"]


async def test_prompts_of_all_forms() -> None:
    async with serving() as client:
        for prompt in (
            "",
            [],
            [[]],
            [""],
            ["x", 1],
            [1, "x"],
            [[1], "x"],
            [["x"]],
            [[1], []],
            [None],
            [1.0],
            {},
            ["x"] * 1025,
        ):
            refused(await client.post(COMPLETIONS, model="base", prompt=prompt), "prompt")
        for prompt, texts in (
            ("ab", ["ab"]),
            (["ab"], ["ab"]),
            (["ab", "c"], ["ab", "c"]),
            ([97, 98], ["ab"]),
            ([[97], [98, 99]], ["a", "bc"]),
        ):
            status, answer = await client.post(COMPLETIONS, model="base", prompt=prompt)
            assert status == 200 and [choice["text"] for choice in answer["choices"]] == texts
            assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))


async def test_fields_that_need_or_contradict_each_other() -> None:
    async with serving() as client:
        chat = GOOD[CHAT]
        refused(await client.post(CHAT, **chat, top_logprobs=2), "top_logprobs")
        refused(await client.post(CHAT, **chat, logprobs=False, top_logprobs=0), "top_logprobs")
        refused(await client.post(CHAT, **chat, max_completion_tokens=6), "max_completion_tokens")
        refused(await client.post(CHAT, **chat, stream_options={"include_usage": True}), "stream_options")
        options = {"include_obfuscation": True}
        refused(
            await client.post(CHAT, **chat, stream=True, stream_options=options), "stream_options.include_obfuscation"
        )
        assert (await client.post(CHAT, **chat, max_completion_tokens=5))[0] == 200


@BOTH
async def test_edits_of_logits_reach_the_engine_or_are_refused(path: str) -> None:
    async with serving() as client:
        edits = {"presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.25, "min_tokens": 2}
        status, _ = await client.post(path, **GOOD[path], **edits, logit_bias={"7": -100, "8": 2}, n=2, best_of=2)
        assert status == 200
        for request in client.engine.submitted:
            sampling = request.sampling
            assert {name: getattr(sampling, name) for name in edits} == edits
            assert sampling.logit_bias == {7: -100, 8: 2}
        for bias, code, shown in (
            ({"7": 100.5}, "field_range", "logit_bias[7]: at least -100 and at most 100, got 100.5"),
            ({"7": -1e30}, "field_range", "logit_bias[7]"),
            ({str(VOCAB): 1}, "token_id", f"from 0 to {VOCAB - 1}, got {VOCAB}"),
            ({"-1": 1}, "token_id", "got -1"),
            ({"cat": 1}, "field_type", "logit_bias: expected `int`"),
            ({"7": "1"}, "field_type", "logit_bias"),
            ({"7": None}, "field_type", "logit_bias"),
            ({str(token): 1 for token in range(1025)}, "field_length", "at most 1024 entries, got 1025"),
        ):
            error = refused(await client.post(path, **GOOD[path], logit_bias=bias), "logit_bias")
            assert error["code"] == code and shown in error["message"], error
        error = refused(await client.post(path, **GOOD[path], min_tokens=6), "min_tokens")
        assert error["code"] == "field_conflict" and "at most max_tokens, 5, got 6" in error["message"]
        for best_of in (0, 2, -1, 2**70):
            error = refused(await client.post(path, **GOOD[path], best_of=best_of), "best_of")
            assert "only n, 1, is supported" in error["message"] or best_of == 2**70
        await client.alive()


@BOTH
async def test_stop_strings_count_once_the_least_is_there(path: str) -> None:
    async with serving() as client:
        client.engine.script = lambda request: list(b"abcabcabc")
        for least, text in ((0, "a"), (2, "a"), (3, "abca"), (4, "abca"), (6, "abcabca"), (9, "abcabcabc")):
            fields = {**GOOD[path], "max_tokens": 9, "stop": ["bc"], "min_tokens": least}
            _, answer = await client.post(path, **fields)
            choice = answer["choices"][0]
            assert (choice["text"] if path == COMPLETIONS else choice["message"]["content"]) == text, least
            assert choice["finish_reason"] == ("length" if least == 9 else "stop")
            streamed = await client.stream(path, **fields)
            assert b"".join(part.split(b'"')[0] for part in streamed.split(b'"text":"')[1:]) in (text.encode(), b"")


async def test_a_hundred_unknown_adapters_disturb_nobody() -> None:
    async with serving() as client:
        client.engine.auto = False
        client.engine.script = lambda request: [97] * 50
        stream = asyncio.create_task(client.stream(COMPLETIONS, model="devil", prompt="x", max_tokens=50))
        while not client.engine.running:
            await asyncio.sleep(0.001)
        answers = await asyncio.gather(*(client.post(COMPLETIONS, model=f"devil{i}", prompt="x") for i in range(100)))
        assert {status for status, _ in answers} == {404}
        for _ in range(60):
            client.engine.step()
        assert (await stream).count(b'"text":"a"') == 50


async def test_routes_and_methods_that_dont_exist() -> None:
    async with serving() as client:
        assert isinstance(client, Client)
        for method, path, status in (
            ("GET", "/", 404),
            ("GET", "/v1", 404),
            ("POST", "/v1/models", 405),
            ("GET", "/v1/chat/completions", 405),
            ("DELETE", "/v1/completions", 405),
            ("POST", "/v1/completions/", 404),
            ("POST", "//v1/completions", 404),
            ("GET", "/v1/models/nobody", 404),
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
        ):
            async with client.session.request(method, client.address + path) as response:
                refused((response.status, await response.json()), status=status)
                assert response.headers["Server"] == "lorad"
                if status == 405:
                    assert response.headers["Allow"]
