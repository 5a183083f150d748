"""Every operator on the device against its definition: the cases of the tests that run under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import attention_steps
import lora_cases
import rope_steps
from definitions import attention as attention_definition
from definitions import gate_mul as gate_definition
from definitions import matmul as matmul_definition
from definitions import rms_norm as norm_definition
from definitions import rope as rope_definition
from elsewhere import Elsewhere, elsewhere
from lorad.kernels.attention import kernel as attention
from lorad.kernels.gate_mul import kernel as gate
from lorad.kernels.gate_mul.ref import GATES
from lorad.kernels.matmul import kernel as matmul
from lorad.kernels.rms_norm import kernel as norm
from lorad.kernels.rope import kernel as rope
from paged import Geometry, close, normal
from report import Report
from scene import Scene

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ROUNDING = {F32: 2e-5, F16: 2e-3, BF16: 1.6e-2}
LLAMA = Geometry(32, 8, 128, 16, BF16, BF16)
"""Llama 3 8B's heads."""


def run(scene: Scene, report: Report) -> None:
    for name, cases in (
        ("attention", _attention),
        ("attention, one token a row", _decode),
        ("rope and page writes", _rope),
        ("lora", _lora),
        ("norms", _norms),
        ("gates", _gates),
        ("products of fixed order", _products),
    ):
        made = cases(scene)
        for what, case in made[:1] if scene.dry else made:
            with report.case(f"{name}: {what}"):
                case()
        report.cases(f"{name}, as defined")


Cases = list[tuple[str, Callable[[], None]]]


def _attention(scene: Scene) -> Cases:
    operator = Elsewhere(attention, scene.device)

    rows = attention_steps.ROWS[:3] if scene.dry else attention_steps.ROWS

    def case(geometry: Geometry, window: int | None) -> None:
        step = attention_steps.Step(1, geometry, rows)
        step.check(step.attend(operator, window), step.attend(attention_definition, window))

    geometries = [*attention_steps.GEOMETRIES, (LLAMA, None), (LLAMA, 100)]
    return [(f"{geometry}, window {window}", partial(case, geometry, window)) for geometry, window in geometries]


def _decode(scene: Scene) -> Cases:
    operator = Elsewhere(attention, scene.device)

    lengths = (16, 1) if scene.dry else (16, 130, 1, 65)

    def case(geometry: Geometry, window: int | None, splits: int) -> None:
        step = attention_steps.Step(4, geometry, [(length - 1, 1) for length in lengths])
        step.check(step.decode(splits, operator, window), step.attend(attention_definition, window))

    geometries = [*attention_steps.GEOMETRIES, (LLAMA, None), (LLAMA, 100)]
    return [
        (f"{geometry}, window {window}, {splits} splits", partial(case, geometry, window, splits))
        for geometry, window in geometries
        for splits in (1, 16)
    ]


def _rope(scene: Scene) -> Cases:
    operator = Elsewhere(rope, scene.device)

    def case(geometry: Geometry, normed: bool) -> None:
        step = rope_steps.Step(1, geometry, normed)
        (qkv, kept), (wanted_qkv, wanted) = step.write(operator), step.write(rope_definition)
        close(qkv, wanted_qkv, geometry.tolerance)
        written = ~wanted.isnan()
        assert torch.equal(written, ~kept.isnan()), "other places of the pages were written"
        close(kept[written], wanted[written], max(geometry.tolerance, torch.finfo(geometry.kept).eps))

    return [
        (f"{geometry}, {'head norms' if normed else 'plain'}", partial(case, geometry, normed))
        for geometry in rope_steps.GEOMETRIES
        for normed in (False, True)
    ]


def _lora(scene: Scene) -> Cases:
    on = partial(elsewhere, device=scene.device)

    def case(made: lora_cases.Case) -> None:
        got = made.run("two", on=on)
        lora_cases.check(made, got)
        fused = made.run("fused", on=on)
        lora_cases.check(made, fused)
        if not scene.dry:  # the interpreter's products are a BLAS', whose order of sums depends on the tile
            assert torch.equal(fused.view(torch.uint8), got.view(torch.uint8)), "one launch gives other bits than two"

    if scene.dry:
        few = lora_cases.make(3, 40, [24, 16, 16], 1 << 10, F32, lora_cases.MIXED[3:], [(1, 2), (0, 1), (-1, 1)])
        return [("40 to 24, 16, 16", lambda: case(few))]
    found: Cases = []
    for inputs, widths, page_bytes in (
        (67, [40, 3, 201], 64),
        (600, [96, 33, 130], 1 << 13),
        (608, [48, 144, 16], 1 << 14),
    ):
        for dtype in (F32, F16, BF16):
            made = partial(
                lora_cases.make,
                inputs,
                inputs,
                widths,
                page_bytes,
                dtype,
                lora_cases.MIXED,
                lora_cases.GROUPS,
            )
            found.append((f"{inputs} to {widths}, {dtype}", lambda made=made: case(made())))
    highest = [
        {"rank": 256, "element": "bf16", "modules": [0]},
        {"rank": 1, "element": "bf16", "modules": [0]},
    ]
    wide = partial(lora_cases.make, 7, 4096, [1024], 1 << 21, BF16, highest, [(0, 2), (1, 17)])
    found.append(("4096 to 1024, ranks 256 and 1", lambda: case(wide())))
    return found


def _norms(scene: Scene) -> Cases:
    operator = Elsewhere(norm, scene.device)

    def case(width: int, of: torch.dtype) -> None:
        random = torch.Generator().manual_seed(width)
        x, residual, weight = (
            normal(random, 3, width).to(of),
            normal(random, 3, width).to(of),
            normal(random, width),
        )
        for out, sums, by in (outs := [(_nan(x), residual.clone(), by) for by in (operator, norm_definition)]):
            by.add_rms_norm(out, sums, x, weight, 1e-5)
        (got, got_sums, _), (wanted, wanted_sums, _) = outs
        close(got, wanted, ROUNDING[of])
        assert torch.equal(got_sums, wanted_sums), "the residual differs"
        operator.rms_norm(got_sums, got_sums, weight, 1e-5)
        assert torch.equal(got_sums, got), "the norm in its input's place differs"

    return [
        (f"{width} of {of}", partial(case, width, of))
        for width in (100, 1, 576, 4096, 16384)
        for of in (F32, F16, BF16)
    ]


def _gates(scene: Scene) -> Cases:
    operator = Elsewhere(gate, scene.device)

    def case(width: int, of: torch.dtype, name: str) -> None:
        gate_up = (normal(torch.Generator().manual_seed(width), 4, 2 * width) * 4).to(of)
        got, wanted = (torch.full((4, width), torch.nan, dtype=of) for _ in range(2))
        operator.gate_mul(got, gate_up, name)
        gate_definition.gate_mul(wanted, gate_up, name)
        close(got, wanted, ROUNDING[of])

    return [
        (f"{name}, {width} of {of}", partial(case, width, of, name))
        for name in sorted(GATES)
        for width in (100, 1500, 14336)
        for of in (F32, F16, BF16)
    ]


def _products(scene: Scene) -> Cases:
    operator = Elsewhere(matmul, scene.device)

    def case(n: int, inputs: int, outputs: int, of: torch.dtype) -> None:
        random = torch.Generator().manual_seed(n)
        x, weight, bias = (normal(random, *shape) for shape in ((n, inputs), (outputs, inputs), (outputs,)))
        x, weight = x.to(of), weight.to(of)
        got, wanted = (torch.full((n, outputs), torch.nan, dtype=of) for _ in range(2))
        operator.matmul(got, x, weight, bias)
        matmul_definition.matmul(wanted, x, weight, bias)
        close(got, wanted, ROUNDING[of])

    return [
        (f"{n} × {inputs} → {outputs}, {of}", partial(case, n, inputs, outputs, of))
        for n, inputs, outputs in (
            (3, 100, 33),
            (1, 576, 65),
            (16, 129, 64),
            (130, 65, 70),
            (64, 4096, 1024),
            (300, 40, 140),
        )
        for of in (F32, F16, BF16)
    ]


def _nan(like: Tensor) -> Tensor:
    return torch.full_like(like, torch.nan)
