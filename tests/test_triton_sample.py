"""Sampling as a GPU computes it, under Triton's interpreter, against its definition.

Outputs and workspaces begin as what nobody writes, so do rows and lines that a step hasn't got.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import interpreted  # noqa: F401  # before Triton
import interpreter_repairs  # noqa: F401
from definitions import sample as definition
from lorad.kernels.sample import kernel, ref
from lorad.kernels.sample.kernel import GREEDY, LEFT, PLAIN, workspace_shape
from products import normal

UNWRITTEN = -9
INF, NAN = float("inf"), float("nan")
HIGHEST = 2**31


class Lines:
    """Parameters of more lines than there are rows."""

    def __init__(self, random: torch.Generator, rows: int, modes: tuple[int, ...] = (GREEDY, PLAIN, LEFT)) -> None:
        self.line = torch.randperm(rows + 3, generator=random)[:rows].int()
        self.temperature = torch.tensor([0.3, 0.8, 1.0, 2.0])[torch.randint(4, (rows + 3,), generator=random)]
        self.seed = torch.randint(-HIGHEST, HIGHEST, (rows + 3, 2), generator=random).int()
        self.mode = torch.tensor(modes)[torch.randint(len(modes), (rows + 3,), generator=random)].int()
        self.position = torch.randint(100000, (rows,), generator=random).int()


class Drawn:
    """What is chosen of logits by a kernel or a definition."""

    def __init__(self, logits: Tensor, lines: Lines, rows: list[int], count: int, by=kernel.sample) -> None:
        """Of `rows` alone; of these the first `count` are real."""
        self.tokens = torch.full((len(rows),), UNWRITTEN, dtype=torch.int32)
        self.logprobs = torch.full((len(rows),), INF)
        parameters = (lines.temperature, lines.seed, lines.mode)
        workspace = torch.full(workspace_shape(len(rows), logits.shape[1]), NAN)
        by(
            self.tokens,
            self.logprobs,
            logits[rows].clone(),
            *parameters,
            lines.line[rows].clone(),
            lines.position[rows].clone(),
            torch.tensor([count], dtype=torch.int32),
            workspace,
        )


@pytest.mark.parametrize(
    ("vocab", "spread"),
    [(1, 1), (5, 4), (100, 0.1), (100, 1), (2048, 4), (2049, 1), (5001, 0.1), (5001, 1), (20000, 4)],
)
def test_choices_are_those_of_the_definition(vocab: int, spread: float) -> None:
    random = torch.Generator().manual_seed(vocab)
    rows, count = 16, 14
    logits, lines = normal(random, rows, vocab) * spread, Lines(random, rows)
    if spread == 1:
        logits = ((logits * 2).round() / 2).bfloat16()  # many ties
        logits[::2, : vocab // 2] = -INF
    got, wanted = (Drawn(logits, lines, list(range(rows)), count, by) for by in (kernel.sample, definition.sample))
    for row, (token, other) in enumerate(zip(got.tokens.tolist(), wanted.tokens.tolist(), strict=True)):
        if token != other:
            assert abs(border(logits[row].float(), lines, row, token, other)) < 1e-6
        if token != UNWRITTEN:
            assert float(got.logprobs[row]) == pytest.approx(float(ref.logprobs(logits[row].float())[token]), abs=2e-5)
    left = [row for row in range(rows) if row >= count or lines.mode[lines.line[row]] == LEFT]
    assert 2 < len(left) < count
    assert (got.tokens == UNWRITTEN).nonzero().flatten().tolist() == left
    assert got.logprobs.isinf().nonzero().flatten().tolist() == left
    for row in (0, 3, 13):
        alone = Drawn(logits, lines, [row], 1)
        assert alone.tokens[0] == got.tokens[row] and alone.logprobs[0] == got.logprobs[row]


def border(logits: Tensor, lines: Lines, row: int, token: int, other: int) -> float:
    """How far the row's uniform number is from where one token ends and the other begins."""
    of = int(lines.line[row])
    assert lines.mode[of] == PLAIN
    low, high = (half & 0xFFFFFFFF for half in lines.seed[of].tolist())
    uniform = ref.uniform(high << 32 | low, int(lines.position[row]) + 1)
    sums = ref.probabilities(logits, float(lines.temperature[of]), 0, 1, 0).cumsum(0)
    # All that lies between them ends within rounding of it.
    return max((float(sums[i]) - uniform for i in range(min(token, other), max(token, other))), key=abs)


def test_the_largest_vocabulary() -> None:
    random = torch.Generator().manual_seed(3)
    logits, lines = normal(random, 2, 262144), Lines(random, 2, (PLAIN,))
    logits[1] *= 0.01
    drawn, wanted = Drawn(logits, lines, [0, 1], 2), Drawn(logits, lines, [0, 1], 2, definition.sample)
    assert drawn.tokens.tolist() == wanted.tokens.tolist()
    assert drawn.logprobs.tolist() == pytest.approx(wanted.logprobs.tolist(), abs=2e-5)


@pytest.mark.parametrize("mode", [GREEDY, PLAIN])
def test_rows_that_cannot_be_sampled(mode: int) -> None:
    random = torch.Generator().manual_seed(4)
    logits, lines = normal(random, 6, 5000), Lines(random, 6, (mode,))
    logits[0, 4999], logits[1, 0], logits[2, 2500], logits[3] = NAN, NAN, INF, -INF
    drawn = Drawn(logits, lines, list(range(6)), 6)
    assert (drawn.tokens[:4] == -1).all() and drawn.logprobs[:4].isnan().all()
    assert (drawn.tokens[4:] >= 0).all() and drawn.logprobs[4:].isfinite().all()


def test_the_lowest_of_the_best_is_taken_without_a_temperature() -> None:
    random = torch.Generator().manual_seed(5)
    logits, lines = torch.zeros(6, 4097), Lines(random, 6, (GREEDY,))
    logits[0, [9, 40, 4096]], logits[1, 4096], logits[2, [2048, 3000]], logits[5, 7] = 5, 1, 3, -0.0
    lines.mode[lines.line[3:5].long()] = PLAIN
    lines.temperature[lines.line[3]], lines.temperature[lines.line[4]] = 0, NAN
    logits[3:5, 33] = 2
    assert Drawn(logits, lines, list(range(6)), 6).tokens.tolist() == [9, 4096, 2048, 33, 33, 0]


def test_only_what_has_a_probability_is_drawn() -> None:
    random = torch.Generator().manual_seed(6)
    rows = 24
    logits, lines = torch.full((rows, 4200), -INF), Lines(random, rows, (PLAIN,))
    logits[:, [2047, 2048, 4199]] = torch.tensor([3.0, 2.0, 2.5])
    lines.temperature[:] = torch.tensor([1e-30, 0.5, 1e30, INF]).repeat(7)[: rows + 3]
    tokens = Drawn(logits, lines, list(range(rows)), rows).tokens
    assert set(tokens.tolist()) == {2047, 2048, 4199}
    cold = lines.temperature[lines.line.long()] < 1e-20
    assert (tokens[cold] == 2047).all()


def test_operands_that_do_not_fit_are_refused() -> None:
    logits, lines = torch.zeros(2, 30), Lines(torch.Generator(), 2)
    for wrong in ("temperature", "seed", "mode"):
        other = Lines(torch.Generator(), 2)
        setattr(other, wrong, getattr(lines, wrong)[1:].double())
        with pytest.raises(ValueError, match=r"is \[|is of"):
            Drawn(logits, other, [0, 1], 2)
