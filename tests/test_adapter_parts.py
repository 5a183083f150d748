"""What adapters may have beside A and B, against transformers + PEFT in fp32: DoRA, biases, embedding and head.

Adapters are PEFT's own files; the reference is teacher-forced, as in `test_mixed_batch`, on a base of its own for each
adapter. One batch mixes all of a family's adapters with plain ones and base rows. The file runs once for each
instruction level.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from answering import TOKENS, Answers, Asked, answers
from lorad import _core
from lorad.adapters.check import CheckedAdapter
from lorad.adapters.image import build_image
from lorad.adapters.load import load_adapter
from lorad.adapters.name import NAME_LENGTH_MAX
from lorad.models.open import open_model
from lorad.models.values import values
from lorad.models.weights import Weights
from make_adapter import edit_tensors
from oracle import Oracle, load_reference
from tiny import WIDE, make_tiny, make_tiny_dequantised, make_tiny_gguf
from trained_adapter import Reference, references_of, train

Options = dict[str, Any]

PLAIN: Options = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
PARTS: dict[str, Options] = {
    "plain": PLAIN,
    "dora": {**PLAIN, "use_dora": True},
    "dora, some": {"target_modules": ["q_proj", "v_proj", "down_proj"], "use_dora": True, "r": 3, "use_rslora": True},
    "bias of B": {**PLAIN, "lora_bias": True, "r": 31},
}
VOCABULARY: dict[str, Options] = {
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "head": {"target_modules": ["lm_head", "v_proj"], "r": 5},
    "both, dora": {"target_modules": ["embed_tokens", "lm_head", "o_proj"], "use_dora": True, "r": 17},
    "only both": {"target_modules": ["embed_tokens", "lm_head"], "rank_pattern": {"lm_head": 3}},
    "tied": {"target_modules": ["embed_tokens", "k_proj"], "ensure_weight_tying": True},
    "head, bias of B": {"target_modules": ["lm_head", "down_proj"], "lora_bias": True},
}
TRAINED: dict[str, Options] = {
    "whole embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "whole head": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"], "use_dora": True},
    "whole both": {"target_modules": ["o_proj"], "modules_to_save": ["embed_tokens", "lm_head"], "lora_bias": True},
    "tokens": {"target_modules": ["q_proj", "down_proj"], "trainable_token_indices": [70, 5, 101, 102, 103]},
    "tokens of the head": {"target_modules": ["k_proj"], "trainable_token_indices": {"lm_head": [9, 40]}},
    "tokens of both": {
        "target_modules": ["k_proj"],
        "trainable_token_indices": {"embed_tokens": [9, 100], "lm_head": [9, 40, 41]},
    },
    "same tokens of both": {
        "target_modules": ["up_proj"],
        "trainable_token_indices": {"embed_tokens": [9, 100], "lm_head": [9, 100]},
    },
}
"""Rows of the embedding and the head themselves."""
BIASES: dict[str, Options] = {
    "all biases": {"target_modules": ["q_proj", "up_proj"], "bias": "all"},
    "biases of pairs": {"target_modules": ["k_proj", "gate_proj"], "bias": "lora_only", "r": 2},
    "dora, all biases": {"target_modules": ["k_proj", "v_proj", "o_proj"], "bias": "all", "use_dora": True},
    "both biases": {"target_modules": ["q_proj", "v_proj", "down_proj"], "bias": "all", "lora_bias": True},
}
"""For families whose q, k and v have biases."""
ALL = PARTS | VOCABULARY | TRAINED


class Case(NamedTuple):
    """A tiny model."""

    family: str
    changes: Options
    parts: dict[str, Options]


CASES = {
    "llama": Case("llama", {}, ALL),
    "llama untied": Case("llama", {"tie_word_embeddings": False}, ALL),
    "qwen2": Case("qwen2", {}, ALL | BIASES),
    "gemma3": Case("gemma3", {"sliding_window": 24, "sliding_window_pattern": 2}, ALL),
}


class Tiny(NamedTuple):
    """A case on the disk."""

    base: Path
    adapters: dict[str, Path]
    references: dict[str, Reference]


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make(CASES[request.param], tmp_path_factory.mktemp("parts"))


def make(case: Case, folder: Path) -> Tiny:
    base = make_tiny(folder / "base", case.family, seed=list(CASES.values()).index(case), **case.changes)
    adapters = {
        name: train(base, folder / name, seed=seed, **options)
        for seed, (name, options) in enumerate(case.parts.items())
    }
    return Tiny(base, adapters, references_of(base, adapters))


def prompts(names: list[str], seed: int, lengths: tuple[int, ...] = (1, 2, 7, 17, 33, 90)) -> Asked:
    """(adapter or nothing, prompt): each adapter once, the base twice."""
    dice = random.Random(seed)
    models = [*names, "", ""]
    dice.shuffle(models)
    return [
        (model, [dice.randrange(3, 250) for _ in range(lengths[i % len(lengths)])]) for i, model in enumerate(models)
    ]


def off(reference: Reference, prompt: list[int], answer: tuple[list[int], list[float]]) -> tuple[float, float]:
    """How much the reference prefers its own tokens, and the largest difference of log-probabilities."""
    tokens, logprobs = answer
    read = [*prompt, *tokens[:-1]]
    wanted = reference.logprobs(read)[len(prompt) - 1 :]
    chosen = wanted[torch.arange(TOKENS), tokens]
    return float((wanted.max(dim=-1).values - chosen).max()), float((chosen - torch.tensor(logprobs)).abs().max())


def agree(references: dict[str, Reference], asked: Asked, got: Answers, gap: float = 1e-3, worst: float = 1e-3) -> None:
    for (name, prompt), answer in zip(asked, got, strict=True):
        found = off(references[name], prompt, answer)
        assert found[0] < gap and found[1] < worst, (name, len(prompt), found)


@pytest.mark.parametrize(("tokens", "page"), [(12, 16), (40, 4), (512, 16)], ids=["12", "40 pages of 4", "whole"])
def test_mixed_batches_agree_with_the_reference(tiny: Tiny, tokens: int, page: int) -> None:
    asked = prompts(list(tiny.adapters), tokens)
    agree(
        tiny.references, asked, answers(tiny.base, tiny.adapters, asked, max_num_batched_tokens=tokens, block_size=page)
    )


def test_each_part_says_something(tiny: Tiny) -> None:
    """The reference of each adapter is far from any other's: agreeing with one is worth something."""
    prompt = list(range(40, 60))
    answered = answers(tiny.base, tiny.adapters, [(name, prompt) for name in tiny.adapters])
    names = [*tiny.adapters]
    for name, after, answer in zip(names, [*names[1:], names[0]], answered, strict=True):
        for other in (name, after, ""):
            assert (off(tiny.references[other], prompt, answer)[1] < 1e-3) == (name == other), (name, other)


def test_deterministic_bits_are_the_same_in_company(tiny: Tiny) -> None:
    asked = prompts(list(tiny.adapters), 5)
    together = answers(tiny.base, tiny.adapters, asked, deterministic=True, max_num_batched_tokens=512)
    chunked = answers(tiny.base, tiny.adapters, asked, deterministic=True, max_num_batched_tokens=10)
    alone = answers(tiny.base, tiny.adapters, asked, deterministic=True, max_num_seqs=1, threads=1)
    assert together == alone
    assert chunked == alone


def test_cached_prefixes_and_a_small_pool_change_nothing(tiny: Tiny) -> None:
    asked = [one for one in prompts(list(tiny.adapters), 6, (1, 9, 30)) for _ in range(2)]
    options = {"max_num_batched_tokens": 24, "max_num_seqs": 3, "block_size": 4, "kv_cache_memory_bytes": 3 << 18}
    agree(tiny.references, asked, answers(tiny.base, tiny.adapters, asked, **options))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q6_K"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_quantised_bases_agree_with_their_values(family: str, kind: str, tmp_path: Path) -> None:
    """Quantised weights as they are; what magnitudes and biases refer to are the values that they stand for."""
    plain = make_tiny(tmp_path / "plain", family, seed=9, **WIDE)
    path = make_tiny_gguf(plain, tmp_path / "tiny.gguf", kind)
    reference = make_tiny_dequantised(plain, tmp_path / "dequantised", kind)
    parts = CASES[family].parts
    adapters = {
        name: train(reference, tmp_path / name, seed=seed, **options)
        for seed, (name, options) in enumerate(parts.items())
    }
    references = references_of(reference, adapters)
    asked = prompts(list(adapters), 7, (1, 40, 100))
    got = answers(path, adapters, asked, dequantize=True)
    agree(references, asked, got)
    # Activations of 8 bits and tiles of bf16: `test_random_mixes` has these tolerances.
    for tokens in (20, 512):
        agree(
            references, asked, answers(path, adapters, asked, dequantize=False, max_num_batched_tokens=tokens), 2.0, 2.0
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bases_and_adapters_of_16_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    """Of adapters in bf16, groups of many tokens go through tiles where the CPU has them."""
    base = make_tiny(tmp_path / "base", "qwen2", seed=4, dtype=dtype)
    adapters = {}
    for seed, (name, options) in enumerate(CASES["qwen2"].parts.items()):
        path = train(base, tmp_path / name, seed=seed, **options)
        edit_tensors(path, lambda tensors: {key: value.to(dtype) for key, value in tensors.items()})
        adapters[name] = path
    references = references_of(base, adapters)
    asked = prompts(list(adapters), 8, (150, 3, 70, 1))
    for tokens in (30, 2048):
        agree(references, asked, answers(base, adapters, asked, max_num_batched_tokens=tokens), 5e-3, 5e-3)


def combination(dice: random.Random, *, has_biases: bool, is_tied: bool) -> Options:
    """Any parts that PEFT has together."""
    free = ["embed_tokens", "lm_head"]
    options: Options = {"r": dice.choice([1, 4, 8, 19]), "use_rslora": dice.random() < 0.3}
    dice.shuffle(free)
    if dice.random() < 0.4:
        options["modules_to_save"] = [free.pop()]
    if free and dice.random() < 0.4:
        name = free.pop()
        options["trainable_token_indices"] = {name: dice.sample(range(3, 250), dice.randint(1, 6))}
        if is_tied and name == "embed_tokens":
            if "lm_head" in options.get("modules_to_save", []):
                del options["modules_to_save"]
            free = []  # the head's rows are trained too
    kind = dice.choice(["", "use_dora", "lora_bias"])
    options |= {kind: True} if kind else {}
    if kind == "lora_bias" and "embed_tokens" in free:
        free.remove("embed_tokens")
    targets = [*PLAIN["target_modules"], *free]
    options["target_modules"] = dice.sample(targets, dice.randint(1, len(targets)))
    if has_biases:
        options["bias"] = dice.choice(["none", "all", "lora_only"])
    return options


@pytest.mark.parametrize("seed", range(int(os.environ.get("LORAD_MIXES", "3"))))
def test_random_combinations_agree_with_the_reference(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    family, is_tied = dice.choice(["llama", "qwen2", "qwen3", "gemma3"]), dice.random() < 0.5
    base = make_tiny(tmp_path / "base", family, seed=seed, tie_word_embeddings=is_tied)
    adapters = {}
    for number in range(7):
        options = combination(dice, has_biases=family == "qwen2", is_tied=is_tied)
        name = f"{number}: {options}"[:NAME_LENGTH_MAX]
        adapters[name] = train(base, tmp_path / str(number), seed=number, **options)
    asked = prompts(list(adapters), seed)
    options = {"max_num_batched_tokens": dice.choice([16, 60, 512]), "deterministic": dice.random() < 0.3}
    agree(references_of(base, adapters), asked, answers(base, adapters, asked, **options))


@pytest.mark.slow
def test_the_embedded_base(smollm2_gguf: Path, tmp_path: Path) -> None:
    """Many pages, a vocabulary of 49,152, q and k in llama.cpp's order; as it's served, 4 bits and 8, near that."""
    targets = [*PLAIN["target_modules"], "embed_tokens", "lm_head"]
    adapters = {"dora": train(smollm2_gguf, tmp_path, strength=0.1, target_modules=targets, use_dora=True)}
    own = Oracle(load_reference(smollm2_gguf))
    references = {"dora": Reference(own, adapters["dora"]), "": Reference(own, None)}
    asked = prompts(list(adapters), 0, (3, 70))
    options = {"max_model_len": 512, "kv_cache_memory_bytes": 128 << 20}
    agree(references, asked, answers(smollm2_gguf, adapters, asked, **options))
    agree(references, asked, answers(smollm2_gguf, adapters, asked, dequantize=False, **options), 1.0, 1.0)


@pytest.mark.skipif("LORAD_CPU" in os.environ, reason="this is the run for another level")
@pytest.mark.parametrize("level", _core.cpu_levels())
def test_every_level_passes(level: str) -> None:
    """This file under another instruction level, which a process chooses once."""
    if level == _core.cpu_features()["level"]:
        pytest.skip("this run's own")
    only = ["-k", "16_bits or combinations"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *only, __file__]
    environment = {**os.environ, "LORAD_CPU": level, "LORAD_MIXES": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_level_is_the_one_asked_for() -> None:
    level = _core.cpu_features()["level"]
    assert level == os.environ.get("LORAD_CPU", level)


class Loaded(NamedTuple):
    """A base, and adapters of it by the name of their parts."""

    base: Weights
    paths: dict[str, Path]

    def load(self, name: str) -> CheckedAdapter:
        base = partial(values, self.base)
        return load_adapter(name, self.paths[name], self.base.config, self.base.digest, base=base)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("loaded")
    base = make_tiny(folder / "base", "qwen2", seed=2)
    parts = {
        name: (ALL | BIASES)[name] for name in ("both, dora", "bias of B", "all biases", "tokens", "whole embedding")
    }
    return Loaded(open_model(base), {name: train(base, folder / name, **options) for name, options in parts.items()})


@pytest.mark.parametrize("name", ["both, dora", "bias of B", "all biases", "tokens", "whole embedding"])
def test_images_hold_vectors(loaded: Loaded, name: str) -> None:
    checked = loaded.load(name)
    image = build_image(checked, 1024)
    data = np.empty((image.layout.pages, 1024), np.uint8)
    image.read(0, data)
    assert image.layout.weight_bytes == checked.bytes
    for lora in checked.modules:
        found = {part: np.zeros(lora.b.shape[0], np.float32) for part in ("gain", "bias")}
        for page, offset, part, _, _, begin, length in image.layout.chunks(lora.layer, lora.module):
            if part in found:
                found[part][begin : begin + length] = data[page, offset : offset + 4 * length].view(np.float32)
        for part, vector in (("gain", lora.gain), ("bias", lora.bias)):
            assert np.array_equal(found[part], np.zeros_like(found[part]) if vector is None else vector.numpy())


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("both, dora", "lora_magnitude_vector"),
        ("both, dora", "lm_head.lora_A"),
        ("bias of B", "lora_B.bias"),
        ("all biases", "k_proj.bias"),
        ("tokens", "trainable_tokens_delta"),
        ("whole embedding", "embed_tokens.weight"),
    ],
)
def test_generations_cover_every_part(loaded: Loaded, name: str, key: str, tmp_path: Path) -> None:
    before = loaded.load(name).generation
    assert loaded.load(name).generation == before
    path = shutil.copytree(loaded.paths[name], tmp_path / "changed")

    def one_bit(tensors: dict[str, torch.Tensor]) -> None:
        next(tensor for name, tensor in tensors.items() if key in name).view(torch.int32).view(-1)[5] ^= 1 << 20

    edit_tensors(path, one_bit)
    assert Loaded(loaded.base, {name: path}).load(name).generation != before


def test_spellings_of_magnitudes(loaded: Loaded, tmp_path: Path) -> None:
    """PEFT saves them without `.weight`; other writers, and adapters' names inside keys, are as good."""
    before = loaded.load("both, dora").generation
    for number, end in enumerate((".weight", ".default", ".default.weight")):
        path = shutil.copytree(loaded.paths["both, dora"], tmp_path / str(number))
        adapter = ".default" if "default" in end else ""
        spell = {"magnitude_vector": f"magnitude_vector{end}", "embedding_A": f"embedding_A{adapter}"}
        spell |= {"embedding_B": f"embedding_B{adapter}"}
        spell |= {f"lora_{half}.weight": f"lora_{half}{adapter}.weight" for half in "AB"}

        def spelt(key: str, spell: dict[str, str] = spell) -> str:
            return next((key.replace(old, new) for old, new in spell.items() if key.endswith(old)), key)

        edit_tensors(path, lambda tensors, spelt=spelt: {spelt(key): value for key, value in tensors.items()})
        assert Loaded(loaded.base, {"a": path}).load("a").generation == before
