"""Runs by hand, recorded runs again, and what differs between two of them."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lorad import _core, debug
from lorad.debug import view

LIMITS = {"pages": 24, "page_tokens": 4, "rows_max": 4, "tokens_max": 16, "slots_max": 3, "vocab": 1000}
# round figures, so that what a run comes to doesn't change with the next fit
COSTS = dict.fromkeys(_core.default_costs(), 0) | {
    "step_ns": 12_000_000,
    "token_ns": 1_500_000,
    "sample_ns": 500_000,
    "context_ns": 200,
    "adapter_page_ns": 4_000,
    "adapter_token_page_ns": 1_000,
    "page_in_ns": 100_000,
    "page_in_page_ns": 50_000,
}
EXAMPLES = Path(__file__).parent.parent / "examples" / "by_hand"


def run(seed: int, **limits: Any) -> debug.Stepper:
    """A random run to its end."""
    chance = random.Random(seed)
    step = debug.Stepper(**{**LIMITS, "costs": COSTS, **limits})
    adapters = [None, *(step.register(pages=chance.randint(1, 5)) for _ in range(5))]
    for _ in range(60):
        for _ in range(chance.randint(0, 2)):
            step.add(
                [chance.randrange(1000) for _ in range(chance.randint(1, 20))],
                chance.choice(adapters),
                max_tokens=chance.randint(1, 9),
                tenant=chance.randint(0, 2),
            )
        if chance.random() < 0.1 and step.lives.living:
            step.abort(chance.choice(list(step.lives.living)))
        step.step()
    step.run()
    return step


def test_steps_by_hand() -> None:
    step = debug.Stepper(**LIMITS)
    devil = step.register("devil", pages=3)
    first = step.add(6, devil, max_tokens=3)
    second = step.add([7, 8, 9], max_tokens=2, tenant=4)
    plan = step.begin()
    assert plan is not None
    assert (plan.number, plan.tokens) == (1, 3)
    assert plan.page_ins == [debug.PageIn(devil, 0, [1, 2, 3])]
    assert plan.rows == [debug.Row(second, None, 0, None, 0, 0, [7, 8, 9], True)]
    assert plan.opened == {0: second}
    queue = step.queues()[0]
    assert (queue.group, [one.id for one in queue.waiting]) == (debug.Group(devil), [first])
    owners = step.pages()
    assert isinstance(owners[0], debug.Request)
    assert isinstance(owners[1], debug.Adapter)
    assert (owners[0].id, owners[1].id, owners[4]) == (second, devil, None)
    assert step.core.in_flight == 1
    assert step.finish([55]) == [("token", second, 55)]
    assert step.run() > 0
    assert not step.core.has_work()
    lives = step.lives.all
    assert [life.reason for life in lives] == ["length", "length"]
    assert lives[1].tokens == [55, (second * 1000 + 4) % 1000]
    assert lives[0].tokens == [(first * 1000 + place) % 1000 for place in (6, 7, 8)]
    assert lives[1].ttft_steps == 1
    assert lives[1].ttft_us == step.worker.step_us + 3 * step.worker.token_us  # type: ignore[attr-defined]
    assert step.step() is None
    with pytest.raises(RuntimeError, match="no plan is in flight"):
        step.finish()
    with pytest.raises(_core.Refused, match="max_tokens"):
        step.add(3, max_tokens=0)


def test_a_worker_may_be_a_function_or_fail() -> None:
    step = debug.Stepper(lambda plan: [row.request for row in plan.samples], **LIMITS)
    step.add(3, max_tokens=2)
    step.run()
    assert step.lives.all[0].tokens == [1, 1]

    step = debug.Stepper(debug.FakeWorker(lambda request, position: -1 if request == 2 else 5, fails={1}), **LIMITS)
    adapter = step.register()
    step.add(3, adapter)
    step.add(3)
    step.add(3, max_tokens=1)
    step.run()
    assert [life.reason for life in step.lives.all] == ["failed_page_in", "failed_row", "length"]


def test_a_run_is_recorded_and_plays_again() -> None:
    step = run(1)
    recording = step.recording()
    assert "# adapter 1 is adapter 1" in recording.text
    assert recording.limits["pages"] == 24
    calls: dict[str, int] = {}
    for moment in recording:
        assert moment.diverged is None
        calls[moment.call] = calls.get(moment.call, 0) + 1
    assert calls["register"] == 5
    assert calls["step"] > calls["commit"] > 40
    assert recording.dump() == step.dump()
    assert recording.recent() == step.recent()
    assert " finished " in step.recent()
    assert recording.snapshot() == step.snapshot()
    assert recording.lives.all == step.lives.all
    assert recording.plan == step.plan
    assert step.core.check() is None
    assert step.core.recording == "open"
    # and again, plan by plan
    recording.rewind()
    assert recording.plan is None
    assert recording.plan_text() is None
    plans = 0
    while moment := recording.next_plan():
        plans += 1
        assert recording.plan is not None
        assert recording.plan.number == moment.value == plans
        assert len(recording.plan.samples) <= len(recording.plan.rows)
    assert plans == calls["commit"]


def test_files_and_redaction(tmp_path: Path) -> None:
    recording = run(2).recording()
    recording.save(tmp_path / "run.trace")
    loaded = debug.Recording.load(tmp_path / "run.trace")
    assert (loaded.text, loaded.name) == (recording.text, "run.trace")
    redacted = recording.redacted()
    assert redacted.text != recording.redacted().text, "a key of its own"
    assert recording.redacted(b"k" * 16).text == recording.redacted(b"k" * 16).text
    same = debug.compare(tmp_path / "run.trace", redacted)
    assert same.first is None
    assert not same.same, "the answers are others"
    ends = [(life.reason, len(life.tokens), life.ttft_us) for life in recording.run().lives.all]
    assert ends == [(life.reason, len(life.tokens), life.ttft_us) for life in redacted.run().lives.all]
    with pytest.raises(ValueError, match="16"):
        _core.redact_trace(recording.text, b"short")


def test_what_is_no_trace_names_its_line() -> None:
    text = run(3).recording().text
    head = "".join(text.splitlines(keepends=True)[:2])
    for wrong, line, code in [
        ("", 1, "not_a_trace"),
        ("lorad-trace 9\n", 1, "version"),
        (head + "step\n", 3, "missing_field"),
        (head + "# a remark\nabort now=x request=1\n", 4, "bad_value"),
        (head + "step now=1", 3, "cut"),
    ]:
        with pytest.raises(debug.Unreadable, match=f"line {line}: ") as caught:
            debug.Recording(wrong).run()
        assert (caught.value.code, caught.value.line) == (code, line)
    with pytest.raises(debug.Unreadable) as caught:
        debug.Snapshot.parse("now 3 plans x\n")
    assert (caught.value.code, caught.value.line) == ("not_a_dump", 1)


def test_another_core_is_told() -> None:
    text = run(4).recording().text
    other = debug.Recording(text.replace(" prefill_chunk_max=256 ", " prefill_chunk_max=2 "))
    assert any(moment.diverged for moment in other), "the recorded plans had longer chunks"


def test_compare_names_the_first_plan_and_each_request() -> None:
    one = run(5).recording()
    assert debug.compare(one, one).same
    other = debug.again(one, prefill_chunk_max=2)
    found = debug.compare(one, other)
    assert found.first is not None
    assert found.first.plan_a != found.first.plan_b
    assert one.text.splitlines()[(found.first.line_a or 0) - 1].startswith("step ")
    assert other.text.splitlines()[(found.first.line_b or 0) - 1].startswith("step ")
    later = [request for request in found.requests if (request.ttft_us or 0) > 0]
    assert later, "chunks of two tokens make somebody wait"
    assert all((request.ttft_steps or 0) >= 0 for request in later)
    assert len(found.requests) == len(one.run().lives.all)
    shown = view.text_of(found)
    assert f"plan {found.first.step} is the first that differs" in shown
    assert "requests that differ" in shown


def test_again_gives_the_same_answers_under_other_limits() -> None:
    one = run(6).recording()
    roomy = debug.again(one, pages=400, rows_max=16, tokens_max=64).run()
    one.run()
    assert len(roomy.lives.all) == len(one.lives.all)
    for before, after in zip(one.lives.all, roomy.lives.all, strict=True):
        assert (before.request, before.adapter, before.added) == (after.request, after.adapter, after.added)
        if before.reason == after.reason == "length":
            assert before.tokens == after.tokens
    assert sum(life.preemptions for life in roomy.lives.all) == 0
    # the worker takes the time that the recorded one took
    worker = debug.FakeWorker.like(one)
    assert (worker.step_us, worker.token_us) == (12_000, 1_500)
    assert worker.page_us >= 50
    # an adapter that doesn't fit any more is nobody's, and takes no other's place
    tight = debug.again(one, pages=5).run()
    large = {life.adapter for life in one.lives.all} - {life.adapter for life in tight.lives.all}
    assert large
    recorded = {life.request: life.adapter for life in one.lives.all}
    tags = dict.fromkeys(moment.arguments["tag"] for moment in debug.Recording(one.text) if moment.call == "register")
    kept = [moment for moment in debug.Recording(tight.text) if moment.outcome == "registered"]
    for life in tight.lives.all:
        if life.adapter is not None:
            tag = next(moment.arguments["tag"] for moment in kept if moment.value == life.adapter)
            assert list(tags).index(tag) + 1 == recorded[life.request]


def test_a_dump_is_data_and_pictures() -> None:
    step = debug.Stepper(**LIMITS)
    devil = step.register("devil", pages=3)
    for _ in range(9):
        step.add(9, devil, max_tokens=4)
    step.add(9, max_tokens=4, tenant=7)
    step.run(3)
    snapshot = step.snapshot()
    assert sum(snapshot.pages.values()) == snapshot.pages_total == 24
    assert snapshot.others == []
    assert snapshot.adapters[0].state == "hot"
    assert snapshot.adapters[0].running + snapshot.adapters[0].waiting > 0
    shown = view.text_of(step)
    assert "plan 3" in shown
    assert "queues" in shown
    assert "adapters" in shown
    assert "AAA" in shown, "the adapter's pages"
    assert "A adapter 1" in shown
    recording = step.recording()
    recording.run()
    assert view.text_of(recording) == shown
    assert "TTFT" in view.text_of(view.lives_table(recording.lives.all))
    assert "Recording by hand at line" in repr(recording)


def test_a_core_records_only_when_asked() -> None:
    core = _core.Core(**LIMITS)
    core.abort(1, 2)
    core.remark("nobody reads this")
    assert (core.recording, core.take_trace()) == ("off", "")
    core = _core.Core.recorded(bytes_max=10, **LIMITS)
    core.abort(1, 2)
    assert core.recording == "full"
    text = core.take_trace()
    assert text.endswith("\nend\n")
    assert core.take_trace() == ""
    replay = _core.Replay(text)
    assert replay.step() is None
    assert replay.cut
    assert replay.check() is None
    with pytest.raises(ValueError, match="elements needed"):
        import numpy as np

        replay.read_plan(np.zeros(3, dtype=np.int32))


def test_an_engine_records_what_it_did(tmp_path: Path) -> None:
    from lorad import Engine
    from lorad.errors import InvalidRequest
    from lorad.models.open import open_model
    from make_adapter import make_adapter
    from tiny import make_tiny

    base, options = str(make_tiny(tmp_path / "base")), {"dtype": "float32", "kv_cache_memory_bytes": 1 << 20}
    trace = tmp_path / "engine.trace"
    engine = Engine(base, trace_file=str(trace), **options)
    engine.load_adapter("devil", str(make_adapter(tmp_path / "devil", open_model(base).config, rank=4, seed=1)))
    requests = [engine.add([5, 6, 7 + turn], model, max_tokens=4) for turn in range(3) for model in ("", "devil")]
    engine.abort(requests[3].id)
    while engine.step():
        # what was done is in the file, not in a buffer
        assert debug.Recording.load(trace).run().dump() == engine.dump()
    recording = debug.Recording.load(trace)
    assert not any(moment.diverged for moment in recording)
    assert "# adapter 1 is devil, " in recording.text
    assert trace.stat().st_mode & 0o777 == 0o600
    lives = {life.request: life for life in recording.lives.all}
    for request in requests:
        assert lives[request.id].tokens == request.tokens
        assert lives[request.id].reason == {"abort": "aborted"}.get(str(request.finish), request.finish)
    engine.close()
    assert recording.text == trace.read_text()

    engine = Engine(base, trace_file=str(trace), trace_bytes_max=1500, **options)
    for _ in range(50):
        engine.add([1, 2], max_tokens=1)
    while engine.step():
        pass
    engine.close()
    assert recording.text == trace.read_text(), "a restart keeps it"
    second = debug.Recording.load(tmp_path / "engine.trace.1").run()
    assert second.replay.cut
    assert len(second.text) <= 1500
    with pytest.raises(InvalidRequest, match=r"trace_file: .*No such file"):
        Engine(base, trace_file=str(tmp_path / "none" / "engine.trace"), **options)
    (tmp_path / "dead").symlink_to(tmp_path / "none")
    for odd in (tmp_path, Path("/dev/null"), tmp_path / "dead"):
        with pytest.raises(InvalidRequest, match=f"^trace_file: {odd}: it isn't a regular file$"):
            Engine(base, trace_file=str(odd), **options)
        assert not Path(f"{odd}.1").exists()


def test_nothing_in_here_needs_torch() -> None:
    check = "import sys; import lorad.debug; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "scheduler.py"))
    shown = capsys.readouterr().out
    assert "plan 1:" in shown
    assert "is the first that differs" in shown
