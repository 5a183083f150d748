"""vLLM's /tokenize and /detokenize: what a model sees of a text, and the text again; what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from asking import refused
from lorad.server.fields import LENGTHS
from lorad.text.template import Rendering
from serving import CONTEXT, END, TEXT, TURN, VOCAB, serving

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


async def test_a_text_as_ids_and_back() -> None:
    async with serving() as client:
        said = "The cat, 猫 <end>"
        status, told = await client.post(TOKENIZE, model="devil", prompt=said, return_token_strs=True)
        assert status == 200 and set(told) == {"count", "max_model_len", "tokens", "token_strs"}
        assert told["tokens"] == TEXT.encode(said) and told["count"] == len(told["tokens"])
        assert told["tokens"][0] == ord("T") and told["tokens"][-1] == END
        assert told["token_strs"][:5] == ["T", "h", "e", "Ġ", "c"] and told["token_strs"][-1] == "<end>"
        assert told["max_model_len"] == CONTEXT
        # Special tokens stand there by name, as vLLM does it; so the text is the same again.
        assert await client.post(DETOKENIZE, model="devil", tokens=told["tokens"]) == (200, {"prompt": said})
        assert (await client.post(TOKENIZE, prompt=""))[1]["tokens"] == []
        assert (await client.post(DETOKENIZE, tokens=[])) == (200, {"prompt": ""})
        assert client.engine.submitted == []


async def test_a_conversation_is_what_a_chat_request_computes() -> None:
    async with serving() as client:
        for end in (True, False, None):
            _, told = await client.post(TOKENIZE, model="base", messages=HELLO, add_generation_prompt=end)
            assert told["tokens"] == TEXT.chat(HELLO, rendering=Rendering(end is not False))
            assert told["token_strs"] is None
        await client.post("/v1/chat/completions", model="base", messages=HELLO, max_tokens=1)
        assert client.engine.submitted[-1].prompt == told["tokens"] == [TURN, *b"user:hi", TURN]
        _, told = await client.post(TOKENIZE, model="base", messages=HELLO, tools=[TOOL])
        await client.post("/v1/chat/completions", model="base", messages=HELLO, max_tokens=1, tools=[TOOL])
        assert client.engine.submitted == client.engine.submitted[:1], "more than the context: it's refused there"
        assert told["count"] > CONTEXT, "what is only tokenised may be longer than what is answered"


@pytest.mark.parametrize(
    ("path", "fields", "field", "code"),
    [
        (TOKENIZE, {}, "prompt", "missing_field"),
        (TOKENIZE, {"prompt": "a", "messages": HELLO}, "prompt", "field_conflict"),
        (TOKENIZE, {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt", "field_needs"),
        (TOKENIZE, {"prompt": "a", "tools": []}, "tools", "field_needs"),
        (TOKENIZE, {"prompt": ["a"]}, "prompt", "field_type"),
        (TOKENIZE, {"prompt": "a" * (LENGTHS["prompt[]"] + 1)}, "prompt", "field_length"),
        (TOKENIZE, {"messages": []}, "messages", "field_length"),
        (
            TOKENIZE,
            {"messages": [{"role": "user", "content": "a" * (LENGTHS["messages[]"] // 2 + 1)}] * 2},
            "messages",
            "field_length",
        ),
        (TOKENIZE, {"messages": [{"role": "user", "content": "boom"}]}, "messages", "chat_template"),
        (TOKENIZE, {"prompt": "a", "continue_final_message": False}, "continue_final_message", "field_needs"),
        (TOKENIZE, {"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs", "field_needs"),
        (TOKENIZE, {"messages": HELLO, "chat_template": "x"}, "chat_template", "unsupported_field"),
        (TOKENIZE, {"prompt": "a", "nonsense": 1}, "nonsense", "unknown_field"),
        (DETOKENIZE, {}, "tokens", "missing_field"),
        (DETOKENIZE, {"tokens": "a"}, "tokens", "field_type"),
        (DETOKENIZE, {"tokens": [VOCAB]}, "tokens", "token_id"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens", "token_id"),
        (DETOKENIZE, {"tokens": [0] * (LENGTHS["tokens"] + 1)}, "tokens", "field_length"),
    ],
)
async def test_what_is_refused(path: str, fields: dict[str, Any], field: str, code: str) -> None:
    async with serving() as client:
        assert refused(await client.post(path, model="base", **fields), field)["code"] == code
        await client.alive()


async def test_the_longest_are_taken() -> None:
    async with serving() as client:
        assert (await client.post(TOKENIZE, prompt="a" * LENGTHS["prompt[]"]))[1]["count"] == LENGTHS["prompt[]"]
        assert len((await client.post(DETOKENIZE, tokens=[97] * LENGTHS["tokens"]))[1]["prompt"]) == LENGTHS["tokens"]


async def test_an_unknown_model_and_a_server_that_stops() -> None:
    async with serving() as client:
        for path, fields in ((TOKENIZE, {"prompt": "a"}), (DETOKENIZE, {"tokens": [1]})):
            assert refused(await client.post(path, model="nobody", **fields), status=404)["code"] == "model_not_found"
        client.front.drain()
        for path, fields in ((TOKENIZE, {"prompt": "a"}), (DETOKENIZE, {"tokens": [1]})):
            assert refused(await client.post(path, **fields), status=503)["code"] == "draining"
