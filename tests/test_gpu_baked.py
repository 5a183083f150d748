"""What graphs would do if they kept an adapter's addresses: a LoRA operator that does is written here on purpose.

It's right in the first step after the capture, as any test with one adapter would find. When the pages have changed
hands it computes with whatever lies there, and nothing in it could notice. The comparison with the reference does, and
finds nothing wrong with the real operator in the same steps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from definitions import definitions
from definitions.lora import lora
from gpu_engine import gpu_engine
from lorad import Engine, Request
from lorad.kernels.lora.table import Table
from lorad.models.open import open_model
from make_adapter import make_adapter
from oracle import oracle
from tiny import make_tiny

RANKS = {"first": 16, "second": 24, "third": 8}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, config = tmp_path_factory.mktemp("adapters"), open_model(base).config
    return {name: make_adapter(folder / name, config, rank=rank, seed=rank) for name, rank in RANKS.items()}


def baked_lora(y: Tensor, x: Tensor, arena: Tensor, table: Table, *rest: Any) -> None:
    """Knows on the host where adapters lie. Tags are looked at as ever: the slot's adapter is the right one."""
    spans, scales, runs = (torch.from_numpy(of.numpy().copy()) for of in (table.spans, table.scales, table.runs))
    lora(y, x, arena, table._replace(spans=spans, scales=scales, runs=runs), *rest)


def answers(engine: Engine, names: Sequence[str], seed: int) -> list[Request]:
    """One after the other."""
    dice, asked = random.Random(seed), []
    for name in names:
        asked.append(engine.add([dice.randrange(256) for _ in range(4)], name, max_tokens=8, stop_token_ids=()))
        while engine.step():
            pass
    return asked


def right(base: Path, adapters: dict[str, Path], request: Request) -> bool:
    wanted = oracle(base).greedy(request.prompt, 8, adapters[request.model])
    return tuple(request.tokens) == wanted.tokens


def engine_of(base: Path, adapters: dict[str, Path], *, baked: bool) -> Engine:
    """Room for one adapter; its graphs are captured when the first one is there."""
    operators = definitions()
    if baked:
        operators = operators._replace(lora=baked_lora)
    return gpu_engine(
        base, adapters, operators=operators, capture_seconds=-1, max_num_seqs=1, kv_cache_memory_bytes=224 << 10
    )


@pytest.mark.parametrize("baked", [False, True], ids=["by the table", "baked"])
def test_addresses_that_a_graph_keeps_are_found_out(base: Path, adapters: dict[str, Path], baked: bool) -> None:
    engine = engine_of(base, adapters, baked=baked)
    assert right(base, adapters, answers(engine, ["first"], 0)[0]), "started kernel by kernel"
    while engine.use_idle():
        pass
    graphs = engine.worker.graphs  # type: ignore[attr-defined]
    assert right(base, adapters, answers(engine, ["first"], 1)[0]) and graphs.replays, "replayed, nothing has moved"
    later = answers(engine, ["second", "first", "third", "second"], 2)
    assert [request.finish for request in later] == ["length"] * 4, "nothing in the operator could notice"
    assert engine.stats().evictions >= 3
    assert [right(base, adapters, request) for request in later] == [not baked or r.model == "first" for r in later]
    engine.close()
