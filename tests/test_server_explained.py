"""`explain: true`: an answer tells what it waited for, streamed or not, on both endpoints."""

from __future__ import annotations

from typing import Any

from asking import BOTH, GOOD, refused
from lorad.engine.messages import Waits
from scripted_engine import ScriptedEngine, model_info
from serving import CONTEXT, END, VOCAB, chunks_of, serving

FIELDS = {
    *("index", "queue_seconds", "load_seconds", "tier", "cached_tokens", "generation", "preemptions"),
    "first_token_seconds",
}


def engine() -> ScriptedEngine:
    engine = ScriptedEngine(info=model_info(VOCAB, CONTEXT))
    engine.waits, engine.cached_tokens = Waits("cold", 0.4, 0.3, 2), 1
    return engine


def check(told: list[dict[str, Any]], n: int) -> None:
    assert [one["index"] for one in told] == list(range(n))
    for one in told:
        assert set(one) == FIELDS
        assert one["first_token_seconds"] > 0
        waited = {name: one[name] for name in FIELDS - {"index", "first_token_seconds"}}
        assert waited == {
            "queue_seconds": 0.4,
            "load_seconds": 0.3,
            "tier": "cold",
            "cached_tokens": 1,
            "generation": "gen-devil",
            "preemptions": 2,
        }


@BOTH
async def test_a_whole_answer_and_a_stream_tell_the_same(path: str) -> None:
    async with serving(engine()) as client:
        fields = {**GOOD[path], "model": "devil", "n": 2, "explain": True}
        status, answer = await client.post(path, **fields)
        assert status == 200
        check(answer["lorad"], 2)
        chunks = chunks_of(await client.stream(path, **fields))
        assert [("lorad" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1]["choices"] == [] and "usage" not in chunks[-1]
        check(chunks[-1]["lorad"], 2)


@BOTH
async def test_beside_usage_which_stays_last(path: str) -> None:
    async with serving(engine()) as client:
        options = {"stream_options": {"include_usage": True}, "model": "devil", "explain": True}
        chunks = chunks_of(await client.stream(path, **{**GOOD[path], **options}))
        check(chunks[-2]["lorad"], 1)
        assert chunks[-2]["usage"] is None and chunks[-2]["choices"] == []
        assert "lorad" not in chunks[-1] and chunks[-1]["usage"]["completion_tokens"] > 0


@BOTH
async def test_nothing_of_it_unless_its_asked_for(path: str) -> None:
    async with serving(engine()) as client:
        for more in ({}, {"explain": False}, {"explain": None}):
            assert "lorad" not in (await client.post(path, **{**GOOD[path], **more}))[1]
            assert all("lorad" not in chunk for chunk in chunks_of(await client.stream(path, **{**GOOD[path], **more})))
        refused(await client.post(path, **{**GOOD[path], "explain": "yes"}), "explain")


@BOTH
async def test_what_isnt_known_is_null(path: str) -> None:
    async with serving() as client:
        client.engine.script = lambda request: [END]
        _, answer = await client.post(path, **{**GOOD[path], "explain": True})
        (told,) = answer["lorad"]
        assert set(told) == FIELDS and told["generation"] == "base-digest"
        assert {told[name] for name in ("queue_seconds", "tier", "preemptions", "first_token_seconds")} == {None}
