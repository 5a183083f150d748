"""`lorad adapters merge`: the merged model, and how far its answers are from the adapter's."""

from __future__ import annotations

import argparse
import math
import random
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.merge import merge, rounding
from lorad.adapters.staged import staged
from lorad.engine.engine import Engine
from lorad.errors import LoradError
from lorad.models.weights import Weights

PROMPTS, TOKENS = 8, 16
EXACT = {"F32": 1e-3, "F16": 2e-2, "BF16": 0.2}
"""How far a log-probability may be off, where a weight's rounding is of that type; twice as far where weights that the
adapter leaves alone are rounded too. Blocks of few bits are just told."""

SAME_MIN = 0.2
"""Part of the greedy tokens that weights of few bits must leave as they are; a wrong merge leaves hardly any."""


def run_merge(arguments: argparse.Namespace) -> int:
    """Writes the merged model, asks it and the adapter the same, and says what differs. A model that doesn't answer as
    the adapter does never gets the name that was asked for."""
    output: Path = arguments.output
    wanted = arguments.type.upper()
    with staged(output) as folder:
        folder.mkdir()
        # Integer products round what goes in as well. Where floats are wanted, both sides compute with the values.
        options: dict[str, Any] = {"dtype": "float32", "dequantize": wanted in EXACT}
        engine = Engine(str(arguments.model), max_lora_rank=arguments.max_lora_rank, **options)
        with closing(engine):
            checked = engine.check_adapter(arguments.adapter.name, str(arguments.adapter))
            made = merge(engine.weights, checked, folder, kind=wanted, links=False)
            engine.load_adapter("adapter", str(arguments.adapter))
            with closing(Engine(str(made), **options)) as merged:
                seen = beside(engine, merged)
                kind, costs = _kind(merged.weights, checked), rounding(engine.weights, merged.weights, checked)
        _check(seen, kind, EXACT.get(kind, math.inf) * (2 if wanted else 1))
        size = f"{_bytes(made) / 1e6:,.1f} MB, the base has {_bytes(engine.weights.path) / 1e6:,.1f}"
    sys.stdout.write(
        f"{output / made.name if made != folder else output}: {arguments.adapter} merged into weights of {kind} "
        f"({size}). Beside the adapter on its base: {seen.same} of {seen.tokens} greedy tokens are the same, "
        f"log-probabilities within {seen.off:.2g}, {seen.off_mean:.2g} on average. Rounding to {kind} moved the merged "
        f"weights by {costs.of_weights:.2g} of them, {costs.of_change:.2g} of what the adapter adds\n"
    )
    return 0


class Seen(NamedTuple):
    """A merged model beside the adapter on its base, along the adapter's greedy answers."""

    tokens: int
    same: int
    off: float
    """The largest difference of the best token's log-probability, whether or not it's the same token."""
    off_mean: float


def beside(engine: Engine, merged: Engine) -> Seen:
    """Asks both for the next token after the same beginnings."""
    dice, vocab = random.Random(0), engine.weights.config.vocab
    prompts = [[dice.randrange(vocab) for _ in range(length)] for length in range(4, 4 + 4 * PROMPTS, 4)]
    wanted = [engine.add(prompt, "adapter", max_tokens=TOKENS, stop_token_ids=(), logprobs=0) for prompt in prompts]
    _run(engine)
    same = 0
    off: list[float] = []
    for prompt, answer in zip(prompts, wanted, strict=True):
        begun = [[*prompt, *answer.tokens[:place]] for place in range(TOKENS)]
        found = [merged.add(ids, max_tokens=1, stop_token_ids=(), logprobs=0) for ids in begun]
        _run(merged)
        same += sum(one.tokens == [token] for one, token in zip(found, answer.tokens, strict=True))
        off += (abs(one.logprobs[0] - logprob) for one, logprob in zip(found, answer.logprobs, strict=True))
    return Seen(PROMPTS * TOKENS, same, max(off), sum(off) / len(off))


def _run(engine: Engine) -> None:
    while engine.step():
        pass


def _check(seen: Seen, kind: str, limit: float) -> None:
    if seen.off > limit:
        raise LoradError(
            f"the merged model is off by {seen.off:.2g} in a log-probability, at most {limit:g} is right for {kind}",
            code="merge_verify",
        )
    if seen.same < SAME_MIN * seen.tokens:
        raise LoradError(
            f"the merged model has {seen.same} of {seen.tokens} tokens in common with the adapter, at least "
            f"{SAME_MIN:.0%} are wanted: weights of {kind} don't hold it",
            code="merge_verify",
        )


def _kind(weights: Weights, checked: CheckedAdapter) -> str:
    """The number type of the first weight that the adapter changes."""
    first = checked.modules[0]
    return weights.tensor(weights.config.weight_name(first.layer, weights.config.adaptable()[first.module].name)).kind


def _bytes(model: Path) -> int:
    """Of a file, or of a folder's."""
    return sum(file.stat().st_size for file in (model.iterdir() if model.is_dir() else [model]) if file.is_file())
