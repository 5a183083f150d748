"""`lorad bench`: the same asks for every side, figures as defined, the command on a tiny model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from lorad.bench import plot
from lorad.bench.figures import figures, kept, rank
from lorad.bench.lengths import LogNormal, Uniform, parse_lengths
from lorad.bench.rig import Rig
from lorad.bench.roofline import Reads
from lorad.bench.run import NameOf, Run, Times, run
from lorad.bench.side import Side, base_of, make_sides, twin_of
from lorad.bench.traffic import Ask, Traffic, asks, kv_tokens
from lorad.cli import main
from lorad.config import EngineConfig
from lorad.engine.messages import Failure, Finished, Step, Token
from lorad.errors import InvalidRequest, LoradError
from tiny import WIDE, make_tiny, make_tiny_gguf

TRAFFIC = Traffic(requests=400, rate=0.0, prompt=Uniform(3, 9), output=Uniform(2, 2), zipf=0.0, seed=4)
POOL = ["--kv-cache-memory-bytes", str(16 << 20)]
SMALL = ["--requests", "5", "--adapters", "3", "--rank", "4", "--prompt", "4-9", "--output", "3", "--repeats", "2"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("bench") / "tiny")


def test_asks_follow_the_seed() -> None:
    made = asks(TRAFFIC, 8, 50)
    assert made == asks(TRAFFIC, 8, 50) != asks(Traffic(400, 0.0, Uniform(3, 9), Uniform(2, 2), 0.0, 5), 8, 50)
    assert Counter(ask.adapter for ask in made) == {index: 50 for index in range(8)}
    assert {len(ask.prompt) for ask in made} == set(range(3, 10))
    assert all(ask.at_s == 0 and ask.output == 2 and max(ask.prompt) < 50 for ask in made)
    assert kv_tokens([Ask(0.0, 0, [1, 2, 3], 4), Ask(0.0, 1, [1], 1)]) == 3 + 2 + 1 + 0.5


def test_popularity_and_arrivals() -> None:
    made = asks(Traffic(4000, 20.0, Uniform(1, 1), Uniform(1, 1), 1.0, 1), 4, 50)
    counts = Counter(ask.adapter for ask in made)
    # by 1 / rank of the sum 25/12
    for index in range(4):
        assert counts[index] / 4000 == pytest.approx(12 / 25 / (index + 1), rel=0.12)
    times = [ask.at_s for ask in made]
    assert times == sorted(times) and times[-1] == pytest.approx(200, rel=0.1)


@pytest.mark.parametrize("zipf", [0.0, 1.0])
def test_sides_differ_in_nothing_but_the_adapter(zipf: float) -> None:
    traffic = Traffic(50, 3.0, LogNormal(20, 500), Uniform(1, 9), zipf, 1)
    one, many = ([(ask.at_s, ask.prompt, ask.output) for ask in asks(traffic, count, 50)] for count in (1, 32))
    assert one == many


def test_lengths() -> None:
    assert parse_lengths("7", "prompt") == parse_lengths("fixed:7", "prompt") == Uniform(7, 7)
    assert parse_lengths("3-9", "prompt") == parse_lengths("uniform:3:9", "prompt") == Uniform(3, 9)
    drawn = parse_lengths("lognormal:128:500", "prompt")
    assert drawn == LogNormal(128, 500)
    for lengths in (Uniform(7, 7), Uniform(3, 9), drawn):
        assert parse_lengths(str(lengths), "prompt") == lengths
    dice = Random(1)
    values = sorted(drawn.draw(dice) for _ in range(10_000))
    # a normal's median and its 84th percentile, one deviation above
    assert values[5_000] == pytest.approx(128, rel=0.05)
    assert values[8_413] == pytest.approx(128 * 2.71828**0.5, rel=0.05)
    assert min(LogNormal(1, 2000).draw(dice) for _ in range(100)) == 1


@pytest.mark.parametrize(
    "text", ["", "x", "0", "9-3", "-4", "3-x", "3-4-5", "³", "uniform:3", "lognormal:5", "lognormal:0:5", "normal:5:5"]
)
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequest, match="prompt: wants 128, 16-512 or lognormal") as refused:
        parse_lengths(text, "prompt")
    assert refused.value.code == "bench_length" and repr(text) in refused.value.message


def test_figures_are_what_they_say() -> None:
    # the last answer's second token had no text of its own
    slow, fast, quiet = Times(1.0, 3, [3.0, 3.5, 4.5]), Times(0.0, 1, [0.5]), Times(0.5, 3, [2.0, 2.5])
    found = figures(Run([slow, fast, quiet], steps=5))
    assert found["output_tok_s"] == 7 / 4.5 and found["step_ms"] == 900.0
    assert (found["ttft_p50_s"], found["ttft_p90_s"], found["ttft_p99_s"]) == (1.5, 2.0, 2.0)
    assert (found["tpot_p50_ms"], found["tpot_p99_ms"]) == (250.0, 750.0)
    assert (found["itl_p50_ms"], found["itl_p99_ms"]) == (500.0, 1000.0)
    assert [rank(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100] and rank([], 0.5) == 0
    assert Run([Times(2.0, 1, [2.5])], 1).seconds == 0.5
    assert kept([{"output_tok_s": 8.0}, {"output_tok_s": 3.0}], [{"output_tok_s": 10.0}] * 2) == (
        pytest.approx(0.55),
        pytest.approx(0.3),
        pytest.approx(0.8),
    )
    assert Reads(1, 2, 4).bytes == 7


def test_sides_know_what_they_are_compared_with() -> None:
    sides = make_sides(["engine", "server"], 16, 4, merged=True, sweep=True)
    assert len(sides) == 2 * (4 + 9)
    for side in sides:
        twin = twin_of(sides, side)
        assert base_of(sides, side).level == side.level
        assert (twin is None) is (side.level == "engine")
        assert twin is None or (twin.level, twin.title) == ("engine", side.title)
    alone = make_sides(["engine"], 16, 4, merged=False, sweep=False)
    assert [side.title for side in alone] == ["none: the base", "1 of rank 16", "4 of rank 16"]


class Script:
    """An engine whose one step says what a test tells it to."""

    steps = 0

    def __init__(self, step: Step) -> None:
        self.step = lambda: step

    def add(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(id=1)


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (Step([Token(1, 5)], [Finished(1, "length")]), "ended by length after 1 of 2 tokens"),
        (Step([], [Finished(1, "error", Failure("EngineFailure", "x", "x"))]), "ended by error after 0 of 2"),
    ],
)
def test_a_wrong_answer_has_no_speed(step: Step, what: str) -> None:
    engine: Any = Script(step)
    with pytest.raises(LoradError, match=what) as failed:
        run(engine, [Ask(0.0, 0, [1], 2)], lambda index: "")
    assert failed.value.code == "bench_request"


def test_every_side_asks_its_own_model(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, set[str]]] = []

    @contextmanager
    def served(config: EngineConfig, adapters: dict[str, Path], log: Path) -> Iterator[str]:
        yield f"{Path(config.model).parent.name} with {len(adapters)}"

    def run_streams(address: str, made: list[Ask], name_of: NameOf) -> Run:
        asked.append((address, {name_of(ask.adapter) for ask in made}))
        return Run([Times(0.0, 1, [1.0])], 1)

    monkeypatch.setattr("lorad.bench.rig.served", served)
    monkeypatch.setattr("lorad.bench.rig.run_streams", run_streams)
    file = make_tiny_gguf(base, tmp_path / "tiny.gguf", "Q8_0")
    config = EngineConfig(model=str(file), kv_cache_memory_bytes=16 << 20)
    traffic = Traffic(6, 0.0, Uniform(3, 3), Uniform(2, 2), 0.0, 1)
    sides = make_sides(["engine", "server"], 4, 3, merged=True, sweep=False)
    own: dict[str, bool] = {}
    with ExitStack() as stack:
        rig = Rig(config, tmp_path, stack, lambda stage: None)
        rig.load({4: 3})
        rig.serve()
        rig.merge(4, serve=True)
        for side in sides:
            before = rig.engine.steps
            rig.measure(side, traffic)
            own[f"{side.name} {side.level}"] = rig.engine.steps > before
        assert rig.adapter_bytes(sides[-1], rig.asks(sides[-1], traffic)) == 3 * rig.engine.adapters.names["r4-0"].bytes
    # the merged model is another engine, and another server
    assert [name for name, used in own.items() if used] == ["base engine", "one engine", "all engine"]
    folder, every = f"{tmp_path.name} with 3", {"r4-0", "r4-1", "r4-2"}
    served_by = [(folder, {""}), (folder, {"r4-0"}), ("merged with 0", {""}), (folder, every)]
    assert asked == [call for call in served_by for _ in ("warm", "measured")]


def test_a_wrong_run_prints_no_table(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lorad.engine.engine import Engine

    end = Engine._end

    def cut(self: Engine, request: int, reason: str, tokens: list[Token]) -> Finished:
        return end(self, request, "failed_row" if request == 20 else reason, tokens)

    monkeypatch.setattr(Engine, "_end", cut)
    assert main(["bench", str(base), *SMALL, *POOL, "--no-merged"]) == 1
    said = capsys.readouterr()
    assert "ended by error after 3 of 3 tokens [bench_request]" in said.err and "tok/s" not in said.out


def test_the_command_measures_writes_and_draws(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    more = ["--sweep", "--rate", "50", "--zipf", "1", "--json", str(file), "--plot", str(picture)]
    assert main(["bench", str(base), *SMALL, *POOL, *more]) == 0
    printed = capsys.readouterr().out
    for text in ("3 of rank 4", "1 of rank 4, merged", "what is left of the base's throughput", "GB/s", "Zipf's law"):
        assert text in printed
    told = json.loads(file.read_text())
    assert [(side["name"], side["level"], side["rank"], side["distinct"]) for side in told["sides"][:4]] == [
        ("base", "engine", 0, 0),
        ("one", "engine", 4, 1),
        ("merged", "engine", 4, 0),
        ("all", "engine", 4, 3),
    ]
    assert len(told["sides"]) == 4 + 9
    for side in told["sides"]:
        assert len(side["repeats"]) == 2 and all(value > 0 for one in side["repeats"] for value in one.values())
    assert told["reads"]["adapters"] > 0 and told["bytes_per_s"] > 1e8
    assert told["traffic"] == {"requests": 5, "rate": 50, "prompt": "4-9", "output": "3", "zipf": 1, "seed": 1}
    drawn = picture.read_text()
    for text in ("1 of rank 4, merged", "rank 64", "distinct adapters", "by rank, in process"):
        assert f"<!-- {text} -->" in drawn
    again = [Side(**side) for side in told["sides"]]
    plot.draw(again, Traffic(5, 50.0, Uniform(4, 9), Uniform(3, 3), 1.0, 1), picture)
    assert picture.read_text() == drawn, "the same figures, the same file"


def test_a_base_that_cannot_be_merged_is_measured_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = make_tiny_gguf(make_tiny(tmp_path / "wide", **WIDE), tmp_path / "k.gguf", "Q8_0", modules={"v_proj": "Q6_K"})
    assert main(["bench", str(file), *SMALL, *POOL]) == 0
    printed = capsys.readouterr().out
    assert "without a merged model: matrices of Q6_K can be read but not written here" in printed
    assert "of rank 4, merged" not in printed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--requests", "0"], "requests: at least 1, got 0 [option_range]"),
        (["--requests", "4097"], "requests: at most 4096, got 4097 [option_range]"),
        (["--rate", "-1"], "rate: at least 0, got -1.0 [option_range]"),
        (["--rate", "nan"], "rate: at most 1e+06, got nan [option_range]"),
        (["--zipf", "11"], "zipf: at most 10, got 11.0 [option_range]"),
        (["--rank", "300"], "rank: at most rank 256 (--max-lora-rank), got 300 [option_range]"),
        (["--sweep", "--max-lora-rank", "32"], "sweep: at most rank 32 (--max-lora-rank), got 64 [option_range]"),
        (["--output", "none"], "got 'none' [bench_length]"),
        (["--prompt", "1020", "--output", "5"], "together at most 1024 tokens"),
        (["--plot", "out.gif"], "[plot_form]"),
        (["--json", "/no/such/folder/out.json"], "there is no such folder [file_write]"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    base: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["bench", str(base), *POOL, *options]) == 1
    found = capsys.readouterr().err
    assert said in found and found.count("\n") == 1
