"""What kernels read of a plan: work lists that cover each token once, sections that don't touch, room for edits."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from lorad.worker.gpu.buffers import (
    QUERIES,
    QUERY_TOKENS,
    ROWS,
    SAMPLE_TILES,
    SAMPLES,
    TILE_TOKENS,
    TILES,
    TOKENS,
    StepBuffers,
)
from lorad.worker.ops import StepArrays
from lorad.worker.plan import Plan

CPU = torch.device("cpu")


def plan_of(dice: random.Random, rows_max: int, tokens_max: int) -> Plan:
    """Rows sorted by adapter, base rows last, some of them sampled."""
    rows = dice.randint(0, rows_max)
    lengths = [dice.choice([1, 1, 1, 2, 15, 16, 17, 40]) for _ in range(rows)]
    while sum(lengths) > tokens_max:
        lengths.pop()
    rows = len(lengths)
    slots = sorted(dice.choice([0, 1, 2, 9]) for _ in range(rows))
    tokens = sum(lengths)
    names = {
        "header": 16, "row_line": rows_max, "row_start": rows_max, "row_offset": rows_max + 1, "row_sample": rows_max,
        "token_id": tokens_max, "token_pos": tokens_max, "token_line": tokens_max,
        "group_slot": rows_max, "group_tag": rows_max, "group_begin": rows_max, "group_end": rows_max,
    }  # fmt: skip
    layout, at = {}, 0
    for name, size in names.items():
        layout[name] = (at, size)
        at += size
    plan = Plan(layout, at)
    plan.array[:] = -7  # what is beyond the counts is anything
    plan.header[:] = 0
    offset = np.cumsum([0, *lengths])
    plan.row_offset[: rows + 1] = offset
    plan.row_line[:rows] = dice.sample(range(rows_max), rows)
    plan.row_start[:rows] = [dice.randrange(100) for _ in range(rows)]
    plan.row_sample[:rows] = [dice.randrange(2) for _ in range(rows)]
    plan.token_id[:tokens] = np.arange(tokens)
    plan.token_line[:tokens] = np.repeat(plan.row_line[:rows], lengths)
    plan.token_pos[:tokens] = np.arange(tokens) * 3
    groups = 0
    for slot in sorted(set(slots) - {9}):
        of = [row for row in range(rows) if slots[row] == slot]
        plan.group_slot[groups], plan.group_tag[groups] = slot, 100 + slot
        plan.group_begin[groups], plan.group_end[groups] = offset[of[0]], offset[of[-1] + 1]
        groups += 1
    plan.header[1:4] = rows, tokens, groups
    return plan


@pytest.mark.parametrize("seed", range(40))
def test_work_lists_cover_each_token_once(seed: int) -> None:
    dice = random.Random(seed)
    rows_max, tokens_max = dice.choice([1, 5, 33]), dice.choice([40, 100, 700])
    buffers = StepBuffers(rows_max, tokens_max, 7, CPU)
    for _ in range(3):  # a buffer that other steps have been in
        plan = plan_of(dice, rows_max, tokens_max)
        step = StepArrays.of(plan)
        buffers.fill(plan)
        buffers.sample(step)
        buffers.send()
    found = buffers.device
    count = dict(enumerate(found.counts.tolist()))
    assert (count[TOKENS], count[ROWS], count[SAMPLES]) == (plan.tokens, plan.rows, len(step.sample_line))
    of_token = {}
    for slot, tag, begin, end in found.tiles[: count[TILES]].tolist():
        assert tag == 100 + slot and 0 < end - begin <= TILE_TOKENS
        for token in range(begin, end):
            assert token not in of_token
            of_token[token] = slot
    groups = zip(step.group_slot.tolist(), step.group_begin.tolist(), step.group_end.tolist(), strict=True)
    assert of_token == {token: slot for slot, begin, end in groups for token in range(begin, end)}
    of_sample = {}
    for slot, _, begin, end in found.sample_tiles[: count[SAMPLE_TILES]].tolist():
        of_sample |= dict.fromkeys(range(begin, end), slot)
    last = step.sample_token.tolist()
    assert of_sample == {row: of_token[token] for row, token in enumerate(last) if token in of_token}
    assert found.sample_token.tolist() == last + [0] * (rows_max - len(last))
    assert found.sample_position[: len(last)].tolist() == [3 * token for token in last]
    seen = []
    for row, first in found.queries[: count[QUERIES]].tolist():
        length = int(plan.row_offset[row + 1] - plan.row_offset[row])
        assert first % QUERY_TOKENS == 0
        seen += [int(plan.row_offset[row]) + token for token in range(first, min(first + QUERY_TOKENS, length))]
    assert seen == list(range(plan.tokens))


def test_edits_that_arent_there_go_nowhere() -> None:
    buffers = StepBuffers(3, 8, 5, CPU)
    some = np.array([2, 9], dtype=np.int32)
    buffers.edit(some, some + 100)
    buffers.send()
    assert buffers.device.edits[:2].tolist() == [[2, 102], [9, 109]]
    assert set(buffers.device.edits[2:, 0].tolist()) == {3 * 5}, "the line after the last"


def test_an_empty_step_has_nothing_left_of_the_one_before() -> None:
    dice = random.Random(0)
    buffers = StepBuffers(5, 100, 7, CPU)
    plan = plan_of(dice, 5, 100)
    buffers.fill(plan)
    buffers.sample(StepArrays.of(plan))
    buffers.empty()
    buffers.send()
    assert not buffers.device.counts.any() and not buffers.device.sample_token.any()
    assert set(buffers.device.edits[:, 0].tolist()) == {5 * 7}


def test_sections_have_addresses_of_their_own() -> None:
    buffers = StepBuffers(3, 20, 5, CPU)
    for number, section in enumerate(buffers.host, 1):
        section[...] = number
    assert all((section == number).all() for number, section in enumerate(buffers.host, 1))
    assert all(section.data_ptr() % 64 == buffers.device.counts.data_ptr() % 64 for section in buffers.device)
