"""Checking an adapter against the base: every tensor ends up in force, or is the reason of a refusal."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.adapters.copies import check_copies, copy_of
from lorad.adapters.declared_base import doubt
from lorad.adapters.derived import BaseValues, dora_gain
from lorad.adapters.keys import explain, parse_key, pattern_path, vocabulary_rows
from lorad.adapters.parts import NEED_BASE, check_parts, parse_part
from lorad.adapters.peft_config import PeftConfig, parse_config
from lorad.adapters.read import AdapterFiles
from lorad.adapters.reject import readable, reject
from lorad.adapters.size import Size
from lorad.adapters.targets import check_targets
from lorad.adapters.trained import rows_pair, trained_rows, whole_pair
from lorad.lazy import torch
from lorad.models.config import EMBED, HEAD, ModelConfig, Module
from lorad.models.elements import element_of
from lorad.models.safetensors_file import FLOATS, Entry

__all__ = ["CheckedAdapter", "ModuleLora", "check_adapter", "pairs_of"]

_SHOWN = 3
"""Keys that a message lists before it only counts them."""

_ROUNDING = 1e-5
"""A factor that is nearer to 1 has no effect."""


class Pair(NamedTuple):
    """One adapted module, before its weights are read."""

    layer: int
    module: int
    rank: int
    scale: float
    keys: dict[str, str]
    """Of its tensors, by part: A and B or neither, and those of `parts`."""


def check_adapter(
    name: str,
    files: AdapterFiles,
    config: ModelConfig,
    base_digest: str,
    *,
    max_lora_rank: int,
    allow_no_effect: bool = False,
    base: BaseValues | None = None,
) -> CheckedAdapter:
    """The adapter as it will be in force. Shapes are checked before any weight is read.

    `base` gives the base's weights, which some parts are checked against or computed with: without it they're refused.
    """
    _check_vocabulary(files, config)
    peft = parse_config(files.config)
    pairs, copies = pairs_of(files, config, peft, max_lora_rank)
    adapted = [pair.keys["A"] for pair in pairs if "A" in pair.keys]
    doubts = doubt(files.config.get("base_model_name_or_path"), config.name)
    warnings = (*check_targets(files.config, adapted, config), *peft.unused(), *doubts)
    for key, entry in files.entries.items():
        if entry.dtype not in FLOATS:
            raise reject("adapter_dtype", f"tensor {key} is of type {entry.dtype}; supported: {', '.join(FLOATS)}")
    tensors = files.load()
    for key, tensor in tensors.items():
        if not _is_finite(tensor):
            raise reject("adapter_not_finite", f"tensor {key} has NaN or infinite values")
    if base is None:
        needed = [key for pair in pairs for part, key in pair.keys.items() if part in NEED_BASE] + list(copies)
        if needed:
            raise reject("adapter_feature", f"tensor {needed[0]} can't be used without the base's weights")
        base = _no_base
    check_copies(copies, tensors, base)
    differences = any("whole" in pair.keys or "rows" in pair.keys for pair in pairs)
    widest = torch.float32
    if not differences:
        widest = _widest(tensors[pair.keys[half]].dtype for pair in pairs for half in "AB" if half in pair.keys)
    modules = tuple(_module(pair, config, peft, tensors, widest, base) for pair in pairs)
    for pair, module in zip(pairs, modules, strict=True):
        if not (size := Size.of(module)).fits:
            key = next(iter(pair.keys.values()))
            raise reject(
                "adapter_not_finite", f"tensor {key}: its values are too large to be computed with in f32: {size}"
            )
    if not allow_no_effect and not any(_has_effect(module) for module in modules):
        raise reject("adapter_no_effect", "it has no effect: B · A or the scale is zero in every module")
    element = element_of(widest)
    magnitudes = [tensors[pair.keys["magnitude"]] if "magnitude" in pair.keys else None for pair in pairs]
    generation = _generation(base_digest, element, modules, magnitudes)
    return CheckedAdapter(name, generation, element, modules, tuple(map(readable, warnings)))


def _no_base(name: str) -> NDArray[np.float32]:
    raise KeyError(name)


def _module(
    pair: Pair,
    config: ModelConfig,
    peft: PeftConfig,
    tensors: dict[str, torch.Tensor],
    widest: torch.dtype,
    base: BaseValues,
) -> ModuleLora:
    module, keys = config.adaptable()[pair.module], pair.keys
    weight = config.weight_name(pair.layer, module.name)
    gain = bias = None
    if "whole" in keys:
        a, b = whole_pair(module.name, tensors[keys["whole"]], base(weight))
    elif "rows" in keys:
        ids = trained_rows(peft, is_tied=config.tie_embeddings)[module.name].ids
        a, b = rows_pair(module.name, ids, tensors[keys["rows"]], base(weight))
    elif "A" in keys:
        a, b = (tensors[keys[half]].to(widest).contiguous() for half in "AB")
    else:
        a = torch.zeros((0, module.in_features), dtype=widest)
        b = torch.zeros((module.out_features, 0), dtype=widest)
    if "magnitude" in keys:
        key, is_table = keys["magnitude"], module.name == EMBED
        gain = dora_gain(key, base(weight), a, b, pair.scale, tensors[key], is_table=is_table)
    if "lora_bias" in keys:
        bias = tensors[keys["lora_bias"]].float() * pair.scale
    if "bias" in keys:
        trained = tensors[keys["bias"]].float() - torch.from_numpy(base(f"{weight}.bias"))
        bias = trained if bias is None else bias + trained
    if bias is not None and not bool(torch.isfinite(bias).all()):
        key = keys["bias" if "bias" in keys else "lora_bias"]
        raise reject("adapter_not_finite", f"tensor {key}: what it adds is beyond f32")
    return ModuleLora(pair.layer, pair.module, pair.rank, pair.scale, a, b, gain, bias)


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


def pairs_of(
    files: AdapterFiles, config: ModelConfig, peft: PeftConfig, max_lora_rank: int
) -> tuple[list[Pair], dict[str, str]]:
    """Every tensor assigned to a module of the base, in order of (layer, module); and those that are copies of the
    base's weights, with their canonical names."""
    modules = config.adaptable()
    numbers = {module.name: number for number, module in enumerate(modules)}
    places: dict[tuple[int, int], dict[str, str]] = {}
    names: dict[str, str] = {}
    unknown: list[str] = []
    copies: dict[str, str] = {}
    for key, entry in files.entries.items():
        target = parse_key(key) or parse_part(key)
        if target is None or (target.half == "whole" and target.name not in peft.whole):
            copied = copy_of(key, entry, config)
            if copied is None:
                unknown.append(key)
            else:
                copies[key] = copied
            continue
        if target.layer >= config.layers:
            raise reject("adapter_shape", f"tensor {key} is for layer {target.layer}, the base has {config.layers}")
        if target.half != "bias":  # it's the base's, and named without the adapter
            other = names.setdefault(target.adapter, key)
            if len(names) > 1:
                first = next(iter(names.values()))
                raise reject("adapter_tensor", f"tensors {first} and {other} belong to two adapters in one file")
        layer = config.layers - 1 if target.name == HEAD else target.layer
        found = places.setdefault((layer, numbers[target.name]), {})
        if target.half in found:
            raise reject("adapter_tensor", f"tensors {found[target.half]} and {key} are for the same module")
        found[target.half] = key
    if unknown:
        code, reason = explain(unknown[0], config)
        more = "" if len(unknown) == 1 else f" ({len(unknown)} such tensors: {', '.join(unknown[:_SHOWN])}, …)"
        raise reject(code, f"tensor {unknown[0]} {reason}{more}")
    if not places:
        raise reject("adapter_tensor", "its file holds no tensors")
    for name, rows in trained_rows(peft, is_tied=config.tie_embeddings).items():
        source = places.get((0 if rows.source == EMBED else config.layers - 1, numbers[rows.source]), {})
        place = (0 if name == EMBED else config.layers - 1, numbers[name])
        if name != rows.source and "rows" in source:
            found = places.setdefault(place, {})
            if "rows" in found:
                raise reject("adapter_tensor", f"tensors {source['rows']} and {found['rows']} are for the same tokens")
            found["rows"] = source["rows"]
    pairs = [
        _pair(files, modules[place[1]], place, found, peft, max_lora_rank) for place, found in sorted(places.items())
    ]
    check_parts(files, config, peft, {(pair.layer, pair.module): pair.keys for pair in pairs})
    return pairs, copies


def _pair(
    files: AdapterFiles,
    module: Module,
    place: tuple[int, int],
    found: dict[str, str],
    peft: PeftConfig,
    max_lora_rank: int,
) -> Pair:
    if ("A" in found) != ("B" in found):
        half, missing = ("A", "B") if "A" in found else ("B", "A")
        raise reject("adapter_pair", f"tensor {found[half]} is lora_{half} without its lora_{missing}")
    if "rows" in found:
        rank = files.entries[found["rows"]].shape[0]
        _check_rank(found["rows"], rank, max_lora_rank)
        return Pair(*place, rank, 1.0, found)
    if "A" not in found:
        return Pair(*place, min(module.in_features, module.out_features) if "whole" in found else 0, 1.0, found)
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
    _check_rank(a_key, rank, max_lora_rank)
    return Pair(*place, rank, peft.scale_of(path, rank), found)


def _check_rank(key: str, rank: int, limit: int) -> None:
    if rank > limit:
        raise reject(
            "adapter_rank_limit",
            f"tensor {key} has rank {rank}, at most {limit} is allowed; raise it with --max-lora-rank",
        )


def _check_shape(key: str, entry: Entry, wanted: tuple[int, int], meaning: str) -> None:
    if entry.shape != wanted:
        raise reject(
            "adapter_shape",
            f"tensor {key} has the shape {list(entry.shape)}, the base wants {list(wanted)} {meaning}: the adapter was "
            "trained on another base",
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    # A sum is quick, and has no way to hide what isn't finite; of huge numbers it may overflow by itself.
    return bool(torch.isfinite(tensor.sum(dtype=torch.float32))) or bool(torch.isfinite(tensor).all())


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The number type that holds all of them exactly."""
    found = set(dtypes)
    return found.pop() if len(found) == 1 else torch.float32


def _has_effect(module: ModuleLora) -> bool:
    if module.bias is not None and bool(module.bias.any()):
        return True
    # An untrained magnitude is the norm as another machine rounded it.
    if module.gain is not None and bool(((module.gain - 1).abs() > _ROUNDING).any()):
        return True
    # Line by line: an A that isn't zero only where B is adds nothing.
    return module.scale != 0 and bool((module.a.any(1) & module.b.any(0)).any())


def _generation(
    base_digest: str,
    element: str,
    modules: tuple[ModuleLora, ...],
    magnitudes: Sequence[torch.Tensor | None],
) -> str:
    """Over all that is in force, and nothing else: names, key spellings and the file's order have no say.

    Vectors make it a second version, as the first never changes. Of a gain the magnitudes count, which the file has:
    what else it is made of is in the digest too.
    """
    vectors = any(module.gain is not None or module.bias is not None for module in modules)
    state = hashlib.sha256(f"lorad adapter {1 + vectors}\n{base_digest}\n{element}\n".encode())
    for module, magnitude in zip(modules, magnitudes, strict=True):
        out, rank = module.b.shape
        state.update(struct.pack("<5qf", module.layer, module.module, rank, module.a.shape[1], out, module.scale))
        if vectors:
            state.update(struct.pack("<2?", module.gain is not None, module.bias is not None))
        for part in (module.a, module.b, magnitude if magnitude is None else magnitude.float(), module.bias):
            if part is not None:
                state.update(part.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()[:32]
