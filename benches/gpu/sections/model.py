"""The pack's model with its adapters, against what transformers + PEFT said in fp32."""

from __future__ import annotations

from itertools import zip_longest

from report import Report
from scene import Answer, Scene

LOGPROB_TOLERANCE = 1e-3
BF16_TOLERANCE = 0.1
"""Of the mean difference of log-probabilities: bfloat16 has 8 bits, and layers add up what that rounds."""


def run(scene: Scene, report: Report) -> None:
    _exact(scene, report, graphs=True)
    _exact(scene, report, graphs=False)
    _rounded(scene, report)


def _exact(scene: Scene, report: Report, *, graphs: bool) -> None:
    """All in one batch, in f32: same tokens, log-probabilities within the tolerance."""
    how = "replayed" if graphs else "kernel by kernel"
    rows = len(scene.answers)
    engine = scene.engine(
        scene.model,
        scene.adapters,
        dtype="float32",
        enforce_eager=not graphs,
        max_num_seqs=rows,
        kv_cache_memory_bytes=128 << 20,
    )
    while graphs and engine.worker.graphs.pending:
        engine.worker.graphs.capture(60)
    asked = [
        engine.add(answer.prompt, answer.adapter, max_tokens=len(answer.tokens), stop_token_ids=(), logprobs=0)
        for answer in scene.answers
    ]
    while engine.step():
        pass
    replays = engine.worker.graphs.replays if graphs else 0
    engine.close()
    wrong = [
        f"{answer.adapter or 'base'} after {_agreed(answer, request.tokens)} tokens"
        for answer, request in zip(scene.answers, asked, strict=True)
        if request.tokens != answer.tokens
    ]
    count = sum(len(answer.tokens) for answer in scene.answers)
    said = f"{count} tokens of {len(scene.answers)} answers"
    report.must(f"f32, {how}: the reference's greedy tokens", not wrong, "; ".join(wrong) or said)
    far = max(
        (
            abs(ours - theirs)
            for answer, request in zip(scene.answers, asked, strict=True)
            for ours, theirs in zip(request.logprobs, answer.logprobs, strict=False)
        ),
        default=float("inf"),
    )
    report.must(f"f32, {how}: log-probabilities", far <= LOGPROB_TOLERANCE, f"{far:.1e} apart at most")
    if graphs:
        report.must("f32: decode steps were replays of graphs", replays > 0, f"{replays} replays")


def _agreed(answer: Answer, tokens: list[int]) -> int:
    pairs = zip_longest(answer.tokens, tokens)
    return next((at for at, (wanted, got) in enumerate(pairs) if wanted != got), len(answer.tokens))


def _rounded(scene: Scene, report: Report) -> None:
    """In bf16, the reference's answers as prompts: how probable their tokens are."""
    engine = scene.engine(scene.model, scene.adapters, kv_cache_memory_bytes=128 << 20)
    asked = [
        engine.add(
            [*answer.prompt, *answer.tokens],
            answer.adapter,
            max_tokens=1,
            stop_token_ids=(),
            prompt_logprobs=0,
        )
        for answer in scene.answers
    ]
    while engine.step():
        pass
    engine.close()
    far = [
        abs(scored.chosen - wanted)
        for answer, request in zip(scene.answers, asked, strict=True)
        for scored, wanted in zip(request.prompt_logprobs[len(answer.prompt) - 1 :], answer.logprobs, strict=True)
    ]
    mean = sum(far) / len(far)
    report.must(
        "bf16: log-probabilities",
        mean <= BF16_TOLERANCE,
        f"{mean:.1e} apart in the mean, {max(far):.1e} at most",
    )
