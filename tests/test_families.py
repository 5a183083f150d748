"""Families beside Llama against transformers + PEFT in fp32: windows, biases, norms, rotary tables, odd shapes.

Every case takes mixed adapters on all linear modules, in steps of several sizes; the reference is teacher-forced, as in
`test_mixed_batch`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from answering import TOKENS, answers
from lorad.models.linear import make_linear
from lorad.models.open import open_model
from lorad.models.operators import Operators
from lorad.models.weights import RawTensor
from make_adapter import make_adapter
from oracle import oracle
from tiny import make_tiny, make_tiny_gguf

RANKS = (2, 8, 31)
LENGTHS = (1, 2, 7, 8, 17, 33, 64, 90)


class Case(NamedTuple):
    """A tiny model."""

    family: str
    seed: int
    changes: dict[str, Any]


ODD = {"hidden_size": 40, "intermediate_size": 52, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12}
"""Nothing is a multiple of 8; head_dim isn't hidden / heads."""
HALF = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
"""The first layer sees all, the others a window."""
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
}
CASES = {
    "mistral": Case("mistral", 1, {"sliding_window": None}),
    "mistral window": Case("mistral", 2, {"sliding_window": 24, "tie_word_embeddings": False}),
    "mistral window of one page, MHA": Case("mistral", 3, {"sliding_window": 16, "num_key_value_heads": 4}),
    "mistral small window, odd": Case("mistral", 4, {"sliding_window": 5, **ODD}),
    "qwen2": Case("qwen2", 5, {"tie_word_embeddings": False}),
    "qwen2 windows, MHA": Case("qwen2", 6, {"num_key_value_heads": 4, **HALF}),
    "qwen2 odd": Case(
        "qwen2", 7, {"hidden_size": 36, "intermediate_size": 52, "num_attention_heads": 6, "num_key_value_heads": 3}
    ),
    "qwen3": Case("qwen3", 8, {"head_dim": 24}),
    "qwen3 untied, MHA": Case("qwen3", 9, {"tie_word_embeddings": False, "num_key_value_heads": 4}),
    "qwen3 odd, windows": Case("qwen3", 10, {**ODD, **HALF, "rope_parameters": {"rope_theta": 1e6}}),
    "gemma3": Case("gemma3", 11, {"sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 40}),
    "gemma3 scaled": Case(
        "gemma3",
        12,
        {"sliding_window": 9, "sliding_window_pattern": 3, "rope_parameters": GEMMA_ROPE, "tie_word_embeddings": False},
    ),
    "gemma3 odd": Case("gemma3", 13, {"sliding_window": 30, "sliding_window_pattern": 2, **ODD}),
}


class Tiny(NamedTuple):
    """A case on the disk."""

    base: Path
    adapters: dict[str, Path]


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    case, folder = CASES[request.param], tmp_path_factory.mktemp("family")
    base = make_tiny(folder / "base", case.family, seed=case.seed, **case.changes)
    config = open_model(base).config
    adapters = {f"r{rank}": make_adapter(folder / f"r{rank}", config, rank=rank, seed=rank) for rank in RANKS}
    return Tiny(base, adapters)


def prompts(seed: int) -> list[tuple[str, list[int]]]:
    """(adapter or nothing, prompt): each length once."""
    dice = random.Random(seed)
    models = ["", "", "r2", "r2", "r8", "r8", "r31", "r31"]
    dice.shuffle(models)
    return [
        (model, [dice.randrange(3, 250) for _ in range(length)]) for model, length in zip(models, LENGTHS, strict=True)
    ]


def agree(
    reference: Path, adapters: dict[str, Path], asked: list[tuple[str, list[int]]], got: list[Any], name: str = ""
) -> None:
    """The reference's best tokens, log-probabilities within the tolerance."""
    for (model, prompt), (tokens, logprobs) in zip(asked, got, strict=True):
        read = [*prompt, *tokens[:-1]]
        wanted = oracle(reference).logprobs(read, adapters.get(model))[len(prompt) - 1 :]
        assert tokens == wanted.argmax(dim=-1).tolist(), (name, model, len(prompt))
        chosen = wanted[torch.arange(TOKENS), tokens]
        assert float((chosen - torch.tensor(logprobs)).abs().max()) < 1e-3, (name, model, len(prompt))


@pytest.mark.parametrize(("tokens", "page"), [(12, 16), (40, 4), (512, 16)], ids=["12", "40 pages of 4", "whole"])
def test_mixed_batches_agree_with_the_reference(tiny: Tiny, tokens: int, page: int) -> None:
    asked = prompts(tokens)
    got = answers(tiny.base, tiny.adapters, asked, max_num_batched_tokens=tokens, block_size=page)
    agree(tiny.base, tiny.adapters, asked, got)


def test_chunks_and_company_change_no_token(tiny: Tiny) -> None:
    asked = prompts(3)
    together = answers(tiny.base, tiny.adapters, asked, max_num_batched_tokens=512)
    chunked = answers(tiny.base, tiny.adapters, asked, max_num_batched_tokens=10)
    alone = [answers(tiny.base, tiny.adapters, [one])[0] for one in asked[-3:]]
    assert [tokens for tokens, _ in chunked] == [tokens for tokens, _ in together]
    assert [tokens for tokens, _ in alone] == [tokens for tokens, _ in together[-3:]]


def test_cached_prefixes_and_a_small_pool_change_nothing(tiny: Tiny) -> None:
    """Each prompt twice, few at a time: the second finds the first one's pages, and adapters make way for others."""
    asked = [one for one in prompts(5) for _ in range(2)]
    options = {"max_num_batched_tokens": 24, "max_num_seqs": 3, "block_size": 4, "kv_cache_memory_bytes": 3 << 18}
    agree(tiny.base, tiny.adapters, asked, answers(tiny.base, tiny.adapters, asked, **options))


GGUF = {"llama": "mistral", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
"""By llama.cpp's architecture, the family that is written so."""
GGUF_CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"sliding_window": None, "tie_word_embeddings": False},
    "qwen2": {},
    # transformers' reader of GGUF takes its class's head_dim, whatever the file says.
    "qwen3": {"head_dim": 128, "tie_word_embeddings": False},
    # A file says neither pattern nor scale: every sixth layer and the head's are meant. transformers' reader takes 256.
    "gemma3": {"num_hidden_layers": 7, "sliding_window": 20, "head_dim": 256, "num_attention_heads": 2},
}


@pytest.fixture(scope="module", params=GGUF)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch = request.param
    return make_tiny(tmp_path_factory.mktemp(arch) / "model", GGUF[arch], seed=20, **GGUF_CHANGES[arch])


def test_gguf_agrees_with_its_folder(folder: Path, tmp_path: Path) -> None:
    path = make_tiny_gguf(folder, tmp_path / "tiny.gguf", "F32")
    adapters = {"r8": make_adapter(tmp_path / "r8", open_model(folder).config)}
    asked = [(model if model == "r8" else "", prompt) for model, prompt in prompts(1)]
    agree(folder, adapters, asked, answers(path, adapters, asked, max_num_batched_tokens=40))


def test_quantised_gguf_agrees_with_the_reference_on_it(folder: Path, tmp_path: Path) -> None:
    path = make_tiny_gguf(folder, tmp_path / "tiny.gguf", "Q8_0")
    asked = [("", prompt) for _, prompt in prompts(2)]
    agree(path, {}, asked, answers(path, {}, asked, max_num_batched_tokens=40))


def test_biases_of_a_quantised_product() -> None:
    """The bias is added whatever operator the weight's number type takes."""
    import gguf

    rng = np.random.default_rng(0)
    bias = rng.standard_normal(24).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    raw = gguf.quants.quantize(rng.standard_normal((24, 64)).astype(np.float32), kind)
    weight = RawTensor("Q8_0", raw, (24, 64))
    biases = [RawTensor("F32", bias.view(np.uint8).reshape(1, -1), (24,))]
    x = rng.standard_normal((5, 64)).astype(np.float32)
    plain, with_bias = np.empty((5, 24), dtype=np.float32), np.empty((5, 24), dtype=np.float32)
    for dequantize in (False, True):
        make_linear([weight], (), Operators(), dequantize=dequantize)(plain, x)
        linear = make_linear([weight], biases, Operators(), dequantize=dequantize)
        linear(with_bias, x)
        assert np.array_equal(with_bias, plain + bias)
        assert linear.bytes == make_linear([weight], (), Operators(), dequantize=dequantize).bytes + bias.nbytes
