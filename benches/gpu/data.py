"""The pack's data: a real model's first layers, adapters for it, and what transformers + PEFT answer in fp32."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NamedTuple

import torch

from lorad.models.gguf_file import GgufWeights
from make_adapter import make_adapter
from oracle import Oracle, load_reference
from scene import Answer
from truncate import truncate

SEED = 0
GAP = 0.01
"""An answer ends before the best two tokens are so close: another order of sums may take either."""


class Kind(NamedTuple):
    """An adapter of the pack."""

    name: str
    rank: int
    dtype: torch.dtype
    modules: tuple[str, ...]


ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
KINDS = (
    Kind("r16", 16, torch.bfloat16, ATTENTION + MLP),
    Kind("r5", 5, torch.float32, ATTENTION),
    Kind("r40", 40, torch.float16, ("q_proj", "v_proj", *MLP)),
)


def write_data(base: Path, folder: Path, *, layers: int, tokens: int, prompts: tuple[int, ...]) -> None:
    """Writes `model.gguf`, `adapters/` and `answers.json` into an empty folder.

    `base`: a GGUF file. `tokens`: of the longest answer; `prompts`: how many tokens each adapter's prompts have.
    """
    model = truncate(base, folder / "model.gguf", layers)
    config, dice = GgufWeights(model).config, random.Random(SEED)
    reference = Oracle(load_reference(model))
    answers = []
    for kind in (None, *KINDS):
        adapter = None
        if kind is not None:
            adapter = make_adapter(
                folder / "adapters" / kind.name,
                config,
                rank=kind.rank,
                modules=kind.modules,
                dtype=kind.dtype,
                seed=SEED,
            )
        for length in prompts:
            prompt = [dice.randrange(config.vocab) for _ in range(length)]
            found = reference.greedy(prompt, tokens, adapter)
            decided = next((at for at, gap in enumerate(found.gaps) if gap < GAP), tokens)
            name = "" if kind is None else kind.name
            if decided:
                answers.append(Answer(name, prompt, list(found.tokens[:decided]), list(found.logprobs[:decided])))
    (folder / "answers.json").write_text(json.dumps([answer._asdict() for answer in answers]))
