"""Checking an adapter against the base: every tensor ends up in force, or is the reason of a refusal."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.adapters.keys import explain, parse_key, pattern_path, vocabulary_rows
from lorad.adapters.peft_config import PeftConfig, parse_config
from lorad.adapters.read import AdapterFiles
from lorad.adapters.reject import readable, reject
from lorad.adapters.targets import check_targets
from lorad.lazy import torch
from lorad.models.config import ModelConfig, Module
from lorad.models.elements import element_of
from lorad.models.safetensors_file import FLOATS, Entry

__all__ = ["CheckedAdapter", "ModuleLora", "check_adapter"]

_SHOWN = 3
"""Keys that a message lists before it only counts them."""


class Pair(NamedTuple):
    """One adapted module, before its weights are read."""

    layer: int
    module: int
    rank: int
    scale: float
    a_key: str
    b_key: str


def check_adapter(
    name: str,
    files: AdapterFiles,
    config: ModelConfig,
    base_digest: str,
    *,
    max_lora_rank: int,
    allow_no_effect: bool = False,
) -> CheckedAdapter:
    """The adapter as it will be in force. Shapes are checked before any weight is read."""
    _check_vocabulary(files, config)
    peft = parse_config(files.config)
    pairs = _pairs(files, config, peft, max_lora_rank)
    warnings = (*check_targets(files.config, [pair.a_key for pair in pairs], config), *peft.unused())
    for key, entry in files.entries.items():
        if entry.dtype not in FLOATS:
            raise reject("adapter_dtype", f"tensor {key} is of type {entry.dtype}; supported: {', '.join(FLOATS)}")
    tensors = files.load()
    for key, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise reject("adapter_not_finite", f"tensor {key} has NaN or infinite values")
    widest = _widest(tensor.dtype for tensor in tensors.values())
    modules = tuple(
        ModuleLora(
            pair.layer,
            pair.module,
            pair.rank,
            pair.scale,
            tensors[pair.a_key].to(widest).contiguous(),
            tensors[pair.b_key].to(widest).contiguous(),
        )
        for pair in pairs
    )
    if not allow_no_effect and not any(_has_effect(module) for module in modules):
        raise reject("adapter_no_effect", "it has no effect: A, B or the scale is zero in every module")
    element = element_of(widest)
    return CheckedAdapter(
        name, _generation(base_digest, element, modules), element, modules, tuple(map(readable, warnings))
    )


def _check_vocabulary(files: AdapterFiles, config: ModelConfig) -> None:
    for key, entry in files.entries.items():
        rows = vocabulary_rows(key, entry)
        if rows is not None and rows != config.vocab:
            raise reject(
                "adapter_added_tokens",
                f"tensor {key} has {rows} rows, the base {config.vocab}: it was trained with added tokens, which "
                "aren't supported",
            )
    if files.token_ids and files.token_ids[-1] >= config.vocab:
        raise reject(
            "adapter_added_tokens",
            f"the tokenizer in the folder has the added token {files.token_ids[-1]}, the base has {config.vocab} "
            "tokens: added tokens aren't supported",
        )


def _pairs(files: AdapterFiles, config: ModelConfig, peft: PeftConfig, max_lora_rank: int) -> list[Pair]:
    """Every tensor assigned to a module of the base, in order of (layer, module)."""
    numbers = {module.name: number for number, module in enumerate(config.modules())}
    halves: dict[tuple[int, int], dict[str, str]] = {}
    names: dict[str, str] = {}
    unknown: list[str] = []
    for key in files.entries:
        target = parse_key(key)
        if target is None:
            unknown.append(key)
            continue
        if target.layer >= config.layers:
            raise reject("adapter_shape", f"tensor {key} is for layer {target.layer}, the base has {config.layers}")
        other = names.setdefault(target.adapter, key)
        if len(names) > 1:
            first = next(iter(names.values()))
            raise reject("adapter_tensor", f"tensors {first} and {other} belong to two adapters in one file")
        found = halves.setdefault((target.layer, numbers[target.name]), {})
        if target.half in found:
            raise reject("adapter_tensor", f"tensors {found[target.half]} and {key} are for the same module")
        found[target.half] = key
    if unknown:
        code, reason = explain(unknown[0], config)
        more = "" if len(unknown) == 1 else f" ({len(unknown)} such tensors: {', '.join(unknown[:_SHOWN])}, …)"
        raise reject(code, f"tensor {unknown[0]} {reason}{more}")
    if not halves:
        raise reject("adapter_tensor", "its file holds no tensors")
    return [
        _pair(files, config.modules()[place[1]], place, found, peft, max_lora_rank)
        for place, found in sorted(halves.items())
    ]


def _pair(
    files: AdapterFiles,
    module: Module,
    place: tuple[int, int],
    found: dict[str, str],
    peft: PeftConfig,
    max_lora_rank: int,
) -> Pair:
    if len(found) != 2:
        (half, key), missing = next(iter(found.items())), "B" if "A" in found else "A"
        raise reject("adapter_pair", f"tensor {key} is lora_{half} without its lora_{missing}")
    a_key, b_key = found["A"], found["B"]
    a, b = files.entries[a_key], files.entries[b_key]
    for key, entry in ((a_key, a), (b_key, b)):
        if len(entry.shape) != 2:
            raise reject("adapter_shape", f"tensor {key} has the shape {list(entry.shape)}, wants two dimensions")
    path = pattern_path(a_key)
    rank = peft.rank_of(path)
    _check_shape(a_key, a, (a.shape[0], module.in_features), "[rank, in]")
    _check_shape(b_key, b, (module.out_features, b.shape[1]), "[out, rank]")
    if a.shape[0] != b.shape[1]:
        raise reject("adapter_shape", f"tensor {a_key} has rank {a.shape[0]}, its lora_B {b.shape[1]}")
    if a.shape[0] != rank:
        raise reject("adapter_rank", f"tensor {a_key} has rank {a.shape[0]}, adapter_config.json says {rank}")
    if rank > max_lora_rank:
        raise reject(
            "adapter_rank_limit",
            f"tensor {a_key} has rank {rank}, at most {max_lora_rank} is allowed; raise it with --max-lora-rank",
        )
    return Pair(*place, rank, peft.scale_of(path, rank), a_key, b_key)


def _check_shape(key: str, entry: Entry, wanted: tuple[int, int], meaning: str) -> None:
    if entry.shape != wanted:
        raise reject(
            "adapter_shape",
            f"tensor {key} has the shape {list(entry.shape)}, the base wants {list(wanted)} {meaning}: the adapter was "
            "trained on another base",
        )


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The number type that holds all of them exactly."""
    found = set(dtypes)
    return found.pop() if len(found) == 1 else torch.float32


def _has_effect(module: ModuleLora) -> bool:
    return module.scale != 0 and bool(module.a.any()) and bool(module.b.any())


def _generation(base_digest: str, element: str, modules: tuple[ModuleLora, ...]) -> str:
    """Over all that is in force, and nothing else: names, key spellings and the file's order have no say."""
    state = hashlib.sha256(f"lorad adapter 1\n{base_digest}\n{element}\n".encode())
    for module in modules:
        out, rank = module.b.shape
        state.update(struct.pack("<5qf", module.layer, module.module, rank, module.a.shape[1], out, module.scale))
        for part in (module.a, module.b):
            state.update(part.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()[:32]
