"""An adapter in another format or number type, and whether what was written is what was read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.files import AdapterFiles
from lorad.adapters.load import load_adapter
from lorad.adapters.pieces import DTYPES, Piece, Pieces, pieces_of
from lorad.adapters.read import read_adapter
from lorad.adapters.write import write_peft
from lorad.adapters.write_gguf import scaled, write_gguf
from lorad.errors import AdapterRejected, LoradError
from lorad.lazy import torch
from lorad.models.config import ModelConfig
from lorad.models.elements import Element
from lorad.models.values import values
from lorad.models.weights import Weights

ROUNDINGS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
"""How far a rounded number may be off, as a part of it."""
_LEAST = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}
"""And by itself, where it's near 0: half of the smallest step."""


class Source(NamedTuple):
    """An adapter that was read and checked."""

    files: AdapterFiles
    checked: CheckedAdapter
    pieces: Pieces


class Converted(NamedTuple):
    """What was written, after it was read again."""

    dtype: Element
    exact: bool
    """Every number is the one that was read."""
    folded: int
    """Modules of which a part of the scale is in B now."""
    off: float
    """The largest change of what a module adds, |new − old| / |old| in Frobenius norms."""
    generation: str


def read_source(path: Path, weights: Weights, max_lora_rank: int) -> Source:
    """Reads an adapter in any format. A refusal is worded as a load's."""
    checked = _load(path, weights, max_lora_rank)
    files = read_adapter(path, weights.config)
    return Source(files, checked, pieces_of(files, weights.config, max_lora_rank))


def convert(source: Source, made: Path, weights: Weights, *, to: str, dtype: str, max_lora_rank: int) -> Converted:
    """Writes it to `made` as `peft` (a folder) or `gguf` (a file) and reads it again.

    `dtype`: one of `DTYPES`, or "" for the narrowest that holds all numbers. What the format can't hold is refused; a
    LoradError (`convert_verify`) if what was written is something else than what was read.
    """
    config, name = weights.config, source.checked.name
    kind: Element
    if to == "gguf":
        adapter = scaled(source.pieces, config)
        kind, folded = _element(dtype) or adapter.element(), adapter.folded
        write_gguf(made, adapter, config, kind, name)
    else:
        kind, folded = _element(dtype) or source.pieces.element(), 0
        write_peft(made, source.pieces, config, kind, f"lorad, from {source.files.format}: {name}")
    try:
        again = read_source(made, weights, max_lora_rank)
    except AdapterRejected as refusal:
        raise LoradError(f"what was written isn't accepted: {refusal.message}", code="convert_verify") from None
    exact = _compare(source.pieces, again.pieces, config, kind, folded=bool(folded))
    return Converted(kind, exact, folded, _off(source.checked, again.checked), again.checked.generation)


def _element(dtype: str) -> Element | None:
    names: Mapping[str, Element] = {"f32": "f32", "f16": "f16", "bf16": "bf16"}
    return names.get(dtype)


def _load(path: Path, weights: Weights, max_lora_rank: int) -> CheckedAdapter:
    name = path.name.removesuffix(".gguf") or path.resolve().name
    base = partial(values, weights)
    return load_adapter(name, path, weights.config, weights.digest, max_lora_rank=max_lora_rank, base=base)


def _compare(old: Pieces, new: Pieces, config: ModelConfig, dtype: Element, *, folded: bool) -> bool:
    """Whether all numbers are equal; a LoradError where they differ by more than `dtype` rounds."""
    kinds = {tensor.dtype for _, _, tensor in old.tensors()}
    rounding = 0.0 if dtype == "f32" or kinds == {DTYPES[dtype]} else ROUNDINGS[dtype]
    if folded:
        rounding = max(rounding, ROUNDINGS[dtype]) + 2 * ROUNDINGS["f32"]
    names = [module.name for module in config.adaptable()]
    found, exact = {(piece.layer, piece.module): piece for piece in new.modules}, True
    if found.keys() != {(piece.layer, piece.module) for piece in old.modules}:
        raise _differs("it has other modules")
    if (new.bias, dict(new.rows)) != (old.bias, dict(old.rows)):
        raise _differs("it says other things of biases or tokens")
    for piece in old.modules:
        other = found[piece.layer, piece.module]
        where = f"layer {piece.layer}, {names[piece.module]}"
        if other.parts.keys() != piece.parts.keys():
            raise _differs(f"{where}: it has {', '.join(sorted(other.parts))} of {', '.join(sorted(piece.parts))}")
        if other.scale != piece.scale and not folded:
            raise _differs(f"{where}: its scale is {other.scale:g}, not {piece.scale:g}")
        for part in piece.parts:
            wanted, have = _numbers(piece, part), _numbers(other, part)
            least = _LEAST[dtype] * (abs(other.scale) if part == "B" else 1.0) if rounding else 0.0
            if have.shape != wanted.shape or bool(((have - wanted).abs() > rounding * wanted.abs() + least).any()):
                raise _differs(f"{where}: {part} has other numbers than {dtype} rounds them to")
            exact = exact and torch.equal(have, wanted)
    return exact


def _numbers(piece: Piece, part: str) -> torch.Tensor:
    """f64; B with its scale, which may be in either."""
    tensor = piece.parts[part].double()
    return tensor * piece.scale if part == "B" else tensor


def _differs(what: str) -> LoradError:
    return LoradError(f"what was written isn't what was read: {what}", code="convert_verify")


def _off(old: CheckedAdapter, new: CheckedAdapter) -> float:
    """See `Converted.off`; without the products, by |X Y|² = sum of (XᵀX) · (Y Yᵀ)."""
    worst = 0.0
    for one, other in zip(old.modules, new.modules, strict=True):
        a, b = one.a.double(), one.b.double() * one.scale
        stacked = torch.cat([a, other.a.double()]), torch.cat([-b, other.b.double() * other.scale], dim=1)
        if not torch.equal(stacked[0][: len(a)], stacked[0][len(a) :]) or not torch.equal(-b, stacked[1][:, len(a) :]):
            whole, change = _norm(a, b), _norm(*stacked)
            worst = max(worst, change / whole if whole else math.inf)
    return worst


def _norm(a: torch.Tensor, b: torch.Tensor) -> float:
    return math.sqrt(max(float(((b.T @ b) * (a @ a.T)).sum()), 0.0))
