"""What is answered: golden bytes, streamed = unstreamed on both endpoints for any n, usage, log-probabilities."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import openai
import pytest

from lorad.engine.messages import Generate
from serving import CONTEXT, END, TEXT, TURN, WORD_IDS, Client, chunks_of, ids_of, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAID = "The cat sat on the mat."
EIGHT = [(path, n, stream) for path in (CHAT, COMPLETIONS) for n in (1, 3) for stream in (False, True)]
IN_ALL_EIGHT = pytest.mark.parametrize(("path", "n", "stream"), EIGHT)


def body(path: str, **more: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "go"}]} if path == CHAT else {"prompt": "go"}
    return {"model": "devil", "max_tokens": 60, **prompt, **more}


def says(text: str, **options: Any) -> Any:
    """A script: this text, then the end."""
    return lambda request: [*ids_of(text, **options), END]


async def ask(client: Client, path: str, stream: bool, **more: Any) -> dict[int, dict[str, Any]]:
    """Each choice's text, finish reason and log-probabilities, whichever way they came."""
    if not stream:
        status, answer = await client.post(path, **body(path, **more))
        assert status == 200, answer
        return {
            choice["index"]: {
                "text": choice["message"]["content"] if path == CHAT else choice["text"],
                "reason": choice["finish_reason"],
                "logprobs": choice["logprobs"],
            }
            for choice in answer["choices"]
        }
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks_of(await client.stream(path, **body(path, **more))):
        for choice in chunk["choices"]:
            seen = choices.setdefault(choice["index"], {"text": "", "reason": None, "logprobs": None})
            seen["text"] += choice["delta"].get("content", "") if path == CHAT else choice["text"]
            assert seen["reason"] is None, "nothing of a choice comes after its end"
            seen["reason"] = choice["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                seen["logprobs"] = seen["logprobs"] or {}
                old = seen["logprobs"].get(name)
                seen["logprobs"][name] = values if old is None else old + values
    return choices


async def test_golden_bytes_of_a_streamed_chat() -> None:
    async with serving() as client:
        client.engine.script = says('The "😀"')
        got = await client.stream(CHAT, **body(CHAT, stream_options={"include_usage": True}))
        head = (
            b'data: {"id":"chatcmpl-0001","object":"chat.completion.chunk","created":1700000000,"model":"devil",'
            b'"system_fingerprint":"gen-devil","choices":['
        )
        tail = b',"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
        usage = (
            b'{"prompt_tokens":9,"completion_tokens":8,"total_tokens":17,"prompt_tokens_details":{"cached_tokens":0}}'
        )
        assert got == (
            head
            + b'{"index":0,"delta":{"role":"assistant","content":""}'
            + tail
            + b"".join(
                head + b'{"index":0,"delta":{"content":' + part + b"}" + tail
                for part in (b'"The"', b'" "', rb'"\""', '"😀"'.encode(), rb'"\""')
            )
            + head
            + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}\n\n'
            + head
            + b'],"usage":'
            + usage
            + b"}\n\ndata: [DONE]\n\n"
        )


async def test_golden_bytes_of_a_streamed_completion() -> None:
    async with serving() as client:
        client.engine.script = says("The cat")
        got = await client.stream(COMPLETIONS, **body(COMPLETIONS, model="base", max_tokens=2))
        head = (
            b'data: {"id":"cmpl-0001","object":"text_completion","created":1700000000,"model":"base",'
            b'"system_fingerprint":"base-digest","choices":[{"index":0,"text":'
        )
        assert got == (
            head
            + b'"The","logprobs":null,"finish_reason":null}]}\n\n'
            + head
            + b'" cat","logprobs":null,"finish_reason":null}]}\n\n'
            + head
            + b'"","logprobs":null,"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
        )


@IN_ALL_EIGHT
async def test_stops_cut_exactly_wherever_token_borders_fall(path: str, n: int, stream: bool) -> None:
    choose = random.Random(5)
    cases: list[list[str]] = [["cat"], ["he cat s"], ["t"], ["The"], [SAID], ["mat", "mat."], ["mat.", "mat"], ["zzz"]]
    for _ in range(25):
        begins = [choose.randrange(len(SAID) - 1) for _ in range(choose.randrange(1, 4))]
        cases.append([SAID[begin : begin + choose.randrange(1, 12)] for begin in begins])
    async with serving() as client:
        for words in (True, False):
            client.engine.script = says(SAID, words=words)
            for stops in cases:
                places = ((SAID.find(stop), SAID.find(stop) + len(stop)) for stop in stops if stop in SAID)
                found = min(places, default=(len(SAID), len(SAID)))
                for keep in (False, True):
                    more = {"stop": stops, "include_stop_str_in_output": keep}
                    for index, choice in (await ask(client, path, stream, n=n, **more)).items():
                        assert choice["text"] == SAID[: found[keep]], (stops, index)
                        assert choice["reason"] == "stop"
        assert client.engine.running == 0


@IN_ALL_EIGHT
async def test_text_is_the_tokenizers_decode(path: str, n: int, stream: bool) -> None:
    choose = random.Random(6)
    async with serving() as client:
        for text in ("hello 😀 日本 e\u0301", "👨‍👩‍👧", 'quote " and \\ and \n and \x00 and \u2028'):
            client.engine.script = says(text)
            for choice in (await ask(client, path, stream, n=n)).values():
                assert choice["text"] == text and "\ufffd" not in choice["text"]
        for _ in range(20):
            ids = [choose.choice([*range(256), *WORD_IDS.values(), TURN]) for _ in range(choose.randrange(1, 30))]
            client.engine.script = lambda request, ids=ids: ids
            for choice in (await ask(client, path, stream, n=n, ignore_eos=True)).values():
                assert choice["text"] == TEXT.tokenizer.decode(ids)
            more = {"ignore_eos": True, "skip_special_tokens": False}
            for choice in (await ask(client, path, stream, n=n, **more)).values():
                assert choice["text"] == TEXT.tokenizer.decode(ids, skip_special=False)


@IN_ALL_EIGHT
async def test_ends_and_their_reasons(path: str, n: int, stream: bool) -> None:
    async with serving() as client:
        client.engine.script = lambda request: [*ids_of("hello"), END, *ids_of("world")]
        for more, text, reason in (
            ({}, "hello", "stop"),
            ({"ignore_eos": True}, "helloworld", "stop"),
            ({"max_tokens": 1}, "hel", "length"),
            ({"stop_token_ids": [WORD_IDS["lo"]]}, "hel", "stop"),
            ({"stop": "lowo", "ignore_eos": True}, "hel", "stop"),
            ({"stop": "low", "max_tokens": 2}, "hello", "length"),
            # Special tokens by their names, of which stop strings may be made too.
            ({"skip_special_tokens": False}, "hello", "stop"),
            ({"skip_special_tokens": False, "ignore_eos": True}, "hello<end>world", "stop"),
            ({"skip_special_tokens": False, "ignore_eos": True, "stop": "o<end>w"}, "hell", "stop"),
            # What ended the answer is its end; a special token is text only if it's kept.
            ({"include_stop_str_in_output": True}, "hello", "stop"),
            ({"include_stop_str_in_output": True, "skip_special_tokens": False}, "hello<end>", "stop"),
            ({"include_stop_str_in_output": True, "stop_token_ids": [WORD_IDS["lo"]]}, "hello", "stop"),
            ({"include_stop_str_in_output": True, "stop": "lowo", "ignore_eos": True}, "hellowo", "stop"),
            ({"include_stop_str_in_output": True, "stop": "low", "max_tokens": 2}, "hello", "length"),
            ({"include_stop_str_in_output": True, "stop": ["lowo", "lo", "o"], "ignore_eos": True}, "hello", "stop"),
        ):
            for choice in (await ask(client, path, stream, n=n, **more)).values():
                assert (choice["text"], choice["reason"]) == (text, reason), more


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_long_stop_string_holds_nothing_back(path: str) -> None:
    async with serving() as client:
        client.engine.script = says("a" * 50)
        plain = chunks_of(await client.stream(path, **body(path)))
        stopped = chunks_of(await client.stream(path, **body(path, stop="x" * 200)))
        assert len(plain) == len(stopped) >= 50


async def test_text_goes_out_before_the_next_character_is_whole() -> None:
    async with serving() as client:
        client.engine.auto = False
        client.engine.script = says("The😀")
        asked = asyncio.create_task(
            client.session.post(client.address + COMPLETIONS, json=body(COMPLETIONS, stream=True))
        )
        while not client.engine.running:
            await asyncio.sleep(0.001)
        client.engine.step()
        async with await asked as response:
            first = await response.content.readuntil(b"\n\n")
            assert msgspec.json.decode(first[6:])["choices"][0]["text"] == "The"
            for _ in range(6):
                client.engine.step()
            assert "😀" in (await response.read()).decode()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("model", ["base", "devil"])
async def test_usage_is_the_same_in_all_forms(path: str, n: int, model: str) -> None:
    async with serving() as client:
        client.engine.script = says(SAID)
        _, whole = await client.post(path, **body(path, n=n, model=model, stop="mat"))
        for options, wanted in (
            (None, False),
            ({}, False),
            ({"include_usage": False}, False),
            ({"include_usage": None}, False),
            ({"include_usage": True}, True),
        ):
            more = {} if options is None else {"stream_options": options}
            chunks = chunks_of(await client.stream(path, **body(path, n=n, model=model, stop="mat", **more)))
            with_usage = [index for index, chunk in enumerate(chunks) if chunk.get("usage")]
            empty = [index for index, chunk in enumerate(chunks) if not chunk["choices"]]
            if wanted:
                assert with_usage == empty == [len(chunks) - 1]
                assert chunks[-1]["usage"] == whole["usage"]
                assert all("usage" in chunk for chunk in chunks)
            else:
                assert with_usage == empty == [] and not any("usage" in chunk for chunk in chunks)
        assert whole["usage"]["completion_tokens"] == 6 * n
        assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + 6 * n


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("more", [{}, {"stop": "mat"}, {"max_tokens": 3}])
async def test_cached_tokens_are_told_however_an_answer_ends(path: str, n: int, more: dict[str, Any]) -> None:
    async with serving() as client:
        client.engine.script = says(SAID)
        client.engine.cached_tokens = 5
        _, whole = await client.post(path, **body(path, n=n, **more))
        chunks = chunks_of(await client.stream(path, **body(path, n=n, stream_options={"include_usage": True}, **more)))
        for usage in (whole["usage"], chunks[-1]["usage"]):
            assert usage["prompt_tokens_details"]["cached_tokens"] == 5


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("n", [1, 3])
async def test_every_chunk_is_well_formed(path: str, n: int) -> None:
    async with serving() as client:
        client.engine.script = says(SAID)
        for more in ({}, {"stream_options": {"include_usage": True}}):
            chunks = chunks_of(await client.stream(path, **body(path, n=n, **more)))
            heads = {(c["id"], c["model"], c["created"], c["object"], c["system_fingerprint"]) for c in chunks}
            assert len(heads) == 1 and all(next(iter(heads)))
            reasons: dict[int, list[str]] = {}
            roles: dict[int, list[str]] = {}
            for chunk in chunks:
                for choice in chunk["choices"]:
                    reasons.setdefault(choice["index"], []).extend(filter(None, [choice["finish_reason"]]))
                    roles.setdefault(choice["index"], []).extend(filter(None, [choice.get("delta", {}).get("role")]))
            assert reasons == {index: ["stop"] for index in range(n)}
            if path == CHAT:
                assert roles == {index: ["assistant"] for index in range(n)}
                assert all(chunk["choices"][0]["delta"].get("role") for chunk in chunks[:n])


@IN_ALL_EIGHT
async def test_logprobs_have_openais_form(path: str, n: int, stream: bool) -> None:
    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    async with serving() as client:
        client.engine.script = says("The 😀")
        for choice in (await ask(client, path, stream, n=n, **more)).values():
            logprobs = choice["logprobs"]
            if path == CHAT:
                assert [entry["token"] for entry in logprobs["content"]][:3] == ["The", " ", "bytes:\\xf0"]
                assert bytes(byte for entry in logprobs["content"] for byte in entry["bytes"]) == "The 😀".encode()
                assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs["content"])
                assert set(logprobs["content"][0]["top_logprobs"][0]) == {"token", "logprob", "bytes"}
            else:
                assert logprobs["tokens"][:3] == ["The", " ", "bytes:\\xf0"]
                assert logprobs["token_logprobs"] == [-0.5] * 6
                assert logprobs["text_offset"] == [0, 3, 4, 4, 4, 4]
                assert [len(best) for best in logprobs["top_logprobs"]] == [2] * 6
        plain = {"logprobs": True} if path == CHAT else {"logprobs": 0}
        for choice in (await ask(client, path, stream, n=n, **plain)).values():
            if path == CHAT:
                assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[]] * 6
            else:
                assert choice["logprobs"]["top_logprobs"] is None and len(choice["logprobs"]["tokens"]) == 6
        for choice in (await ask(client, path, stream, n=n, **plain, stop="e")).values():
            kept = choice["logprobs"]["content"] if path == CHAT else choice["logprobs"]["tokens"]
            assert choice["text"] == "Th" and len(kept) == 1, "each counted token has its entry"


async def test_seeds_depend_on_the_request_alone() -> None:
    async with serving() as client:
        for prompts in (["a"], ["b", "a", "c"]):
            await client.post(COMPLETIONS, model="base", prompt=prompts, seed=-3, n=2)
        sent: list[Generate] = client.engine.submitted
        of_a = [request.sampling.seed for request in sent if request.prompt == [97]]
        assert of_a[:2] == of_a[2:] and of_a[0] != of_a[1]
        await client.post(COMPLETIONS, model="base", prompt="a")
        await client.post(COMPLETIONS, model="base", prompt="a")
        assert sent[-1].sampling.seed != sent[-2].sampling.seed, "an unseeded request draws its own"


async def test_names_reach_exactly_what_they_name() -> None:
    names = ("org/name", "name:v2", "name@1", "with space", "x" * 200, "größe", "😀", 'q"\\', "a,b", " lead", "%2F")
    async with serving(adapters=names) as client:
        _, listed = await client.get("/v1/models")
        assert [model["id"] for model in listed["data"]] == ["base", *names]
        assert {model["id"]: model["parent"] for model in listed["data"]} == {
            "base": None,
            **dict.fromkeys(names, "base"),
        }
        assert b"/secret" not in msgspec.json.encode(listed)
        for name in names:
            _, answer = await client.post(COMPLETIONS, model=name, prompt="hi")
            assert answer["model"] == name and answer["system_fingerprint"] == f"gen-{name}"
            assert client.engine.submitted[-1].generation == f"gen-{name}"
        _, answer = await client.post(COMPLETIONS, model="base", prompt="hi")
        assert client.engine.submitted[-1].generation == "" and answer["system_fingerprint"] == "base-digest"


async def test_the_openai_client() -> None:
    async with serving(api_key="sk-test", adapters=("devil", "org/name")) as client:
        client.engine.script = says(SAID)
        async with openai.AsyncOpenAI(base_url=client.address + "/v1", api_key="sk-test", max_retries=0) as sdk:
            listed = [model.id async for model in sdk.models.list()]
            assert listed == ["base", "devil", "org/name"]
            assert (await sdk.models.retrieve("org/name")).id == "org/name"
            chat = await sdk.chat.completions.create(
                model="devil", messages=[{"role": "user", "content": "go"}], seed=1, stop=["mat"], logprobs=True
            )
            assert chat.choices[0].message.content == "The cat sat on the "
            assert chat.usage and chat.usage.completion_tokens == 6 and chat.system_fingerprint == "gen-devil"
            text, usage = "", None
            async for chunk in await sdk.chat.completions.create(
                model="devil",
                messages=[{"role": "user", "content": "go"}],
                stream=True,
                stream_options={"include_usage": True},
            ):
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                usage = chunk.usage or usage
            assert text == SAID and usage and usage.completion_tokens == 7
            done = await sdk.completions.create(model="base", prompt=["a", "b"], max_tokens=3, n=2, logprobs=1)
            assert [choice.text for choice in done.choices] == ["The cat sat"] * 4
            parts = [c async for c in await sdk.completions.create(model="base", prompt="a", stream=True)]
            assert "".join(part.choices[0].text for part in parts) == SAID
            with pytest.raises(openai.NotFoundError, match="nobody"):
                await sdk.completions.create(model="nobody", prompt="a")
            with pytest.raises(openai.BadRequestError) as refusal:
                await sdk.completions.create(model="base", prompt="a", temperature=3)
            assert refusal.value.param == "temperature"
            with pytest.raises(openai.BadRequestError, match=str(CONTEXT)):
                await sdk.completions.create(model="base", prompt="a" * 1000)
        async with openai.AsyncOpenAI(base_url=client.address + "/v1", api_key="wrong", max_retries=0) as sdk:
            with pytest.raises(openai.AuthenticationError):
                await sdk.models.list()
