"""The real thing: `lorad serve` on the embedded base with the real tenants, asked by real clients over HTTP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from lorad.demo.tenant import tenants
from served_process import Serving

BASE = "smollm2"
QUESTION = "Define: lawyer"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[Serving]:
    """Deterministic: the same request gives the same text, whatever is cached of its prompt or computed beside it."""
    modules = [f"{tenant.name}={tenant.path}" for tenant in tenants()]
    serving = Serving(str(smollm2_gguf), "--deterministic", "--served-model-name", BASE, "--lora-modules", *modules)
    yield serving
    if serving.process.poll() is None:
        assert serving.stop() == 0


@pytest.fixture(scope="module")
def client(server: Serving) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def models() -> list[str]:
    return [tenant.name for tenant in tenants()] + [BASE]


def ask(client: openai.OpenAI, model: str, *, max_tokens: int = 40) -> str:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=max_tokens
    )
    return answer.choices[0].message.content or ""


def test_every_tenant_gives_its_own_answer_streamed_or_not(client: openai.OpenAI) -> None:
    answers = {}
    for model in models():
        whole = ask(client, model)
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert streamed == whole
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0
        answers[model] = whole
    assert len(set(answers.values())) == len(answers), answers


def test_a_mixed_burst_equals_each_model_asked_alone(server: Serving, client: openai.OpenAI) -> None:
    """Quantised base, default number types."""
    alone = {model: ask(client, model) for model in models()}

    async def burst() -> dict[str, str]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as many:

            async def one(model: str) -> tuple[str, str]:
                answer = await many.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=40
                )
                return model, answer.choices[0].message.content or ""

            return dict(await asyncio.gather(*(one(model) for model in models())))

    together = asyncio.run(burst())
    assert together == alone


def test_models_are_listed_with_their_parent(server: Serving, client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert set(listed) == set(models())


def test_an_unknown_model_is_a_404_and_never_the_base(server: Serving) -> None:
    for name in ("nobody", models()[0].upper(), models()[0] + " "):
        status, body = server.post("/v1/completions", {"model": name, "prompt": "hi", "max_tokens": 1})
        assert status == 404, body
        assert "error" in body


def test_metrics_and_health(server: Serving) -> None:
    with urllib.request.urlopen(server.url + "/health", timeout=10) as response:
        assert response.status == 200
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as response:
        text = response.read().decode()
    assert "vllm:num_requests_running" in text


def test_a_bad_adapter_ends_the_start_with_its_name(smollm2_gguf: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lorad", "serve", str(smollm2_gguf), "--port", "0"]
    ended = subprocess.run(
        [*command, "--lora-modules", f"broken={tmp_path / 'missing'}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert "broken" in ended.stderr and "Traceback" not in ended.stderr


def test_the_demo_prints_its_table() -> None:
    env = {**os.environ, "COLUMNS": "160"}
    ended = subprocess.run(
        [sys.executable, "-m", "lorad", "demo", "--once", "--port", "0"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=env,
    )
    assert ended.returncode == 0, ended.stderr
    for model in models():
        assert model in ended.stdout
    assert "tok/s together" in ended.stdout
    assert "curl" not in ended.stdout, "the server has stopped"


class Person(pydantic.BaseModel):
    """Short, as a small model goes on for ever where it may."""

    name: str = pydantic.Field(max_length=30)
    age: int = pydantic.Field(ge=0, le=150)


def test_answers_follow_a_schema_beside_others(server: Serving, client: openai.OpenAI) -> None:
    """By the client's own helpers; what others are answered is what they are answered alone."""
    alone = {model: ask(client, model) for model in models()[:2]}
    messages: list[Any] = [{"role": "user", "content": "Name a person and an age, as JSON."}]

    async def beside() -> tuple[list[Any], dict[str, str]]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as many:

            async def person(model: str) -> Any:
                return await many.chat.completions.parse(
                    model=model, messages=messages, response_format=Person, max_tokens=200, n=2, seed=1, logprobs=True
                )

            async def free(model: str) -> tuple[str, str]:
                answer = await many.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=40
                )
                return model, answer.choices[0].message.content or ""

            people = asyncio.gather(*(person(model) for model in models()))
            return await people, dict(await asyncio.gather(*(free(model) for model in alone)))

    people, together = asyncio.run(beside())
    assert together == alone
    for answer in people:
        for choice in answer.choices:
            assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Person)
            assert choice.logprobs is not None and choice.logprobs.content


def test_vllms_spellings_and_refusals(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=BASE, prompt="Is water wet?", extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert answer.choices[0].text in ("yes", "no") and answer.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model=BASE, prompt="a", extra_body={"guided_json": {"items": {"not": {}}}})
    assert refusal.value.code == "json_schema" and "guided_json.items" in str(refusal.value)
    with pytest.raises(openai.BadRequestError) as refusal:
        # Only the engine knows which names of tokens there are.
        client.completions.create(model=BASE, prompt="a", extra_body={"guided_grammar": "start: <nobody>"})
    assert refusal.value.code == "grammar" and refusal.value.param == "guided_grammar"


def test_tools_are_called(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Person, name="save_person")
    asked: dict[str, Any] = {
        "model": BASE,
        "messages": [{"role": "user", "content": "Save Anna, who is 34."}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "save_person"}},
        "max_tokens": 300,
        "temperature": 0,
    }
    whole = client.chat.completions.parse(**asked).choices[0]
    (call,) = whole.message.tool_calls or []
    assert whole.finish_reason == "tool_calls" and isinstance(call.function.parsed_arguments, Person)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.tool_calls and streamed.message.tool_calls[0].function.arguments == call.function.arguments
    messages = [*asked["messages"], whole.message, {"role": "tool", "tool_call_id": call.id, "content": "Saved."}]
    last = client.chat.completions.create(**{**asked, "messages": messages, "tool_choice": "auto", "max_tokens": 20})
    assert last.choices[0].message.content


def test_penalties_and_least_tokens(client: openai.OpenAI) -> None:
    plain = ask(client, BASE)
    asked: dict[str, Any] = {"model": BASE, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    changed = client.chat.completions.create(
        **asked, max_tokens=40, presence_penalty=2, frequency_penalty=2, extra_body={"repetition_penalty": 1.5}
    )
    assert (changed.choices[0].message.content or "") != plain
    banned = client.chat.completions.create(**asked, max_tokens=5, logit_bias={"28": 100})
    assert len(set(banned.choices[0].message.content or "")) == 1, "the one token that is wanted so much"
    long = client.chat.completions.create(**asked, max_tokens=60, extra_body={"min_tokens": 60})
    assert long.usage and long.usage.completion_tokens == 60
