"""The core through its binding: scripts, refusals, and a state machine against a naive model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lorad import _core

DATA = Path(__file__).parent / "data"
SCRIPTS = sorted(DATA.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_script(path: Path) -> None:
    before = path.read_text()
    after = _core.run_script(before)
    if os.environ.get("LORAD_REWRITE"):
        path.write_text(after)
    else:
        assert after == before


class Host:
    """Steps a core and reads its plans."""

    def __init__(self, *, prefix_cache: int = 0, **limits: int) -> None:
        self.core = _core.Core(prefix_cache=prefix_cache, **limits)
        self.plan = np.zeros(self.core.plan_length(), dtype=np.int32)
        self.parts = {
            name: self.plan[offset : offset + length] for name, (offset, length) in self.core.plan_layout().items()
        }
        self.now = 0

    def step(self) -> int | None:
        self.now += 1000
        return self.core.step(self.now, self.plan)

    def page_ins(self) -> list[tuple[int, int, list[int]]]:
        begin = self.parts["pagein_begin"]
        return [
            (
                int(self.parts["pagein_adapter"][i]),
                int(self.parts["pagein_slot"][i]),
                self.parts["pagein_page"][begin[i] : begin[i + 1]].tolist(),
            )
            for i in range(self.parts["header"][6])
        ]


def refusal(call: Any, *args: Any) -> tuple[str, int | None, int | None]:
    with pytest.raises(_core.Refused) as caught:
        call(*args)
    return caught.value.code, caught.value.limit, caught.value.value


def test_layout_covers_the_plan_without_overlap() -> None:
    core = _core.Core(pages=20, rows_max=3, tokens_max=7, page_ins_max=2)
    end = 0
    for name, (offset, length) in core.plan_layout().items():
        assert offset >= end, name
        assert offset % 16 == 0
        end = offset + length
    assert end <= core.plan_length()
    assert core.plan_layout()["token_id"][1] == 7
    assert core.plan_layout()["row_offset"][1] == 4


def test_a_request_from_add_to_finished() -> None:
    host = Host(pages=16, page_tokens=4, rows_max=2, tokens_max=8)
    adapter = host.core.register(tag=0xFFFFFFFF, pages=3, layers=2)
    host.core.add(0, 2**64 - 1, adapter, np.array([5, 6, 7], dtype=np.uint32), 2, [9], tenant=3)
    assert host.step() == 1
    assert host.core.in_flight == 1
    assert host.page_ins() == [(adapter, 0, [0, 1, 2])]
    host.core.commit(host.now, 1, [])
    host.core.page_in_done(host.now, adapter)
    assert host.step() == 2
    header, parts = host.parts["header"], host.parts
    assert header[:4].tolist() == [2, 1, 3, 1]
    assert parts["token_id"][:3].tolist() == [5, 6, 7]
    assert parts["token_pos"][:3].tolist() == [0, 1, 2]
    assert parts["row_tag"][0] == -1, "the bits of the tag, as int32"
    low, high = parts["open_request_lo"][0], parts["open_request_hi"][0]
    assert (int(np.uint32(high)) << 32) | int(np.uint32(low)) == 2**64 - 1
    assert "slot 0 tag 4294967295 tokens 0..3 sample" in host.core.plan_text(host.plan)
    host.core.commit(host.now, 2, np.array([9], dtype=np.int32))
    assert host.core.drain_events() == [
        ("adapter_loading", adapter, 0),
        ("adapter_hot", adapter, 0),
        ("admitted", 2**64 - 1, 0),
        ("token", 2**64 - 1, 9),
        ("finished", 2**64 - 1, "stop"),
    ]
    assert host.core.drain_events() == []
    assert not host.core.has_work()
    stats = host.core.stats()
    assert stats["pages_free"] == 13
    assert stats["adapters"] == {adapter: ("hot", 0, 0, 3)}
    host.core.unregister(host.now, adapter)
    assert host.core.drain_events() == [("adapter_gone", adapter, 0)]
    assert host.core.stats()["pages_free"] == 16
    assert host.core.check() is None


def test_refusals_carry_their_numbers_and_change_nothing() -> None:
    host = Host(pages=8, page_tokens=4, rows_max=2, tokens_max=8, sequence_tokens_max=40, waiting_max=1, vocab=50)
    core = host.core
    adapter = core.register(7, 4, 2)
    before = core.dump()
    assert refusal(core.register, 7, 8, 2) == ("adapter_too_large", 8, 9)
    assert refusal(core.register, 0, 1, 2) == ("zero_tag", None, 0)
    assert refusal(core.add, 0, 1, None, [1] * 30, 11) == ("sequence_too_long", 40, 41)
    assert refusal(core.add, 0, 1, adapter, [1] * 16, 1) == ("never_fits", 8, 9)
    assert refusal(core.add, 0, 1, 77, [1], 1) == ("unknown_adapter", None, 77)
    assert refusal(core.add, 0, 1, None, [], 1) == ("empty_prompt", None, 0)
    assert refusal(core.add, 0, 1, None, [50], 1) == ("token_out_of_range", 50, 50)
    assert refusal(core.page_in_done, 0, adapter) == ("not_loading", None, adapter)
    assert refusal(core.commit, 0, 1, []) == ("nothing_in_flight", None, 1)
    assert refusal(core.step, 0, np.zeros(3, dtype=np.int32)) == ("buffer_length", core.plan_length(), 3)
    assert core.dump() == before
    core.add(0, 1, None, [1, 2], 4)
    assert refusal(core.add, 0, 2, None, [1], 1) == ("queue_full", 1, 1)
    assert host.step() == 1
    assert refusal(core.step, 0, host.plan) == ("plan_in_flight", None, 1)
    assert refusal(core.commit, 0, 2, [1]) == ("wrong_plan", 1, 2)
    assert refusal(core.commit, 0, 1, []) == ("wrong_count", 1, 0)
    assert refusal(core.commit, 0, 1, [50]) == ("token_out_of_range", 50, 50)
    core.commit_failed(0, 1)
    assert core.drain_events()[-1] == ("finished", 1, "failed_plan")
    assert core.stats()["refused"] == 8, "those of register and add"
    assert issubclass(_core.Refused, ValueError)


def test_limits_are_named() -> None:
    assert refusal(lambda: _core.Core(pages=0)) == ("config_too_small", 1, 0)
    with pytest.raises(_core.Refused, match="tokens_max = 3: at least 4") as refused:
        _core.Core(rows_max=4, tokens_max=3)
    assert refused.value.field == "tokens_max"
    with pytest.raises(TypeError, match="no limit named page"):
        _core.Core(page=4)
    assert _core.Core(pages=9).config["pages"] == 9


def test_wrong_arguments_are_type_errors() -> None:
    host = Host(pages=8)
    with pytest.raises(TypeError, match="plan"):
        host.core.step(0, np.zeros(4, dtype=np.int64))
    read_only = host.plan.copy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        host.core.step(0, read_only)
    with pytest.raises(TypeError, match="prompt"):
        host.core.add(0, 1, None, [-1], 1)
    with pytest.raises(TypeError, match="prompt"):
        host.core.add(0, 1, None, "text", 1)
    assert host.core.dump() == _core.Core(pages=8).dump()


def letter(request: int, position: int) -> int:
    """Few different texts, so that beginnings are shared."""
    return ((request % 3 + 1) * 2654435761 >> (position % 24)) & 1


class Model(RuleBasedStateMachine):
    """Requests and adapters as the events tell of them; pages as the plans fill them."""

    @initialize(
        pages=st.integers(6, 14),
        page_tokens=st.integers(1, 4),
        rows_max=st.integers(1, 5),
        chunk=st.integers(1, 6),
        slots=st.integers(1, 3),
        distinct=st.integers(1, 3),
        page_ins=st.integers(1, 2),
        patience=st.integers(0, 6),
        preempt=st.integers(1, 3),
        prefix_cache=st.integers(0, 1),
    )
    def start(self, **limits: int) -> None:
        self.limits = limits
        self.host = Host(
            pages=limits["pages"],
            page_tokens=limits["page_tokens"],
            rows_max=limits["rows_max"],
            tokens_max=8,
            prefill_chunk_max=limits["chunk"],
            slots_max=limits["slots"],
            adapters_step_max=limits["distinct"],
            page_ins_max=limits["page_ins"],
            adapters_max=4,
            waiting_max=6,
            sequence_tokens_max=20,
            vocab=8,
            urgent_after_us=1000 * limits["patience"],
            preempt_after_tokens=limits["preempt"],
            prefix_cache=limits["prefix_cache"],
        )
        self.core = self.host.core
        self.adapters: dict[int, int] = {}
        self.draining: dict[int, int] = {}
        self.loading: list[tuple[int, int, list[int]]] = []
        self.dropped: set[int] = set()
        self.book: dict[int, dict[str, Any]] = {}
        self.ended: set[int] = set()
        self.samples: list[tuple[int, int]] = []
        self.in_flight: int | None = None
        self.next_id = 1
        self.kv: dict[tuple[int, int], Any] = {}
        self.table: dict[tuple[int, int], int] = {}
        self.lines: dict[int, int] = {}
        self.slots: dict[int, tuple[int, list[int]]] = {}
        for pages in (1, 2):
            self.register(pages)

    @rule(pages=st.integers(1, 3))
    def register(self, pages: int) -> None:
        tag = 1000 + self.next_id
        if len(self.adapters) + len(self.draining) >= 4:
            assert refusal(self.core.register, tag, pages, 1)[0] == "adapters_full"
            return
        adapter = self.core.register(tag, pages, 1)
        assert adapter not in self.adapters
        assert adapter not in self.draining
        self.adapters[adapter] = tag

    @precondition(lambda self: self.adapters)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        adapter = data.draw(st.sampled_from(sorted(self.adapters)))
        self.draining[adapter] = self.adapters.pop(adapter)
        self.core.unregister(self.host.now, adapter)
        self.take_events()

    @rule(data=st.data(), prompt=st.integers(1, 9), most=st.integers(1, 8), stops=st.booleans())
    def add(self, data: st.DataObject, prompt: int, most: int, stops: bool) -> None:
        adapter = data.draw(st.sampled_from([None, *sorted(self.adapters), *sorted(self.draining)]))
        request = self.next_id
        tokens = [letter(request, position) for position in range(prompt)]
        waiting = sum(entry["line"] is None for entry in self.book.values())
        try:
            self.core.add(self.host.now, request, adapter, tokens, most, [2] if stops else [])
        except _core.Refused as refused:
            match refused.code:
                case "queue_full":
                    assert waiting >= 6
                case "adapter_draining":
                    assert adapter in self.draining
                case "never_fits":
                    assert refused.value > refused.limit == self.limits["pages"]
                case code:
                    raise AssertionError(code) from refused
            return
        assert waiting < 6
        self.next_id += 1
        self.book[request] = {"adapter": adapter, "tokens": tokens, "end": prompt + most, "line": None, "stops": stops}

    @precondition(lambda self: self.book)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.book)))
        self.core.abort(self.host.now, request)
        self.core.abort(self.host.now, request)
        self.take_events()
        assert request not in self.book

    @rule(stop=st.integers(0, 9))
    def plan(self, stop: int) -> None:
        self.step(stop)

    def step(self, stop: int) -> bool:
        """Makes a plan and does what it says; False: none was made."""
        if self.in_flight is not None:
            assert refusal(self.core.step, self.host.now, self.host.plan)[0] == "plan_in_flight"
            return False
        number = self.host.step()
        self.take_events()
        if number is None:
            return False
        self.in_flight = number
        parts, header = self.host.parts, self.host.parts["header"].tolist()
        _, rows, tokens, groups, edits, opened, _, _, clears, samples = header[:10]
        for slot in parts["clear_slot"][:clears].tolist():
            self.slots.pop(slot, None)
        for adapter, slot, pages in self.host.page_ins():
            assert slot not in self.slots
            self.loading.append((adapter, slot, pages))
            self.copy(adapter, pages)
        for line, low in zip(parts["open_line"][:opened], parts["open_request_lo"], strict=False):
            self.lines[int(line)] = int(low)
        for line, col, page in zip(
            *(parts[name][:edits].tolist() for name in ("edit_line", "edit_col", "edit_page")), strict=True
        ):
            self.table[line, col] = page
        copies = header[10]
        for source, target in zip(
            parts["copy_source"][:copies].tolist(), parts["copy_target"][:copies].tolist(), strict=True
        ):
            for offset in range(self.limits["page_tokens"]):
                self.kv[target, offset] = self.kv.get((source, offset))
        self.samples = []
        at, distinct, size = 0, [], self.limits["page_tokens"]
        for row in range(rows):
            line, slot, tag, start = (int(parts[f"row_{name}"][row]) for name in ("line", "slot", "tag", "start"))
            count = int(parts["row_offset"][row + 1] - parts["row_offset"][row])
            request = self.lines[line]
            entry = self.book[request]
            known = entry["tokens"]
            assert entry["line"] == line
            assert 1 <= count <= self.limits["chunk"]
            if entry["adapter"] is None:
                assert (slot, tag) == (-1, 0)
            else:
                held, pages = self.slots[slot]
                assert held == entry["adapter"]
                assert tag == {**self.adapters, **self.draining}[held]
                assert all(self.kv.get((page, 0)) == ("weights", held, i) for i, page in enumerate(pages))
                if distinct[-1:] != [held]:
                    assert held not in distinct
                    distinct.append(held)
            for position in range(start):
                where = self.table[line, position // size], position % size
                assert self.kv[where] == (entry["adapter"], known[: position + 1])
            for position in range(start, start + count):
                assert parts["token_id"][at] == known[position]
                assert parts["token_pos"][at] == position
                where = self.table[line, position // size], position % size
                self.kv[where] = (entry["adapter"], known[: position + 1])
                at += 1
            assert bool(parts["row_sample"][row]) == (start + count == len(known))
            if parts["row_sample"][row]:
                token = 2 if stop == 0 and entry["stops"] else letter(request, len(known))
                self.samples.append((request, token))
        assert (at, len(distinct), len(self.samples)) == (tokens, groups, samples)
        assert rows <= self.limits["rows_max"]
        assert len(distinct) <= self.limits["distinct"]
        assert len(self.loading) <= self.limits["page_ins"]
        return True

    def copy(self, adapter: int, pages: list[int]) -> None:
        for part, page in enumerate(pages):
            for offset in range(self.limits["page_tokens"]):
                self.kv[page, offset] = ("weights", adapter, part)

    @rule()
    def commit(self) -> None:
        if self.in_flight is None:
            return
        self.core.commit(self.host.now, self.in_flight, [token for _, token in self.samples])
        self.in_flight = None
        self.take_events()

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), failed=st.integers(0, 5))
    def report(self, data: st.DataObject, failed: int) -> None:
        self.page_in(data.draw(st.integers(0, len(self.loading) - 1)), failed == 0)

    def page_in(self, index: int, failed: bool) -> None:
        adapter, slot, pages = self.loading.pop(index)
        self.copy(adapter, pages)
        if adapter in self.dropped:
            self.dropped.remove(adapter)
            if failed:  # the copy was stopped in time
                self.core.page_in_dropped(self.host.now, adapter)
                self.take_events()
                return
        else:
            assert refusal(self.core.page_in_dropped, self.host.now, adapter)[0] == "not_dropped"
        if failed:
            self.core.page_in_failed(self.host.now, adapter)
        else:
            self.slots[slot] = (adapter, pages)
            self.core.page_in_done(self.host.now, adapter)
        self.take_events()

    def take_events(self) -> None:
        for kind, subject, value in self.core.drain_events():
            match kind:
                case "admitted":
                    assert self.book[subject]["line"] is None
                    self.book[subject]["line"] = value
                case "preempted":
                    assert self.book[subject]["line"] is not None
                    self.book[subject]["line"] = None
                case "token":
                    known = self.book[subject]["tokens"]
                    assert value in (2, letter(subject, len(known)))
                    known.append(value)
                case "finished":
                    assert subject not in self.ended, "answered twice"
                    entry = self.book.pop(subject)
                    self.ended.add(subject)
                    if value == "length":
                        assert len(entry["tokens"]) == entry["end"]
                    elif value == "stop":
                        assert entry["tokens"][-1] == 2
                    else:
                        assert value in ("aborted", "failed_page_in")
                case "adapter_gone":
                    self.draining.pop(subject)
                case "adapter_dropped":
                    assert all(entry["adapter"] != subject or entry["line"] for entry in self.book.values())
                    self.dropped.add(subject)
                case _:
                    assert kind in ("adapter_loading", "adapter_hot", "adapter_evicted", "adapter_failed")

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "core"):
            assert self.core.check() is None

    def teardown(self) -> None:
        """Everything ends, in a bounded number of steps, and all pages come back."""
        if not hasattr(self, "core"):
            return
        left = 100 + 8 * sum(entry["end"] for entry in self.book.values())
        self.commit()
        while self.core.has_work():
            if not self.step(1):
                assert self.loading, self.core.dump()
            self.commit()
            if self.loading:
                self.page_in(0, failed=False)
            left -= 1
            assert left > 0, self.core.dump()
        assert not self.book
        assert self.ended == set(range(1, self.next_id))
        for adapter in sorted(self.adapters):
            self.draining[adapter] = self.adapters.pop(adapter)
            self.core.unregister(self.host.now, adapter)
        self.take_events()
        stats = self.core.stats()
        assert stats["pages_free"] + stats["pages_cached"] == self.limits["pages"]
        assert self.core.check() is None


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
