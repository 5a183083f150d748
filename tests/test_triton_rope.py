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
from paged import Geometry, close
from rope_steps import F32, GEOMETRIES, LAYER, Step


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
