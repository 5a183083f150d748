"""`lorad adapters merge`: the merged model, and how far its answers are from the adapter's."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from lorad.adapters.merge import merge
from lorad.engine.engine import Engine
from lorad.errors import InvalidRequest, LoradError

PROMPTS, TOKENS = 8, 16
EXACT = {"F32": 1e-3, "F16": 2e-2, "BF16": 0.2}
"""How far a log-probability may be off, where a weight's rounding is of that type. Blocks of few bits are just told."""


class Answer(NamedTuple):
    """Greedy tokens and their log-probabilities."""

    tokens: list[int]
    logprobs: list[float]


def run_merge(arguments: argparse.Namespace) -> int:
    """Writes the merged model, asks it and the adapter the same, and says what differs. A model that doesn't answer as
    the adapter does is taken away again."""
    output: Path = arguments.output
    if output.exists():
        raise InvalidRequest(f"{output} exists already", code="output_exists", param="output")
    engine = Engine(str(arguments.model), max_lora_rank=arguments.max_lora_rank, dtype="float32")
    with closing(engine):
        weights = engine.weights
        checked = engine.prepare_adapter(arguments.adapter.name, str(arguments.adapter)).checked
        output.mkdir(parents=True)
        try:
            made = merge(weights, checked, output, links=False)
            engine.load_adapter("adapter", str(arguments.adapter))
            asked = _prompts(weights.config.vocab)
            wanted = _answers(engine, "adapter", asked)
            with closing(Engine(str(made), dtype="float32")) as merged:
                found = _answers(merged, "", asked)
            kind = weights.tensor(
                weights.config.weight_name(
                    checked.modules[0].layer, weights.config.adaptable()[checked.modules[0].module].name
                )
            ).kind
            same, off = _beside(wanted, found)
            limit = EXACT.get(kind)
            if limit is not None and off > limit:
                raise LoradError(
                    f"the merged model is off by {off:.2g} in a log-probability, at most {limit:g} is right for {kind}",
                    code="merge_verify",
                )
        except BaseException:
            shutil.rmtree(output, ignore_errors=True)
            raise
    total = PROMPTS * TOKENS
    sys.stdout.write(
        f"{made}: {arguments.adapter} merged into weights of {kind}. Beside the adapter on its base: {same} of {total} "
        f"greedy tokens are the same, log-probabilities up to there within {off:.2g}\n"
    )
    return 0


def _prompts(vocab: int) -> list[list[int]]:
    dice = random.Random(0)
    return [[dice.randrange(vocab) for _ in range(length)] for length in range(4, 4 + 4 * PROMPTS, 4)]


def _answers(engine: Engine, model: str, prompts: Sequence[list[int]]) -> list[Answer]:
    requests = [engine.add(prompt, model, max_tokens=TOKENS, stop_token_ids=(), logprobs=0) for prompt in prompts]
    while engine.step():
        pass
    return [Answer(request.tokens, request.logprobs) for request in requests]


def _beside(wanted: Sequence[Answer], found: Sequence[Answer]) -> tuple[int, float]:
    """Tokens up to the first other one, and the largest difference of their log-probabilities."""
    same, off = 0, 0.0
    for one, other in zip(wanted, found, strict=True):
        for place in range(TOKENS):
            if one.tokens[place] != other.tokens[place]:
                break
            same += 1
            off = max(off, abs(one.logprobs[place] - other.logprobs[place]))
    return same, off
