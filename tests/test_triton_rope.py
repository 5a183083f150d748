"""Rotation and page writes as a GPU computes them, under Triton's interpreter, against their definitions.

Pages begin as NaN: what isn't a real token's place is so still.
"""

from __future__ import annotations

import interpreted  # isort: skip  # noqa: F401  before Triton

import pytest
import torch

import interpreter_repairs  # noqa: F401
from definitions import rope as definition
from lorad.kernels.pages import Pages
from lorad.kernels.rope import kernel
from lorad.kernels.rope.kernel import HeadNorms
from paged import NOWHERE, Geometry, close, empty_lines, i32, normal

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LAYER = 1
GEOMETRIES = [
    Geometry(9, 3, 64, 16, F32, F32),
    Geometry(4, 4, 80, 8, F32, F16),
    Geometry(8, 1, 6, 64, BF16, F16),
    Geometry(32, 8, 128, 32, BF16, BF16),
    Geometry(2, 1, 256, 16, F16, F16),
    Geometry(1, 1, 2, 16, F32, BF16),
]


class Step:
    """Tokens of three lines in any order, two that are none after them."""

    def __init__(self, seed: int, geometry: Geometry, normed: bool) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.geometry = geometry
        lengths = [1, 19, 70]
        self.pages = empty_lines(self.random, geometry, lengths)
        places = [(0, 0), (1, 18), (2, 69), (2, 3), (1, 0), (2, 16), (2, 64), (1, 15), (1, 16)]
        self.tokens = len(places)
        self.line = i32(*(line for line, _ in places), NOWHERE, NOWHERE)
        self.position = i32(*(position for _, position in places), NOWHERE, -1)
        self.qkv = normal(self.random, self.tokens + 2, geometry.width).to(geometry.of)
        angles = torch.outer(torch.arange(max(lengths)), torch.rand(geometry.head_dim // 2, generator=self.random))
        self.cos, self.sin = angles.cos(), angles.sin()
        weights = normal(self.random, 2, geometry.head_dim)
        self.norms = HeadNorms(weights[0], weights[1], 1e-6) if normed else None

    def write(self, operator: object = kernel) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns qkv and the pages' elements as they are then."""
        qkv = self.qkv.clone()
        pages = self.pages._replace(arena=self.pages.arena.clone())
        of_tokens = (self.position, self.line, i32(self.tokens))
        operator.rope_write(qkv, self.cos, self.sin, *of_tokens, pages, LAYER, self.norms)
        return qkv, pages.elements()


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_tokens_are_turned_and_kept(geometry: Geometry, normed: bool) -> None:
    step = Step(1, geometry, normed)
    (qkv, kept), (wanted_qkv, wanted) = step.write(), step.write(definition)
    close(qkv, wanted_qkv, geometry.tolerance)
    v = slice(-geometry.kv_heads * geometry.head_dim, None)
    assert torch.equal(qkv[:, v], step.qkv[:, v])
    assert torch.equal(qkv[step.tokens :], step.qkv[step.tokens :])
    written = ~wanted.isnan()
    assert written.sum() == step.tokens * 2 * geometry.kv_heads * geometry.head_dim
    assert torch.equal(written, ~kept.isnan())
    # As exact as the wider of both: a value of f32 is rounded once.
    close(kept[written], wanted[written], max(geometry.tolerance, torch.finfo(geometry.kept).eps))


def test_a_token_alone_gets_the_same_bits() -> None:
    step = Step(2, Geometry(6, 2, 64, 16, F32, F32), True)
    qkv, kept = step.write()
    for token in (0, 2, 8):
        one = slice(token, token + 1)
        alone = Step(2, step.geometry, True)
        alone.tokens, alone.qkv = 1, step.qkv[one]
        alone.position, alone.line = step.position[one], step.line[one]
        own, own_kept = alone.write()
        assert torch.equal(own, qkv[one])
        written = ~own_kept.isnan()
        assert written.sum() == 2 * 2 * 64 and torch.equal(own_kept[written], kept[written])


def test_infinite_values_are_kept_as_they_are() -> None:
    step = Step(3, Geometry(1, 1, 8, 16, F32, F32), True)
    step.qkv[0, -8:] = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38, 0, -0.0, 1e-45, 1])
    qkv, kept = step.write()
    assert torch.equal(qkv[0, -8:].view(torch.int32), step.qkv[0, -8:].view(torch.int32))
    page = int(step.pages.table[0, 0])
    begin = step.pages.layer_begin(LAYER) + 16 * 8
    assert torch.equal(kept[page, begin : begin + 8].view(torch.int32), step.qkv[0, -8:].view(torch.int32))


def test_what_does_not_fit_is_refused() -> None:
    step = Step(4, Geometry(2, 1, 8, 16, F32, F32), True)
    fitting = step.norms
    step.norms = fitting._replace(k=fitting.k[:6])
    with pytest.raises(ValueError, match="norm of k is \\[6\\], not \\[8\\]"):
        step.write()
    step.norms, step.line = fitting, step.line.long()
    with pytest.raises(ValueError, match="line is of torch\\.int64"):
        step.write()
    step.line, step.cos = step.line.int(), torch.zeros(70, 8)[:, ::2]
    with pytest.raises(ValueError, match="cos isn't contiguous"):
        step.write()


def test_heads_without_halves_are_refused() -> None:
    step = Step(5, Geometry(2, 1, 8, 16, F32, F32), False)
    step.pages = Pages(**{**step.pages._asdict(), "head_dim": 5})
    step.qkv = torch.zeros(step.tokens + 2, 20)
    with pytest.raises(ValueError, match="heads of 5 have no halves"):
        step.write()
