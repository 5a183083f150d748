"""The simulator from Python and from the command line: figures, overrides, errors, broken promises, files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lorad import _core, cli, simulate
from lorad.errors import InvalidRequest, NotFound
from lorad.simulate import policy, stored
from lorad.simulate.command import BROKEN
from lorad.simulate.metric import METRICS

SMALL = "requests=40 adapters=6 ranks=8,16 model=smollm2-135m-2core tenants=2 arrivals=poisson:100000\n\
prompt=fixed:40 answer=uniform:4:12 pages=300 rows_max=8 tokens_max=64 slots_max=8 adapters_step_max=8"
# its steps and page-ins can be added up by hand: 1 ms a step, 10 µs a token, 5 µs a sample
BY_HAND = "step_ns=1000000 token_ns=10000 sample_ns=5000 context_ns=0 adapter_page_ns=0 adapter_token_page_ns=0 \
page_in_ns=0 page_in_page_ns=100000 many_ns=0 head_ns=0 beside_page_ns=0 requests=1 adapters=1 adapter_pages=4 \
prompt=fixed:20 answer=fixed:3"
ONE_SLOT = "step_ns=1000000 token_ns=0 sample_ns=0 context_ns=0 adapter_page_ns=0 adapter_token_page_ns=0 page_in_ns=0 \
page_in_page_ns=1000 many_ns=0 head_ns=0 beside_page_ns=0 pages=60 rows_max=4 tokens_max=64 slots_max=1 \
adapters_step_max=1 page_ins_max=1 sequence_tokens_max=512 urgent_after_us=1000 preempt_after_tokens=1 \
preempt_after_us=0 waits=1 check_every=1"


def small(name: str = "small", **values: str) -> simulate.Scenario:
    return simulate.Scenario(name, SMALL).changed(values)


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = cli.main(["simulate", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.txt"
    path.write_text(SMALL)
    return path


def test_figures_are_those_of_adding_up() -> None:
    (run,) = simulate.run(simulate.cases([simulate.Scenario("by hand", BY_HAND)]))
    numbers, everybody = run.report.numbers, run.report.all
    # 4 pages of 100 µs, the prompt's step, two more; the plan that only has the page-in costs nothing
    first = 400 + 1000 + 20 * 10 + 5
    assert (everybody.ttft_us.max, everybody.total_us.max) == (first, first + 2 * 1015)
    assert (numbers.page_ins, numbers.page_in_pages, numbers.page_ins_us) == (1, 4, 400)
    assert (everybody.requests, everybody.finished, everybody.tokens, numbers.tokens_out) == (1, 1, 3, 3)
    assert run.report.adapters[0].name == "adapter 0"
    assert numbers.longest_wait_milli >= 0


def test_the_same_seed_is_the_same_run_and_another_is_not() -> None:
    made = simulate.cases([small()], seeds=2)
    once, again = simulate.run(made, jobs=1), simulate.run(made, jobs=3)
    assert [run.report for run in once] == [run.report for run in again]
    assert [run.case.seed for run in once] == [1, 2]
    assert once[0].report.numbers.fingerprint != once[1].report.numbers.fingerprint
    assert once[0].report.numbers.page_in_bytes > 0
    assert [tenant.name for tenant in once[0].report.tenants] == ["tenant 0", "tenant 1"]


def test_scenarios_that_ship_with_lorad_can_be_run() -> None:
    assert {"flood", "policies", "zipf"} <= set(_core.SCENARIOS)
    for name in _core.SCENARIOS:
        facts = simulate.Scenario.named(name).facts
        assert facts.gap_us and facts.page_bytes and facts.adapter_pages
    # what a scenario says reads back as the same scenario
    facts = simulate.Scenario.named("large").facts
    text = "\n".join(f"{key}={value}" for key, value in facts.values.items())
    assert simulate.Scenario("again", text).facts == facts


def test_policies_are_values_of_the_scenario() -> None:
    facts = small().facts
    assert max(facts.adapter_pages) == 27
    assert policy.values("fair:250ms", facts)["urgent_after_us"] == "250000"
    assert policy.values("split", facts)["split"] == "fixed:150"
    assert policy.values("split:200", facts)["split"] == "fixed:200"
    assert policy.values("slots", facts)["split"] == "slots:5:27"
    assert policy.parse("all") == list(simulate.POLICIES)
    crowded = small(pages="60", arrivals="poisson:2000")
    made = simulate.cases([crowded], policies=policy.parse("all"))
    runs = simulate.run(made)
    assert len({run.report.numbers.fingerprint for run in runs}) >= 4
    # waits have a bound in fair order only
    assert [("waits=1" in case.text) for case in made] == [True, False, False, True, True, False]
    for name, code in [
        ("fastest", "policy_unknown"),
        ("fair:10", "option_form"),
        ("arrival:3", "option_form"),
        ("fair,fair", "option_form"),
    ]:
        with pytest.raises(InvalidRequest, match=name.partition(",")[0]) as refused:
            policy.parse(name)
        assert refused.value.code == code


def test_sweeps_multiply_and_rates_follow_the_scenario() -> None:
    made = simulate.cases([small()], sweep={"arrivals": [], "rows_max": ["4", "8"]}, seeds=2)
    assert len(made) == 8 * 2 * 2
    offered = sorted({case.offered_per_s for case in made if case.offered_per_s})
    assert (offered[0], offered[-1]) == (2.5, 12.5)
    bursts = small(arrivals="bursts:1000:10000:90000")
    assert [case.sweep["arrivals"] for case in simulate.cases([bursts], sweep={"arrivals": []})][:2] == [
        "bursts:4000:10000:90000",
        "bursts:2000:10000:90000",
    ]
    for scenario, sweep in [(small(), {"pages": []}), (small(arrivals="at_once"), {"arrivals": []})]:
        with pytest.raises(InvalidRequest, match="sweep"):
            simulate.cases([scenario], sweep=sweep)


@pytest.mark.parametrize(
    ("values", "code", "field", "said"),
    [
        ({"pags": "3"}, "scenario_key", "pags", "unknown key pags"),
        ({"pages": "-1"}, "scenario_value", "pages", "pages=-1: a whole number from 0 to 4294967295"),
        ({"order": "best"}, "scenario_value", "order", "order=best: fair or arrival or affinity"),
        ({"model": "gpt"}, "scenario_value", "model", "model=gpt: none, smollm2-135m-2core"),
        ({"rows_max": "0"}, "config_too_small", "rows_max", "rows_max = 0: at least 1"),
        ({"slots_max": "99999"}, "config_too_large", "slots_max", "slots_max = 99999: at most 65536"),
        ({"requests": "99999999999"}, "scenario_too_large", "requests", "at most 10000000"),
        ({"drift_us": "1", "requests": "9999999"}, "scenario_too_large", "time of all requests ÷ drift_us", "at most"),
        ({"ranks": "0"}, "adapter_layout", None, "rank"),
        ({"pages": "3 rows_max=4"}, "option_form", "pages", "without blanks"),
        ({"pages": "3#"}, "option_form", "pages", "without blanks"),
    ],
)
def test_what_cannot_be_run_names_field_limit_and_value(
    values: dict[str, str], code: str, field: str | None, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        simulate.cases([small(**values)])
    assert said in refused.value.message
    assert (refused.value.code, refused.value.param) == (code, field)


def test_errors_of_the_binding_have_fields() -> None:
    with pytest.raises(_core.ScenarioError) as refused:
        _core.simulate("\n\npages=x")
    assert (refused.value.line, refused.value.field, refused.value.value) == (3, "pages", "x")
    with pytest.raises(_core.ScenarioError) as refused:
        _core.simulate("rows_max=0")
    assert (refused.value.field, refused.value.limit, refused.value.value) == ("rows_max", 1, 0)
    with pytest.raises(_core.ScenarioError, match="unknown input fly") as refused:
        _core.simulate("", trace="0 fly 1")
    assert (refused.value.code, refused.value.line) == ("scenario_text", 1)
    with pytest.raises(ValueError, match="no counter named x"):
        _core.simulate("", watch=("x", 1))


def test_a_broken_promise_comes_with_the_shortest_way_to_it(capfd: pytest.CaptureFixture[str]) -> None:
    """A watch stands for an invariant: it takes the same way."""
    with pytest.raises(simulate.Broken, match="evictions reached 1") as broken:
        simulate.run(simulate.cases([small(pages="60")]), watch=("evictions", 1))
    why = broken.value.why
    assert (why.kind, why.step > 0, why.runs > 5) == ("watch", True, True)
    assert len(why.trace.splitlines()) <= 8, why.trace
    assert "evicted" in _core.run_script(why.script)
    # the trace alone, on the same scenario, breaks the same
    with pytest.raises(simulate.Broken):
        simulate.run(simulate.cases([small(pages="60")]), trace=why.trace, watch=("evictions", 1))
    assert simulate.run(simulate.cases([small(pages="60")]), trace=why.trace)[0].report.numbers.evictions == 1
    assert capfd.readouterr() == ("", "")


def test_a_wait_bound_that_breaks_is_found() -> None:
    """One slot, a long answer in it, somebody who wants another adapter: fair order makes way, affinity doesn't."""
    trace = (
        "0 register 0 pages=4\n0 register 1 pages=4\n"
        "0 add 1 adapter=0 prompt=8 max=300\n900 add 2 adapter=1 prompt=8 max=1\n"
    )
    fair = simulate.Scenario("one slot", ONE_SLOT)
    (run,) = simulate.run(simulate.cases([fair]), trace=trace)
    assert 0 < run.report.numbers.longest_wait_milli <= 1000
    with pytest.raises(simulate.Broken, match=r"waits \d+ µs, bound \d+") as broken:
        simulate.run(simulate.cases([fair.changed({"order": "affinity"})]), trace=trace)
    why = broken.value.why
    assert (why.kind, len(why.trace.splitlines())) == ("check", 4)


def test_random_worlds_hold(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "--random", "3", "--steps", "300")
    assert code == 0
    assert "3 worlds hold" in out
    assert "of its bound" in out
    code, out, _ = command(capsys, "--random", "2", "--steps", "300", "--watch", "preemptions=1")
    assert code == BROKEN
    assert "preemptions reached 1" in out
    with pytest.raises(InvalidRequest, match="steps: 1 to"):
        simulate.random_cases(1, 0)


def test_the_command_shows_a_table(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    code, out, _ = command(capsys, file, "--set", "rows_max=4")
    assert code == 0
    assert "tok/s" in out and "by tenant" in out and "tenant 1" in out
    code, out, _ = command(capsys, file, "--compare", "fair,slots:3", "--seeds", "2", "--markdown")
    head, _, fair, slots = out.splitlines()
    assert head.startswith("| policy | tok/s | TTFT p50, s |")
    assert fair.startswith("| fair | ") and slots.startswith("| slots:3 | ") and "–" in fair
    code, out, _ = command(capsys, "--list")
    assert code == 0 and "flood" in out and "arrival" in out


def test_the_command_writes_json(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = [file, "--compare", "fair,arrival", "--sweep", "rows_max=2,8", "--seeds", "2", "--json", path]
    assert command(capsys, *arguments)[0] == 0
    written = json.loads(path.read_text())
    assert set(written) == {"form", "lorad", "texts", "summaries", "runs"}
    assert (written["form"], len(written["runs"]), len(written["summaries"])) == (1, 8, 4)
    run = written["runs"][0]
    assert (run["scenario"], run["policy"], run["sweep"], run["seed"]) == ("small", "fair", {"rows_max": "2"}, 1)
    assert run["offered_per_s"] == 10
    assert run["numbers"]["tokens_out"] == run["all"]["tokens"] > 0
    assert set(run["all"]["ttft_us"]) == {"count", "p50", "p90", "p99", "max", "mean"}
    summary = written["summaries"][0]
    assert set(summary["figures"]) == {metric.key for metric in METRICS}
    figure = summary["figures"]["tokens_per_s"]
    assert figure["least"] <= figure["median"] <= figure["most"]
    # the texts run again to the same
    assert simulate.Scenario("again", written["texts"][0]).facts.values["rows_max"] == "2"
    (again,) = simulate.run(simulate.cases([simulate.Scenario("again", written["texts"][0])]))
    assert again.report.numbers.fingerprint == run["numbers"]["fingerprint"]
    assert stored.read(path).summaries[0].policy == "fair"
    path.write_text("{}")
    with pytest.raises(InvalidRequest, match="form"):
        stored.read(path)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nothing"], "scenario_unknown"),
        ([], "option_form"),
        (["zipf", "--set", "pages"], "option_form"),
        (["zipf", "--set", "pages=0"], "config_too_small"),
        (["zipf", "--seeds", "0"], "option_range"),
        (["zipf", "--seeds", "999999"], "option_range"),
        (["zipf", "--jobs", "0"], "option_range"),
        (["zipf", "--watch", "evictions=x"], "option_form"),
        (["zipf", "--watch", "virtue=1"], "option_form"),
        (["zipf", "--random", "1"], "option_form"),
        (["--random", "1", "--first", "-1"], "option_range"),
        (["--random", "1", "--first", str(1 << 64)], "option_range"),
        (["zipf", "--trace", "/no/such/file"], "trace_read"),
        (["zipf", "--plot", "out.gif"], "plot_form"),
        (["zipf", "--set", "requests=3", "--json", "/no/such/folder/out.json"], "file_write"),
    ],
)
def test_a_refusal_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], code: str) -> None:
    found, out, err = command(capsys, *arguments)
    assert (found, err.count("\n"), err.endswith(f"[{code}]\n")) == (1, 1, True), (out, err)


def test_a_broken_promise_ends_the_command_with_its_code(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.txt"
    code, out, _ = command(capsys, file, "--set", "pages=60", "--watch", "evictions=1", "--script", script)
    assert code == BROKEN
    assert "--- trace" in out and "--- script" in out and "evictions reached 1" in out
    assert "evicted" in _core.run_script(script.read_text())


def test_names_of_scenarios() -> None:
    with pytest.raises(NotFound, match="neither a file nor one of calm, flood"):
        simulate.Scenario.named("none")


@pytest.mark.parametrize("swept", [True, False])
def test_pictures(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path, swept: bool) -> None:
    path = tmp_path / "out.svg"
    sweep = ["--sweep", "arrivals=poisson:100000,poisson:50000"] if swept else []
    arguments = [file, "--compare", "fair,arrival", *sweep, "--seeds", "2", "--plot", path]
    assert command(capsys, *arguments)[0] == 0
    first = path.read_bytes()
    assert first.startswith(b"<?xml") and b"fill: #ffffff" in first
    assert command(capsys, *arguments)[0] == 0
    assert path.read_bytes() == first, "the same figures, the same file"


def test_without_matplotlib_nothing_is_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr("lorad.picture.find_spec", lambda name: None)
    code, _, err = command(capsys, file, "--plot", "out.svg")
    assert code == 1
    assert err == "lorad: plot: matplotlib isn't installed; pip install 'lorad[plot]' brings it [plot_missing]\n"


def test_progress_is_told_and_may_end_it() -> None:
    told: list[tuple[str, int, int]] = []
    long = simulate.Scenario.named("zipf").changed({"check_every": "1"}).text
    _core.simulate(long, on_progress=lambda *what: told.append(what))
    assert told and all(stage == "simulating" and done <= total == 600 for stage, done, total in told)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)

    class Enough(Exception):
        pass

    def enough(*_: Any) -> None:
        raise Enough

    with pytest.raises(Enough):
        _core.simulate(long, on_progress=enough)


@pytest.mark.parametrize("jobs", [0, 2])
def test_an_interrupt_is_heard(jobs: int) -> None:
    """jobs 0: the bare call on the main thread."""
    # hours, were it not stopped
    endless = simulate.Scenario.named("zipf").changed({"check_every": "1", "requests": "200000"})
    begun, heard = threading.Event(), threading.Event()

    def interrupt() -> None:
        begun.wait()
        while True:
            # a real signal: one that is only noted doesn't wake a thread that waits
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if heard.wait(10):  # what it raises is lost where Python happens to be in a finaliser
                return

    # a job in the background begins with the signal ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            if jobs:
                made = simulate.cases([endless], seeds=3)
                simulate.run(made, jobs=jobs, on_progress=lambda *_: begun.set())
            else:
                _core.simulate(endless.text, on_progress=lambda *_: begun.set())
    finally:
        heard.set()
        signal.signal(signal.SIGINT, before)


def test_nothing_in_here_needs_torch_or_matplotlib() -> None:
    check = "import sys; import lorad.simulate.command; sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
