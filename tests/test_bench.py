"""`lorad bench`: the same asks for every side, figures as defined, the command on a tiny model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from lorad.bench.figures import figures, kept, rank
from lorad.bench.roofline import Reads
from lorad.bench.run import Run, Times
from lorad.bench.traffic import Span, Traffic, asks
from lorad.cli import main
from lorad.errors import InvalidRequest
from tiny import make_tiny

TRAFFIC = Traffic(requests=400, rate=0.0, prompt=Span(3, 9), output=Span(2, 2), zipf=0.0, seed=4)


def test_asks_follow_the_seed() -> None:
    made = asks(TRAFFIC, 8, 50)
    assert made == asks(TRAFFIC, 8, 50) != asks(Traffic(400, 0.0, Span(3, 9), Span(2, 2), 0.0, 5), 8, 50)
    assert Counter(ask.adapter for ask in made) == {index: 50 for index in range(8)}
    assert {len(ask.prompt) for ask in made} == set(range(3, 10))
    assert all(ask.at_s == 0 and ask.output == 2 and max(ask.prompt) < 50 for ask in made)


def test_popularity_and_arrivals() -> None:
    made = asks(Traffic(4000, 20.0, Span(1, 1), Span(1, 1), 1.0, 1), 4, 50)
    counts = Counter(ask.adapter for ask in made)
    # by 1 / rank of the sum 25/12
    for index in range(4):
        assert counts[index] / 4000 == pytest.approx(12 / 25 / (index + 1), rel=0.12)
    times = [ask.at_s for ask in made]
    assert times == sorted(times) and times[-1] == pytest.approx(200, rel=0.1)


def test_lengths() -> None:
    assert (Span.parse("7", "prompt"), Span.parse("3-9", "prompt")) == (Span(7, 7), Span(3, 9))


@pytest.mark.parametrize("text", ["", "x", "0", "9-3", "-4", "3-x"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequest, match="prompt: a length") as refused:
        Span.parse(text, "prompt")
    assert refused.value.code == "bench_length"


def test_figures_are_what_they_say() -> None:
    slow, fast = Times(1.0, [3.0, 3.5, 4.5]), Times(0.0, [0.5])
    found = figures(Run([slow, fast], steps=5, seconds=4.5))
    assert found["output_tok_s"] == 4 / 4.5
    assert (found["ttft_p50_s"], found["ttft_p99_s"]) == (0.5, 2.0)
    assert (found["tpot_p50_ms"], found["itl_p50_ms"], found["itl_p99_ms"]) == (750.0, 500.0, 1000.0)
    assert found["step_ms"] == 900.0
    assert [rank(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100] and rank([], 0.5) == 0
    assert kept([{"output_tok_s": 8.0}, {"output_tok_s": 3.0}], [{"output_tok_s": 10.0}] * 2) == (
        pytest.approx(0.55),
        pytest.approx(0.3),
        pytest.approx(0.8),
    )
    assert Reads(1, 2, 4).bytes == 7


def test_the_command_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, file = make_tiny(tmp_path / "tiny"), tmp_path / "bench.json"
    words = ["--requests", "5", "--adapters", "3", "--rank", "4", "--prompt", "4-9", "--output", "3", "--repeats", "2"]
    pool = ["--kv-cache-memory-bytes", str(16 << 20)]
    assert main(["bench", str(base), *words, *pool, "--sweep", "--rate", "50", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "3 of rank 4" in printed and "what is left of the base's throughput" in printed and "GB/s" in printed
    told = json.loads(file.read_text())
    assert [(side["name"], side["rank"], side["distinct"]) for side in told["sides"][:3]] == [
        ("base", 0, 0),
        ("one", 4, 1),
        ("all", 4, 3),
    ]
    assert len(told["sides"]) == 3 + 9
    for side in told["sides"]:
        assert len(side["repeats"]) == 2 and all(value > 0 for one in side["repeats"] for value in one.values())
    assert told["reads"]["adapters"] > 0 and told["bytes_per_s"] > 1e8


def test_options_out_of_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path), "--requests", "0"]) == 1
    assert "requests: at least 1, got 0 [option_range]" in capsys.readouterr().err
