"""The cost model: a fit from a file is taken whole or refused by name, and the bench's fit finds costs again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from lorad import Engine, _core, cli
from lorad.engine.costs import read_costs
from lorad.errors import InvalidRequest
from tiny import make_tiny

sys.path.append(str(Path(__file__).resolve().parents[1] / "benches" / "costs"))
from fit import fit, nnls, predicted_ns, relative  # they lie beside the bench, not in a package
from sample import Measured, Row, Sample

OTHER = {name: 7 * (number + 1) for number, name in enumerate(_core.default_costs())}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"stepns": 1}, "costs_unknown", "no part is called 'stepns'; there are step_ns, few_tokens, many_ns"),
        ({"step_ns": -5}, "costs_value", "step_ns: at least 0, got -5"),
        ({"token_ns": 10**12 + 1}, "costs_value", "token_ns: at most 1000000000000, got 1000000000001"),
        ({"head_ns": 1.5}, "costs_value", "head_ns: a whole number, got 1.5"),
        ({"head_ns": True}, "costs_value", "head_ns: a whole number, got True"),
        ({"head_ns": "9" * 99}, "costs_value", f"head_ns: a whole number, got '{'9' * 39}…"),
        ({"token_ns": None}, "costs_value", "token_ns: a whole number, got None"),
    ],
)
def test_a_wrong_part_is_named_with_its_limit_and_value(
    change: dict[str, object], code: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(OTHER | change))
    with pytest.raises(InvalidRequest) as refused:
        read_costs(str(file))
    assert (refused.value.code, refused.value.param) == (code, "costs")
    assert refused.value.message.startswith(f"costs: {said}")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", "costs_file", "isn't JSON"),
        ("[" * 60_000, "costs_file", "isn't JSON"),
        ("[1, 2]", "costs_file", "wants an object of parts and numbers, got [1, 2]"),
        ("{}", "costs_missing", "all parts are needed, step_ns, few_tokens, many_ns"),
        (" " * (1 << 17), "costs_file", "longer than 65536 bytes"),
    ],
)
def test_a_wrong_file_is_refused(text: str, code: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"^costs: ") as refused:
        read_costs(str(file))
    assert refused.value.code == code and said in refused.value.message


def test_a_server_says_in_a_line_what_is_wrong_with_the_file(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", str(base), "--port", "0", "--costs", str(tmp_path / "none.json")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("lorad: costs: ") and "can't be read: No such file" in said
    assert said.endswith("[costs_file]\n") and said.count("\n") == 1


def test_the_core_charges_by_the_file(base: Path, tmp_path: Path) -> None:
    file, trace = tmp_path / "costs.json", tmp_path / "engine.trace"
    file.write_text(json.dumps(OTHER))
    engine = Engine(str(base), costs=str(file), trace_file=str(trace), kv_cache_memory_bytes=4 << 20)
    engine.close()
    line = next(line for line in trace.read_text().splitlines() if " step_ns=" in line)
    told = dict(word.split("=") for word in line.split() if "=" in word)
    assert {name: int(told[name]) for name in OTHER} == OTHER


def test_a_plan_costs_what_its_parts_say() -> None:
    none = dict.fromkeys(_core.default_costs(), 0)
    rows = [(10, 1, True, 3, 5), (0, 4, False, 3, 5), (7, 1, True, -1, 0)]
    counted = {
        "step_ns": 1,
        "few_tokens": 0,
        "many_ns": 1,
        "head_ns": 1,
        "token_ns": 6,
        "sample_ns": 2,
        "context_ns": 11 + 10 + 8,
        "adapter_page_ns": 5,
        "adapter_token_page_ns": 25,
        "page_in_ns": 0,
        "page_in_page_ns": 0,
        "beside_page_ns": 9,
    }
    for name, times in counted.items():
        assert _core.plan_ns(none | {name: 1}, rows, 9) == times, name
    assert _core.plan_ns(none | {"many_ns": 1, "few_tokens": 6}, rows) == 0
    assert _core.page_in_ns(none | {"page_in_ns": 3, "page_in_page_ns": 2}, 10) == 23
    with pytest.raises(TypeError, match="there is no cost named steps"):
        _core.plan_ns({"steps": 1}, rows)


def test_nnls_finds_what_is_best_among_what_isnt_negative() -> None:
    dice = np.random.default_rng(3)
    for columns in range(1, 7):
        a = dice.random((40, columns))
        wanted = np.maximum(dice.standard_normal(columns), 0)
        assert np.allclose(nnls(a, a @ wanted), wanted)
        b = dice.standard_normal(40)
        x = nnls(a, b)
        gradient = a.T @ (b - a @ x)
        # no part can be made larger with a gain, and those in use neither smaller
        assert x.min() >= 0 and gradient.max() <= 1e-9 and np.abs(gradient[x > 0]).max(initial=0) <= 1e-9


def test_disturbed_plans_dont_move_a_fit() -> None:
    dice = np.random.default_rng(4)
    a, wanted = dice.random((200, 3)), np.array([5.0, 0.0, 2.0])
    times = a @ wanted + 0.1
    times[::10] *= 3
    found, _ = relative(a, times)
    assert np.allclose(found, wanted, atol=0.3)


def random_samples(costs: dict[str, int], seed: int, noise: float) -> list[Sample]:
    dice, samples = Random(seed), []
    for _ in range(150):
        sample = Sample("", "", page_in_pages=dice.choice([0, 0, dice.randint(1, 200)]))
        for _ in range(dice.choice([1, 2, 3, dice.randint(4, 32)])):
            slot = dice.randrange(-1, 3)
            pages, count = (0, 14, 27, 108)[slot + 1], dice.choice([1, 1, dice.randint(1, 64)])
            sample.rows.append(Row(dice.randint(0, 900), count, dice.random() < 0.7, slot, pages))
        sample.rows.sort(key=lambda row: row.slot)
        samples.append(sample)
    samples += [Sample("", "", page_in_pages=dice.randint(1, 200)) for _ in range(30)]
    for sample in samples:
        sample.ns = round(predicted_ns(costs, sample) * dice.uniform(1 - noise, 1 + noise))
    return samples


@pytest.mark.parametrize("few_tokens", [1, 3, 12])
def test_the_fit_finds_costs_again(few_tokens: int) -> None:
    wanted = _core.default_costs() | {"few_tokens": few_tokens, "adapter_page_ns": 0}
    exact = fit(random_samples(wanted, 1, 0.0))
    assert exact["few_tokens"] == few_tokens
    assert all(abs(exact[name] - ns) <= 0.01 * ns + 20 for name, ns in wanted.items()), exact
    # measured a bit off: other plans are still predicted well
    rough = fit(random_samples(wanted, 2, 0.08))
    others = random_samples(wanted, 3, 0.0)
    away = [abs(predicted_ns(rough, one) / one.ns - 1) for one in others]
    assert np.quantile(away, 0.9) < 0.05 and max(away) < 0.15


def test_measurements_are_scaled_by_the_reference() -> None:
    sample = Sample("", "", [Row(0, 1, True, -1, 0)])
    sample.measured = [Measured(300, 20, 40), Measured(101, 10, 10), Measured(9, 30, 40)]
    sample.settle(usual_ns=10)
    assert (sample.ns, sample.slowness) == (100, 3.0)
    assert Sample.from_json(json.loads(json.dumps(sample.as_json()))) == sample
