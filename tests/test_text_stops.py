"""Stop strings against their definition: the text cut before the first place where any of them begins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorad.text.stops import StopMatcher


def cut(text: str, stops: list[str], *, keep: bool = False) -> tuple[str, bool]:
    """The definition."""
    found = [(position, position + len(stop)) for stop in stops if (position := text.find(stop)) >= 0]
    return (text[: min(found)[keep]], True) if found else (text, False)


def run(parts: list[str], stops: list[str], *, keep: bool = False) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops, keep=keep)
    out = []
    for part in parts:
        out.append(matcher.push(part))
        if matcher.stopped:
            break
    out.append(matcher.flush())
    return out, matcher.stopped


def held_at_least(text: str, stops: list[str]) -> int:
    """How much of the end of `text` may be the beginning of a stop string."""
    return max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.text("ab", min_size=0, max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
)
def test_any_cutting_into_parts_gives_the_same(parts: list[str], stops: list[str], keep: bool) -> None:
    text = "".join(parts)
    out, stopped = run(parts, stops, keep=keep)
    assert ("".join(out), stopped) == cut(text, stops, keep=keep)


@settings(max_examples=300, deadline=None)
@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_only_the_beginning_of_a_stop_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for index, letter in enumerate(text):
        sent += matcher.push(letter)
        if matcher.stopped or any(stop in text[: index + 1] for stop in stops):
            break
        assert len(sent) == index + 1 - held_at_least(text[: index + 1], stops)


@pytest.mark.parametrize("size", range(1, 8))
def test_stops_that_begin_and_end_inside_tokens(size: int) -> None:
    choose = random.Random(size)
    text = "The cat sat on the mat, and the other cat sat on that."
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    for _ in range(200):
        stops = []
        for _ in range(choose.randrange(1, 4)):
            begin = choose.randrange(len(text) - 1)
            stops.append(text[begin : begin + choose.randrange(1, 12)])
        stops.append(stops[0][:1])
        out, stopped = run(parts, stops)
        assert ("".join(out), stopped) == cut(text, stops)


def test_a_long_stop_that_never_comes_holds_nothing() -> None:
    matcher = StopMatcher(["x" * 200])
    assert [matcher.push(f" w{i}") for i in range(100)] == [f" w{i}" for i in range(100)]


def test_a_match_waits_for_an_earlier_one_that_is_under_way() -> None:
    matcher = StopMatcher(["bc", "abcd"])
    assert matcher.push("xabc") == "x" and not matcher.stopped
    assert matcher.push("d") == "" and matcher.stopped
    matcher = StopMatcher(["bc", "abcd"])
    assert matcher.push("xabc") == "x"
    assert matcher.push("e") == "a" and matcher.stopped
    matcher = StopMatcher(["bc", "abcd"])
    matcher.push("xabc")
    assert matcher.flush() == "a" and matcher.stopped


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab", min_size=0, max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(0, 12),
)
def test_what_ends_before_it_counts_is_no_stop(parts: list[str], stops: list[str], first: int) -> None:
    """By definition: of all places, those whose end lies in a part that counts."""
    free, text = len("".join(parts[:first])), "".join(parts)
    begins = [
        place
        for stop in stops
        for place in range(len(text) - len(stop) + 1)
        if text.startswith(stop, place) and place + len(stop) > free
    ]
    matcher, out = StopMatcher(stops), ""
    for index, part in enumerate(parts):
        out += matcher.push(part, counts=index >= first)
    out += matcher.flush()
    assert (out, matcher.stopped) == (text[: min(begins)] if begins else text, bool(begins))
