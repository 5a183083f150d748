"""How long prompts and answers may be, and how a refusal tells it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from asking import BOTH, CHAT, COMPLETIONS, GOOD, MESSAGES, refused
from lorad.errors import InvalidRequest
from scripted_engine import ScriptedEngine, model_info
from serving import CONTEXT, VOCAB, serving


@BOTH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["base", "devil"])
async def test_the_context_is_a_documented_border(path: str, stream: bool, model: str) -> None:
    async with serving() as client:

        def sized(tokens: int, **more: Any) -> dict[str, Any]:
            fields = {"model": model, "stream": stream, **more}
            if path == COMPLETIONS:
                return {**fields, "prompt": [97] * tokens}
            return {**fields, "messages": [{"role": "user", "content": "a" * (tokens - len("<user:<"))}]}

        async def ask(**fields: Any) -> tuple[int, Any]:
            async with client.session.post(client.address + path, json=fields) as response:
                raw = await response.read()
                return response.status, msgspec.json.decode(raw) if response.status != 200 else raw

        for tokens in (CONTEXT - 1, CONTEXT - 2):
            assert (await ask(**sized(tokens, max_tokens=1)))[0] == 200
        for tokens, asked in ((CONTEXT, 1), (CONTEXT + 1, 1), (CONTEXT * 10, 1), (CONTEXT - 2, 3), (10, CONTEXT)):
            error = refused(
                await ask(**sized(tokens, max_tokens=asked)), "prompt" if path == COMPLETIONS else "messages"
            )
            assert error["code"] == "context_length_exceeded"
            assert str(tokens) in error["message"] and str(CONTEXT) in error["message"]
        await client.alive()


async def test_a_very_long_text_is_refused_before_it_is_tokenised() -> None:
    async with serving() as client:
        error = refused(await client.post(COMPLETIONS, model="base", prompt="a" * 1_000_000), "prompt")
        assert "at least" in error["message"]
        refused(
            await client.post(CHAT, model="base", messages=[{"role": "user", "content": "a" * 1_000_000}]), "messages"
        )


def _told(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(path, fields) of conversations in which a text stands elsewhere than in a message's content."""
    function = {"name": "f", "description": text}
    called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": text})}}
    conversations: list[dict[str, Any]] = [
        {"messages": MESSAGES, "tools": [{"type": "function", "function": function}]},
        {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [called]}]},
    ]
    return [(path, fields) for fields in conversations for path in (CHAT, "/tokenize")]


async def test_what_tools_and_calls_say_is_as_long_as_what_messages_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(text: str, **options: Any) -> list[int]:
        raise AssertionError("it was tokenised")

    async with serving() as client:
        monkeypatch.setattr(client.front.text.tokenizer, "encode", encode)
        for path, fields in _told("a" * 2_000_000):
            error = refused(await client.post(path, model="base", **fields), "messages")
            assert error["code"] == ("context_length_exceeded" if path == CHAT else "field_length")


async def test_of_several_prompts_the_first_that_doesnt_fit_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as client:
        encode, seen = client.front.text.tokenizer.encode, []

        def noted(text: str, **options: Any) -> list[int]:
            seen.append(text)
            return encode(text, **options)

        monkeypatch.setattr(client.front.text.tokenizer, "encode", noted)
        prompts = ["hi", "a" * (2 * CONTEXT), "ho"]
        error = refused(await client.post(COMPLETIONS, model="base", prompt=prompts), "prompt")
        assert error["code"] == "context_length_exceeded" and seen == prompts[:2]


@BOTH
async def test_an_adapter_leaves_its_sequences_the_rest_of_a_small_pool(path: str) -> None:
    room = (8 - 3) * 16
    async with serving(ScriptedEngine(info=model_info(VOCAB, CONTEXT, pages=8))) as client:
        client.engine.script = lambda request: [97] * 1000
        for model, limit in (("devil", room), ("base", CONTEXT)):
            assert (await client.get(f"/v1/models/{model}"))[1]["max_model_len"] == limit
            prompt = {"prompt": [97] * 10} if path == COMPLETIONS else {"messages": MESSAGES}
            if path == CHAT:
                _, answer = await client.post(path, model=model, **prompt)
                assert answer["usage"]["total_tokens"] == limit
            got = await client.post(path, model=model, max_tokens=limit, **prompt)
            error = refused(got, "prompt" if path == COMPLETIONS else "messages")
            assert str(limit) in error["message"] and ("page pool" in error["message"]) == (model == "devil")


@BOTH
async def test_the_engines_word_about_a_prompt_names_the_routes_field(path: str) -> None:
    async with serving() as client:
        client.engine.refuse = InvalidRequest("9 pages wanted, 8 in the pool", code="never_fits", param="prompt")
        error = refused(await client.post(path, **GOOD[path]))
        assert error["param"] == ("prompt" if path == COMPLETIONS else "messages")


async def test_how_many_tokens_when_nobody_says() -> None:
    async with serving() as client:
        client.engine.script = lambda request: [97] * 1000
        _, answer = await client.post(CHAT, model="base", messages=MESSAGES)
        usage = answer["usage"]
        assert usage["total_tokens"] == CONTEXT and answer["choices"][0]["finish_reason"] == "length"
        _, answer = await client.post(COMPLETIONS, model="base", prompt="x")
        assert answer["usage"]["completion_tokens"] == 16
        refused(await client.post(COMPLETIONS, model="base", prompt="x", max_tokens=0), "max_tokens")


async def test_the_least_must_fit_where_the_most_is_whatever_fits() -> None:
    async with serving() as client:
        chat = {"model": "base", "messages": MESSAGES}
        error = refused(await client.post(CHAT, **chat, min_tokens=CONTEXT), "messages")
        assert error["code"] == "context_length_exceeded" and f"and {CONTEXT} to make" in error["message"]
        assert (await client.post(CHAT, **chat, min_tokens=CONTEXT // 2))[0] == 200
