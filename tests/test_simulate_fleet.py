"""`lorad simulate fleet`: what it prints, writes and refuses, and the exercise's figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lorad import _core
from lorad.cli import main
from lorad.errors import InvalidRequest
from lorad.simulate.fleet import FIGURES, compare, simulate_fleet

CALM = "gap_us=1000000000"


def quiet(what: str, done: float, total: int) -> None:
    """Nobody looks on."""


def test_the_exercise_as_a_table_a_file_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "out.json", tmp_path / "out.svg"
    flags = ["--preset", "chapter", "--seeds", "30", "--markdown", "--json", str(file), "--plot", str(picture)]
    assert main(["simulate", "fleet", *flags]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| routing | cold loads | preloads | late |")
    assert [row.split("|")[1].strip() for row in rows] == ["round-robin", "assigned:5", "cost:1", "cost:12"]
    made = {one["routing"]: one["figures"] for one in json.loads(file.read_text())["summaries"]}
    # 1,000 requests going round touch 279 of the 400 pairs on average; tests/fleet.rs has the closed form
    assert 270 < made["round-robin"]["cold_loads"]["median"] < 290
    assert made["assigned:5"]["preloads"]["median"] == 5 * 8
    assert made["assigned:5"]["cold_loads"]["high"] <= 45
    assert made["cost:12"]["cold_loads"]["high"] < made["round-robin"]["cold_loads"]["low"] / 2
    for figures in made.values():
        assert set(figures) == set(FIGURES)
        assert all(one["low"] <= one["median"] <= one["high"] for one in figures.values())
    assert "<svg" in picture.read_text()


def test_a_sweep_has_a_row_for_each_value(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "out.png"
    flags = ["--sweep", "gap_us=60000,200000", "--routing", "round-robin,cost:2", "--plot", str(picture)]
    assert main(["simulate", "fleet", "--seeds", "3", "--markdown", *flags]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    found = [[cell.strip() for cell in row.split("|")[1:3]] for row in rows]
    values = ("60000", "200000")
    assert found == [[routing, value] for value in values for routing in ("round-robin", "cost:2")]
    assert picture.stat().st_size > 5000


def test_a_run_is_the_same_for_the_same_seed() -> None:
    one, other = (simulate_fleet("routing=cost:2 seed=5") for _ in range(2))
    assert one == other
    assert simulate_fleet("routing=cost:2 seed=6") != one
    assert sum(one.served) == 1000 and len(one.kib_max) == 8


def test_replicas_may_be_real_cores(capsys: pytest.CaptureFixture[str]) -> None:
    """A replica dies under load and comes back: what hadn't begun is sent elsewhere, and all is counted."""
    down = "1:1000000:4000000"
    flags = ["--set", "requests=800", "--set", f"down={down}", "--routing", "round-robin,cost", "--seeds", "3"]
    assert main(["simulate", "fleet", "--preset", "cores", *flags, "--markdown"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert "sent again" in head and len(rows) == 2
    one, other = (simulate_fleet(f"requests=800 down={down} routing=cost seed=5", cores=True) for _ in range(2))
    assert one == other and len(one.served) == 8
    assert sum(one.served) + one.lost == 800 and one.retried > 0
    calm = simulate_fleet("requests=800 routing=cost seed=5", cores=True)
    assert (calm.lost, calm.retried, sum(calm.served)) == (0, 0, 800)


def test_arrivals_of_cores_are_swept(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--preset", "cores", "--set", "requests=100", "--sweep", "arrivals=poisson:8000,poisson:16000"]
    assert main(["simulate", "fleet", *flags, "--routing", "cost", "--seeds", "1", "--markdown"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[2].strip() for row in rows] == ["poisson:8000", "poisson:16000"]


def test_real_replicas_can_be_asked_for_the_same() -> None:
    """What a bench asks of real replicas is what is simulated."""
    asked = _core.fleet_requests("seed=5")
    assert len(asked) == 1000 and asked == sorted(asked) and asked != _core.fleet_requests("seed=6")
    assert simulate_fleet("routing=round-robin seed=5").cold_loads == len(
        {(number % 8, adapter) for number, (_, adapter) in enumerate(asked)}
    ), "round robin loads each pair of replica and adapter once"


def test_loads_beside_prompts_and_where_adapters_live() -> None:
    """A load that nobody else waits for delays one request; adapters that are warm at home wait for none."""
    one = "gap_us=1000000000 requests=1"
    assert simulate_fleet(f"{one} beside=0").ttft_p50_us == simulate_fleet(f"{one} beside=1").ttft_p50_us == 450_000
    for seed in range(1, 6):
        held, beside = (simulate_fleet(f"routing=cost:1 seed={seed} beside={value}") for value in (0, 1))
        assert beside.ttft_p99_us <= held.ttft_p99_us
        cold, warm = (simulate_fleet(f"routing=cost:12 room=12 seed={seed} prewarm={value}") for value in (0, 1))
        assert cold.preloads == 0 < warm.preloads and warm.cold_loads < cold.cold_loads


def test_prompts_take_as_long_as_was_measured() -> None:
    same = [simulate_fleet(f"seed=3 {given}") for given in ("prefill_us=5000", "prefills_us=5000,5000")]
    assert same[0] == same[1]
    drawn = simulate_fleet("gap_us=1000000000 load_us=0 requests=500 prefills_us=1000,9000")
    assert (drawn.ttft_p50_us, drawn.ttft_p99_us) in ((1000, 9000), (9000, 9000))
    for wrong in ("", "1,", "0,5", "1;2"):
        with pytest.raises(InvalidRequest, match="prefills_us"):
            simulate_fleet(f"prefills_us={wrong}")


def test_nobody_is_late_who_waits_for_nobody() -> None:
    (made,) = compare(CALM, ["round-robin"], None, 3, quiet)
    assert made.figures["late"].high == 0
    assert made.figures["ttft_p50_s"].median == 0.4 and made.figures["ttft_p99_s"].high == 0.45


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--preset", "novel"], "option_form", "preset: one of chapter, cores, got 'novel'"),
        (["--set", "replicas=0"], "scenario_value", "replicas=0: 1 to 10000"),
        (["--preset", "cores", "--set", "down=8:1:2"], "scenario_value", "down=8:1:2: a replica from 0 to 7"),
        (["--preset", "cores", "--set", "kib=1"], "scenario_key", "unknown key kib"),
        (["--set", "speed=1"], "scenario_key", "unknown key speed"),
        (["--routing", "fastest"], "scenario_value", "routing=fastest: round-robin"),
        (["--seeds", "0"], "option_range", "seeds: 1 to 100000, got 0"),
        (["--compare", "fair"], "option_form", "compare: not of a fleet"),
        (["--sweep", "gap_us=fast"], "option_form", "sweep: a fleet's wants one KEY=N1,N2"),
        (["--sweep", "room=1", "--sweep", "gap_us=1"], "option_form", "got 'room=1 gap_us=1'"),
    ],
)
def test_refusals(flags: list[str], code: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "fleet", *flags]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert says in told and code in told


def test_flags_of_a_fleet_want_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "flood", "--routing", "cost"]) == 1
    assert "routing: of a fleet only" in " ".join(capsys.readouterr().err.split())
