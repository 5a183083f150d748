"""How a conversation is written beside what it says: vLLM's fields, in chat requests and in /tokenize."""

from __future__ import annotations

from typing import Any

import pytest

from asking import CHAT, MESSAGES, refused
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
