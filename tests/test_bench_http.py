"""`lorad bench --server`: what a stream must be to count, and the server's life from start to end."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from pathlib import Path

import pytest

from lorad.bench.served import served
from lorad.bench.streams import Answer, run_streams
from lorad.bench.traffic import Ask
from lorad.cli import main
from lorad.config import EngineConfig
from lorad.engine.messages import Generate
from lorad.errors import LoradError
from scripted_engine import ScriptedEngine, model_info
from serving import CONTEXT, VOCAB, WORD_IDS, serving
from tiny import make_tiny

ASK = Ask(0.5, 0, [1, 2], 3)
USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("bench") / "tiny")


def event(text: str = "", reason: str | None = None, **fields: object) -> bytes:
    choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]
    return b"data: " + json.dumps({"choices": choices, "usage": None, **fields}).encode() + b"\n\n"


def end(usage: dict[str, int] = USAGE) -> bytes:
    return event(choices=[], usage=usage) + b"data: [DONE]\n\n"


def test_a_stream_is_timed_by_what_comes_together() -> None:
    answer = Answer(ASK)
    first = event("a") + event("b")
    answer.take(first[:7], 1.0)
    answer.take(first[7:-1], 2.0)
    answer.take(first[-1:] + event("c") + event("", "length"), 3.0)
    answer.take(end(), 9.0)
    times = answer.checked()
    assert (times.at_s, times.tokens, times.came_s) == (0.5, 3, [2.0, 3.0, 3.0])


def test_tokens_without_text_count_at_the_end() -> None:
    answer = Answer(ASK)
    answer.take(event("a"), 1.0)
    answer.take(event("", "length"), 2.0)
    answer.take(end(), 2.0)
    times = answer.checked()
    assert (times.came_s, times.tpot_s) == ([1.0, 2.0], 0.5)


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (event("a") + event("", "length"), "a stream without an end"),
        (event("a") + event("", "length") + b"data: [DONE]\n\n", "a stream without an end"),
        (event("a") + event("", "stop") + end(), "ended by stop after 3 of 3"),
        (event("a", "length") + end(USAGE | {"completion_tokens": 2}), "ended by length after 2 of 3"),
        (event("a", "length") + end(USAGE | {"prompt_tokens": 3}), "its prompt of 2 was taken for 3"),
        (event("a") + b'data: {"error":{"message":"the engine died"}}\n\n', "failed in mid-stream: the engine died"),
    ],
)
def test_a_wrong_stream_has_no_times(stream: bytes, what: str) -> None:
    with pytest.raises(LoradError, match=what) as failed:
        answer = Answer(ASK)
        answer.take(stream, 1.0)
        answer.checked()
    assert failed.value.code == "bench_request"


def words(request: Generate) -> list[int]:
    return [WORD_IDS["hel"], WORD_IDS["lo"]] * 50


async def test_requests_go_out_at_their_times_under_their_names() -> None:
    engine = ScriptedEngine(words, info=model_info(VOCAB, CONTEXT))
    asks = [Ask(0.0, 0, [1, 2, 3], 4), Ask(0.2, 1, [4, 5], 9)]
    async with serving(engine) as client:
        run = await asyncio.to_thread(run_streams, client.address, asks, lambda index: ["", "devil"][index])
    assert [(list(sent.prompt), sent.generation) for sent in engine.submitted] == [
        ([1, 2, 3], ""),
        ([4, 5], "gen-devil"),
    ]
    assert [times.tokens for times in run.requests] == [4, 9]
    assert all(times.came_s[0] >= times.at_s and len(times.came_s) == times.tokens for times in run.requests)


@pytest.mark.parametrize(
    ("name", "output", "what"),
    [
        ("nobody", 2, "was answered with 404"),
        ("", CONTEXT, "was answered with 400"),
        ("", 101, "ended by stop after 100"),
    ],
)
async def test_a_refused_or_short_answer_ends_the_run(name: str, output: int, what: str) -> None:
    async with serving(ScriptedEngine(words, info=model_info(VOCAB, CONTEXT))) as client:
        with pytest.raises(LoradError, match=what):
            await asyncio.to_thread(run_streams, client.address, [Ask(0.0, 0, [1], output)], lambda index: name)


def test_nobody_there() -> None:
    with pytest.raises(LoradError, match="ClientConnectorError") as failed:
        run_streams("http://127.0.0.1:9", [ASK], lambda index: "")
    assert failed.value.code == "bench_request"


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_server_lives_as_long_as_its_block(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # options of the user's own server: this one would answer 401, or not start
    monkeypatch.setenv("LORAD_API_KEY", "secret")
    monkeypatch.setenv("LORAD_LORA_MODULES", "a=/no/such/adapter")
    config, before = EngineConfig(model=str(base), kv_cache_memory_bytes=16 << 20), children()
    with pytest.raises(ZeroDivisionError), served(config, {}, tmp_path / "log") as address:
        with urllib.request.urlopen(f"{address}/v1/models") as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["base"]
        (server,) = children() - before
        (engine,) = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        raise ZeroDivisionError
    assert children() == before
    # the engine goes when the server is gone, by itself
    while Path(f"/proc/{engine}").exists():
        time.sleep(0.01)


def test_a_server_that_cannot_start_says_why(base: Path, tmp_path: Path) -> None:
    before = children()
    with (
        pytest.raises(LoradError, match=r"server ended with status 1: lorad: adapter 'a'") as failed,
        served(EngineConfig(model=str(base)), {"a": tmp_path}, tmp_path / "log"),
    ):
        pass
    assert failed.value.code == "bench_server" and children() == before


def test_engine_and_server_beside_each_other(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture, before = tmp_path / "bench.json", tmp_path / "bench.svg", children()
    words = ["--requests", "5", "--adapters", "3", "--rank", "4", "--prompt", "4-9", "--output", "3", "--repeats", "2"]
    words += ["--kv-cache-memory-bytes", str(16 << 20), "--json", str(file), "--plot", str(picture)]
    assert main(["bench", str(base), "--server", *words]) == 0
    printed = capsys.readouterr().out
    assert "of engine" in printed and printed.count("over HTTP") == 4
    told = json.loads(file.read_text())
    names = [(name, level) for name in ("base", "one", "merged", "all") for level in ("engine", "server")]
    assert [(side["name"], side["level"]) for side in told["sides"]] == names
    for side in told["sides"]:
        assert [one["output_tok_s"] > 0 and one["ttft_p50_s"] > 0 for one in side["repeats"]] == [True, True]
    assert "<!-- over HTTP -->" in picture.read_text()
    assert children() == before
