"""Same bits alone and in company: of each operator by rows, of whole answers with `deterministic`."""

from __future__ import annotations

from functools import partial

import torch

import attention_steps
import lora_cases
from elsewhere import Elsewhere, elsewhere
from lorad.kernels.attention import kernel as attention
from lorad.kernels.matmul import kernel as matmul
from lorad.kernels.rms_norm import kernel as norm
from paged import normal
from report import Report
from scene import Scene

TOKENS = 24
GROUPS = [(0, 1), (1, 18), (-1, 2), (1, 1)]
"""(adapter, rows); −1: of the base."""


def run(scene: Scene, report: Report) -> None:
    for dtype in (torch.bfloat16,) if scene.dry else (torch.float32, torch.float16, torch.bfloat16):
        _kernels(scene, report, dtype)
    report.cases("rows of operators, alone as among others")
    _answers(scene, report)


def _kernels(scene: Scene, report: Report, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(1)
    attend = Elsewhere(attention, scene.device)
    geometry = next(geometry for geometry, _ in attention_steps.GEOMETRIES if geometry.of == dtype)
    rows = attention_steps.ROWS[:2] if scene.dry else attention_steps.ROWS
    step = attention_steps.Step(1, geometry, rows)
    with report.case(f"attention, {dtype}"):
        got = step.attend(attend)
        for row, (_, new) in enumerate(rows):
            own = got[int(step.row_offset[row]) :][:new]
            assert not new or torch.equal(step.alone(row).attend(attend), own), f"row {row}"
    with report.case(f"lora, {dtype}"):
        on, groups = partial(elsewhere, device=scene.device), GROUPS[2:] if scene.dry else GROUPS
        made = lora_cases.make(3, 96, [48, 16, 24], 1 << 12, dtype, lora_cases.MIXED[3:], groups)
        got = made.run("lora", on=on)
        for slot, tag, begin, _ in made.tiles:
            own = made.run("lora", made.x[begin : begin + 1], made.y[begin : begin + 1], [(slot, tag, 0, 1)], 0, on=on)
            assert torch.equal(own.view(torch.uint8), got[begin : begin + 1].view(torch.uint8)), f"row {begin}"
    n, inputs, outputs = (3, 32, 16) if scene.dry else (300, 600, 200)
    x, weight = normal(random, n, inputs).to(dtype), normal(random, outputs, inputs).to(dtype)
    with report.case(f"products of fixed order, {dtype}"):
        product = Elsewhere(matmul, scene.device).matmul
        together, alone = torch.empty(n, outputs, dtype=dtype), torch.empty(1, outputs, dtype=dtype)
        product(together, x, weight, None)
        for row in (0, n // 2, n - 1):
            product(alone, x[row : row + 1], weight, None)
            assert torch.equal(alone[0], together[row]), f"row {row}"
    with report.case(f"norms, {dtype}"):
        normed = Elsewhere(norm, scene.device).rms_norm
        together, alone, ones = torch.empty_like(x), torch.empty_like(x[:1]), torch.ones(inputs)
        normed(together, x, ones, 1e-5)
        normed(alone, x[n - 1 :], ones, 1e-5)
        assert torch.equal(alone[0], together[n - 1])


def _answers(scene: Scene, report: Report) -> None:
    """Each request by itself, then all at once, prompts cut otherwise."""
    asked, tokens = scene.answers[: 2 if scene.dry else None], 3 if scene.dry else TOKENS
    options = {
        "deterministic": True,
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 16,
        "enable_prefix_caching": False,
    }
    found = []
    for company, chunk in ((False, 512), (True, 32)):
        engine = scene.engine(scene.model, scene.adapters, max_num_batched_tokens=chunk, **options)
        made = []
        for answer in asked:
            made.append(engine.add(answer.prompt, answer.adapter, max_tokens=tokens, stop_token_ids=(), logprobs=0))
            while not company and engine.step():
                pass
        while engine.step():
            pass
        found.append([(request.tokens, request.logprobs) for request in made])
        engine.close()
    if scene.dry:  # definitions sum with torch's products, whose order depends on the rows
        report.must("whole answers are complete", all(len(one[0]) == tokens for one in found[0] + found[1]))
        return
    same = sum(alone == company for alone, company in zip(*found, strict=True))
    report.must(
        "whole answers, deterministic: bits alone as in company",
        same == len(asked),
        f"{same} of {len(asked)}",
    )
