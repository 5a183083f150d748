"""How probable a prompt's tokens were: mixed batches, in pieces, after cache hits and preemptions; `echo` over HTTP."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lorad import Engine, Request
from lorad.config import EngineConfig, ServerConfig
from lorad.errors import InvalidRequest
from lorad.server.run import Server
from lorad.text.model import load_text_model
from oracle import Oracle
from serving import chunks_of
from tiny import VOCAB
from tiny_engine import finish, make
from trained_adapter import train

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The head too: its adapter is grouped by the tokens that are looked at, not by the step's."""
    return train(base, tmp_path_factory.mktemp("adapter"), target_modules=["q_proj", "down_proj", "lm_head"])


def agrees(oracle: Oracle, request: Request, adapter: Path | None, best: int) -> None:
    right = oracle.logprobs(request.prompt, adapter)
    assert len(request.prompt_logprobs) == len(request.prompt) - 1
    for place, found in enumerate(request.prompt_logprobs):
        assert abs(found.chosen - float(right[place, request.prompt[place + 1]])) < TOLERANCE
        values = right[place].sort(descending=True).values
        assert len(found.top) == best
        for rank, (token, value) in enumerate(found.top):
            assert abs(value - float(values[rank])) < TOLERANCE and abs(value - float(right[place, token])) < TOLERANCE


def prompts(dice: random.Random, count: int, longest: int = 70) -> list[list[int]]:
    return [[dice.randrange(VOCAB) for _ in range(dice.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 5}], ids=["whole", "in pieces"])
def test_mixed_batches_agree_with_the_reference(
    base: Path, adapter: Path, oracle: Oracle, options: dict[str, Any]
) -> None:
    engine, dice, asked = make(base, adapter, **options), random.Random(1), []
    for number, prompt in enumerate(prompts(dice, 24)):
        best = dice.choice([-1, 0, 1, 5])
        model = dice.choice(["", "a"])
        asked.append((engine.add(prompt, model, max_tokens=1 + number % 5, prompt_logprobs=best), model, best))
    finish(engine)
    for request, model, best in asked:
        if best < 0:
            assert request.prompt_logprobs == []
        else:
            agrees(oracle, request, adapter if model else None, best)
    engine.close()


def test_what_is_cached_is_computed_again_and_cached_for_others(engine: Engine, oracle: Oracle) -> None:
    prompt = prompts(random.Random(2), 1)[0] + list(range(48))
    plain = [engine.add(prompt, max_tokens=1), engine.add(prompt, max_tokens=1)]
    finish(engine)
    scored = engine.add(prompt, max_tokens=1, prompt_logprobs=0)
    finish(engine)
    agrees(oracle, scored, None, 0)
    told = engine.explain(scored.id)
    assert told is not None and told["cached_tokens"] == 0
    other = engine.add(prompt, max_tokens=1)
    finish(engine)
    told = engine.explain(other.id)
    assert told is not None and told["cached_tokens"] > 0
    assert scored.tokens == plain[0].tokens == other.tokens


def test_others_have_the_same_bits(base: Path, adapter: Path) -> None:
    answers = []
    for best in (-1, 3):
        engine = make(base, adapter, deterministic=True)
        dice = random.Random(3)
        others = [engine.add(prompt, "a", max_tokens=9, logprobs=2) for prompt in prompts(dice, 4)]
        engine.add(prompts(dice, 1)[0], "a", max_tokens=9, prompt_logprobs=best)
        finish(engine)
        answers.append([(request.tokens, request.logprobs) for request in others])
        engine.close()
    assert answers[0] == answers[1]


def test_preempted_prompts_are_told_of_once(base: Path, adapter: Path, oracle: Oracle) -> None:
    engine = make(base, adapter, kv_cache_memory_bytes=160 << 10, preempt_after_tokens=1, max_num_seqs=8)
    dice = random.Random(4)
    asked = [
        engine.add([dice.randrange(VOCAB) for _ in range(40)], max_tokens=60, stop_token_ids=(), prompt_logprobs=1)
        for _ in range(8)
    ]
    finish(engine)
    assert engine.stats().preemptions > 0
    for request in asked:
        agrees(oracle, request, None, 1)
    engine.close()


def test_an_aborted_request_leaves_nothing(engine: Engine) -> None:
    request = engine.add(list(range(64)), max_tokens=50, prompt_logprobs=5)
    engine.step()
    engine.abort(request.id)
    finish(engine)
    assert request.finish == "abort"


@pytest.mark.parametrize("best", [-2, 21, 1.5, True, "1"])
def test_numbers_out_of_range(engine: Engine, best: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        engine.add([1, 2], prompt_logprobs=best)
    assert "prompt_logprobs" in refusal.value.message and not engine.has_work()


async def test_echo_over_http(base: Path, adapter: Path, oracle: Oracle) -> None:
    engine = EngineConfig(model=str(base), dtype="float32", kv_cache_memory_bytes=4 << 20)
    server = Server(engine, ServerConfig(port=0, served_model_name="base", lora_modules=[f"a={adapter}"]))
    url = await server.start()
    try:
        async with aiohttp.ClientSession(base_url=url) as session:

            async def ask(**fields: Any) -> tuple[int, Any]:
                body = {"model": "a", "max_tokens": 3, "temperature": 0, "ignore_eos": True, **fields}
                async with session.post("/v1/completions", json=body) as response:
                    return response.status, await response.json()

            ids = [[5, 6, 7, 8, 9, 10], [70, 71]]
            plain = (await ask(prompt=ids))[1]["choices"]
            status, body = await ask(prompt=ids, echo=True, logprobs=2, n=2)
            assert status == 200 and len(body["choices"]) == 4
            assert body["usage"]["prompt_tokens"] == 8 and body["usage"]["completion_tokens"] == 12
            for index, choice in enumerate(body["choices"]):
                prompt, answer = ids[index // 2], plain[index // 2]["text"]
                right, logprobs = oracle.logprobs(prompt, adapter), choice["logprobs"]
                assert choice["text"].endswith(answer)
                assert len(logprobs["tokens"]) == len(prompt) + 3 == len(logprobs["text_offset"])
                assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
                for place, token in enumerate(prompt[1:]):
                    assert abs(logprobs["token_logprobs"][place + 1] - float(right[place, token])) < TOLERANCE
                    best = max(logprobs["top_logprobs"][place + 1].values())
                    assert abs(best - float(right[place].max())) < TOLERANCE
                assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
                assert len(choice["text"]) - len(answer) == logprobs["text_offset"][len(prompt)]
            # lm_eval's way to score a text: it cuts the token off that it has to ask for, an end token too.
            after = oracle.logprobs(ids[0], adapter)[-1]
            stop = {"stop_token_ids": [int(after.argmax())], "ignore_eos": False}
            status, body = await ask(prompt=ids[0], echo=True, logprobs=1, max_tokens=1, **stop)
            (choice,) = body["choices"]
            assert (choice["finish_reason"], body["usage"]["completion_tokens"]) == ("stop", 0)
            assert len(choice["logprobs"]["tokens"]) == len(ids[0]) + 1
            assert abs(choice["logprobs"]["token_logprobs"][-1] - float(after.max())) < TOLERANCE
            assert choice["logprobs"]["text_offset"][-1] == len(choice["text"])
            (choice,) = (await ask(prompt=ids[0], logprobs=1, **stop))[1]["choices"]
            assert choice["logprobs"]["tokens"] == [], "without echo it's no part of the answer"
            text = "some words, or none"
            status, body = await ask(prompt=text, echo=True)
            assert status == 200 and body["choices"][0]["text"].startswith(text)
            assert body["choices"][0]["logprobs"] is None
            status, body = await ask(prompt=text, echo=True, stream=True)
            assert status == 400 and (body["error"]["code"], body["error"]["param"]) == ("field_conflict", "echo")
    finally:
        await server.stop()


async def test_the_prompt_alone_over_http(base: Path, adapter: Path, oracle: Oracle) -> None:
    engine = EngineConfig(model=str(base), dtype="float32", kv_cache_memory_bytes=4 << 20)
    server = Server(engine, ServerConfig(port=0, served_model_name="base", lora_modules=[f"a={adapter}"]))
    url = await server.start()
    try:
        async with aiohttp.ClientSession(base_url=url) as session:

            async def ask(**fields: Any) -> tuple[int, bytes]:
                body = {"model": "a", "max_tokens": 0, "temperature": 0, "echo": True, "logprobs": 2, **fields}
                async with session.post("/v1/completions", json=body) as response:
                    return response.status, await response.read()

            ids = [[5, 6, 7, 8, 9, 10], [70, 71]]
            texts = [load_text_model(base).tokenizer.decode(prompt) for prompt in ids]
            # The token that is made for it isn't there, whether it ends an answer or not.
            for stop in ([], [int(oracle.logprobs(ids[0], adapter)[-1].argmax())]):
                status, body = await ask(prompt=ids, n=2, stop_token_ids=stop)
                assert status == 200
                whole = json.loads(body)
                assert whole["usage"]["completion_tokens"] == 0 and whole["usage"]["prompt_tokens"] == 8
                for index, choice in enumerate(whole["choices"]):
                    prompt, scores = ids[index // 2], choice["logprobs"]["token_logprobs"]
                    right = oracle.logprobs(prompt, adapter)
                    assert (choice["text"], choice["finish_reason"]) == (texts[index // 2], "length")
                    assert len(scores) == len(choice["logprobs"]["top_logprobs"]) == len(prompt) and scores[0] is None
                    for place, token in enumerate(prompt[1:]):
                        assert abs(scores[place + 1] - float(right[place, token])) < TOLERANCE
            status, body = await ask(prompt=ids, n=2, stream=True, stream_options={"include_usage": True})
            *chunks, last = chunks_of(body)
            streamed = [choice for chunk in chunks for choice in chunk["choices"]]
            assert [choice["index"] for choice in streamed] == [0, 1, 2, 3] and last["usage"]["completion_tokens"] == 0
            for choice, told in zip(streamed, whole["choices"], strict=True):
                assert (choice["text"], choice["finish_reason"]) == (told["text"], "length")
                assert choice["logprobs"]["tokens"] == told["logprobs"]["tokens"]
                assert choice["logprobs"]["token_logprobs"] == pytest.approx(told["logprobs"]["token_logprobs"])
            for stream in (False, True):
                status, body = await ask(prompt=ids[0], logprobs=None, stream=stream)
                (choice,) = chunks_of(body)[0]["choices"] if stream else json.loads(body)["choices"]
                assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == (texts[0], None, "length")
            for more, field, code in (
                ({"echo": False}, "max_tokens", "field_range"),
                ({"min_tokens": 1}, "min_tokens", "field_conflict"),
            ):
                status, body = await ask(prompt=ids[0], **more)
                error = json.loads(body)["error"]
                assert status == 400 and (error["code"], error["param"]) == (code, field)
    finally:
        await server.stop()
