"""What a GPU worker takes is known before, and what can't fit is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import interpreted  # noqa: F401 - before Triton
from gpu_engine import gpu_engine
from lorad.config import EngineConfig
from lorad.errors import InvalidRequest
from lorad.worker.gpu.memory import Memory
from lorad.worker.gpu.worker import GpuWorker
from lorad.worker.limits import Limits
from lorad.worker.ops import PageGeometry
from tiny import FAMILIES, WIDE, make_tiny, make_tiny_gguf

sys.path.append(str(Path(__file__).parents[1] / "benches" / "gpu"))
from synthetic import LLAMA_3_8B, SyntheticWeights

PARTS = Memory(weights=100, pages=50, activations=5, workspaces=3, table=2, graphs=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_what_is_taken(family: str, tmp_path: Path) -> None:
    """Of each part, but for weights: norms are f32 whatever the others are, which is f32 here too."""
    base = make_tiny(tmp_path / family, family, tie_word_embeddings=family != "qwen3")
    engine = gpu_engine(base, {}, graphs=False, max_num_seqs=5, max_num_batched_tokens=40)
    worker = engine.worker
    assert isinstance(worker, GpuWorker)
    model, told, table = worker.model, worker.memory, worker.table.table
    assert told.pages == worker.arena.nbytes
    assert told.table == sum(part.nbytes for part in (table.tags, table.spans, table.scales, table.runs))
    of_tokens = (model.hidden, model.normed, model.branch, model.qkv, model.attention, model.gate_up, model.gated)
    of_rows = (model.last, model.last_branch, model.logits)
    assert told.activations == sum(part.nbytes for part in (*of_tokens, *of_rows))
    assert told.workspaces == model.workspace_bytes
    assert 0 <= told.weights - model.bytes < 0.02 * told.weights, "norms and biases"
    assert told.graphs == 0 and told.total == sum(told)
    engine.close()


def test_what_fits_is_taken() -> None:
    PARTS.check(160)


@pytest.mark.parametrize(("free", "most"), [(159, "at most 49"), (111, "at most 1 ")])
def test_a_pool_that_is_too_large_is_refused_with_what_would_fit(free: int, most: str) -> None:
    with pytest.raises(InvalidRequest, match=most) as refusal:
        PARTS.check(free)
    assert (refusal.value.code, refusal.value.param) == ("device_memory", "kv_cache_memory_bytes")
    assert "weights 100, pages 50, activations 5" in str(refusal.value) and "graphs" not in str(refusal.value)


def test_a_model_that_is_too_large_is_refused_by_what_else_can_be_done() -> None:
    with pytest.raises(InvalidRequest, match="tensor_parallel_size"):
        PARTS.check(110)


def test_a_base_of_four_bits(tmp_path: Path) -> None:
    """Codes and scales, of which some are f16, and what its products pass sums in."""
    base = make_tiny_gguf(make_tiny(tmp_path / "tiny", **WIDE), tmp_path / "tiny.gguf", "Q4_0")
    engine = gpu_engine(base, {}, graphs=False, max_num_seqs=5, max_num_batched_tokens=40)
    worker = engine.worker
    assert isinstance(worker, GpuWorker)
    assert worker.memory.workspaces == worker.model.workspace_bytes
    assert worker.model.bytes <= worker.memory.weights < 1.4 * worker.model.bytes
    engine.close()


@pytest.mark.parametrize("four_bit", [False, True])
def test_an_eight_billion_model_on_one_gpu(four_bit: bool) -> None:
    """Llama 3.1 8B's shape: in bf16 16.06 GB, as its files have."""
    weights = SyntheticWeights(LLAMA_3_8B, torch.device("cpu"), four_bit=four_bit)
    config = EngineConfig(model="x", kv_cache_memory_bytes=40 << 30, max_num_seqs=64, max_num_batched_tokens=2048)
    limits = Limits.of(config, LLAMA_3_8B, PageGeometry.of(LLAMA_3_8B, 16, "bf16").page_bytes)
    asked = {"dequantize": False, "rank_max": 64, "runs": 1 << 20, "graphs": 1 << 29}
    memory = Memory.of(weights, limits, torch.bfloat16, **asked)
    assert limits.page_bytes == 2 << 20
    assert 6e9 < memory.weights < 8e9 if four_bit else memory.weights == 2 * 8_030_261_248
    assert memory.activations + memory.workspaces < 1 << 30
    memory.check(80 << 30)
    with pytest.raises(InvalidRequest, match="kv_cache_memory_bytes: at most"):
        memory.check((40 << 30) + memory.weights)
