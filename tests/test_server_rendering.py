"""How a conversation is written beside what it says: vLLM's fields, in chat requests and in /tokenize."""

from __future__ import annotations

from typing import Any

import pytest

from asking import CHAT, MESSAGES, refused
from lorad.errors import InvalidRequest
from lorad.server.fields import LENGTHS
from lorad.text.template import OWN_NAMES, ChatTemplate, Rendering
from serving import TURN, Client, serving

TOKENIZE = "/tokenize"
BOTH = pytest.mark.parametrize("path", [CHAT, TOKENIZE])
KWARGS = "chat_template_kwargs"


async def ids(client: Client, path: str, **fields: Any) -> list[int]:
    """What the model sees of a conversation."""
    asked = {"model": "base", "messages": MESSAGES, **fields}
    status, told = await client.post(path, **asked, **({"max_tokens": 1} if path == CHAT else {}))
    assert status == 200, told
    seen: list[int] = client.engine.submitted[-1].prompt if path == CHAT else told["tokens"]
    return seen


@BOTH
async def test_variables_reach_the_template(path: str) -> None:
    async with serving() as client:
        assert await ids(client, path, chat_template_kwargs={"mood": "猫"}) == [
            TURN,
            *b"user:hi",
            TURN,
            *"(猫)".encode(),
        ]
        for nothing in (None, {}, {"mood": ""}, {"unknown": [1, {"a": None}]}, {"self": 1, "loop": 2, "": 3}):
            assert await ids(client, path, chat_template_kwargs=nothing) == [TURN, *b"user:hi", TURN]


@BOTH
async def test_variables_that_are_refused(path: str) -> None:
    async with serving() as client:
        asked = {"model": "base", "messages": MESSAGES}
        for name in sorted(OWN_NAMES):
            error = refused(await client.post(path, **asked, chat_template_kwargs={"mood": 1, name: None}), KWARGS)
            assert error["code"] == "template_variable" and error["param"] == f"{KWARGS}.{name}"
        many = {f"v{number}": 1 for number in range(LENGTHS[KWARGS] + 1)}
        error = refused(await client.post(path, **asked, chat_template_kwargs=many), KWARGS)
        assert error["code"] == "field_length" and "at most 64 entries, got 65" in error["message"]
        room = LENGTHS[f"{KWARGS}[]"] - len('{"x":""}')
        error = refused(await client.post(path, **asked, chat_template_kwargs={"x": "a" * (room + 1)}), KWARGS)
        assert error["code"] == "field_length" and "at most 65536 characters, got 65537" in error["message"]
        assert await ids(client, path, chat_template_kwargs={"x": "a" * room}) == [TURN, *b"user:hi", TURN]
        await client.alive()


def test_a_variable_takes_nothing_from_the_sandbox() -> None:
    template = ChatTemplate("{{ bos_token }}{{ x.y }}{{ namespace(n=1).n }}", bos_token="<s>")
    assert template.render(MESSAGES, rendering=Rendering(variables={"x": {"y": 2}, "bos_token": "z"})) == "<s>21"
    with pytest.raises(Exception, match="unsafe"):
        ChatTemplate("{{ x.append(1) }}").render(MESSAGES, rendering=Rendering(variables={"x": []}))


UNFINISHED = [*MESSAGES, {"role": "assistant", "content": "The cat "}]


@BOTH
async def test_the_last_message_is_left_open(path: str) -> None:
    async with serving() as client:
        closed = [TURN, *b"user:hi", TURN, *b"assistant:The cat "]
        for more in ({}, {"add_generation_prompt": None}, {"add_generation_prompt": False}):
            assert await ids(client, path, messages=UNFINISHED, continue_final_message=True, **more) == closed
        assert await ids(client, path, messages=UNFINISHED, add_generation_prompt=False) == closed
        for more in ({}, {"continue_final_message": False}, {"add_generation_prompt": True}):
            assert await ids(client, path, messages=UNFINISHED, **more) == [*closed, TURN]


@BOTH
async def test_contradictions(path: str) -> None:
    async with serving() as client:
        field = "continue_final_message"
        asked = {"model": "base", "messages": UNFINISHED, field: True}
        error = refused(await client.post(path, **asked, add_generation_prompt=True), field)
        assert error["code"] == "field_conflict" and "add_generation_prompt" in error["message"]
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages = [*MESSAGES, {"role": "assistant", "content": "a", "tool_calls": [call]}]
        error = refused(await client.post(path, **{**asked, "messages": messages}), field)
        assert error["code"] == "field_conflict" and "tool_calls" in error["message"]


CONTINUED = Rendering(add_generation_prompt=False, continue_final_message=True)
IM = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("said", ["", "a", "im", "end", "user", "<|im_end|>", "two\nlines\n", "blanks  ", " 猫"])
def test_whatever_it_says_and_wherever_else_that_stands(said: str) -> None:
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": said}]
    begin = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate(IM).render(messages, rendering=CONTINUED) == begin + said
    # A template that trims messages has never shown the model one that ends with a blank.
    trims = IM.replace("m.content", "m.content | trim")
    begin = f"<|im_start|>user\n{said.strip()}<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate(trims).render(messages, rendering=CONTINUED).rstrip() == (begin + said.strip()).rstrip()


def test_a_template_that_doesnt_write_the_last_message() -> None:
    for source in ("x", "{{ messages[0].content }}", "{{ messages[-1].content | upper }}"):
        with pytest.raises(InvalidRequest, match="continue_final_message") as refusal:
            ChatTemplate(source).render(UNFINISHED, rendering=CONTINUED)
        assert refusal.value.code == "chat_template" and refusal.value.param == "continue_final_message"
