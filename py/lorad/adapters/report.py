"""`Report`: what an adapter's file is and what it does, or why it's refused. No base is computed with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lorad.adapters.check import check_adapter
from lorad.adapters.checked import ModuleLora
from lorad.adapters.files import AdapterFiles
from lorad.adapters.image import make_layout, spec_of
from lorad.adapters.implied import implied_base
from lorad.adapters.read import read_adapter
from lorad.adapters.reject import readable
from lorad.errors import AdapterRejected
from lorad.models.config import MODULES, VOCABULARY
from lorad.models.values import values
from lorad.models.weights import Weights


class Refusal(NamedTuple):
    """Why it can't be applied."""

    code: str
    message: str


class Effect(NamedTuple):
    """Of a module in all its layers: y += scale · B (A x), then y = gain · y + bias."""

    module: str
    layers: int
    """That it is adapted in."""
    ranks: tuple[int, ...]
    """All that occur, ascending."""
    scales: tuple[float, ...]
    norm_min: float
    """Frobenius norm of scale · B · A; the least of the layers."""
    norm_mean: float
    norm_max: float
    vectors: tuple[str, ...]
    """Of gain and bias those that it has in some layer."""


@dataclass(frozen=True)
class Report:
    """Fields after `refusal` are empty where there is one, as far as it came before them."""

    name: str
    path: str
    refusal: Refusal | None = None
    format: str = ""
    types: tuple[str, ...] = ()
    """Number types in the file."""
    element: str = ""
    """The number type that it's kept in."""
    bytes: int = 0
    """Of its weights, as kept."""
    modules: int = 0
    """(layer, module) pairs."""
    rank: int = 0
    """The largest."""
    effects: tuple[Effect, ...] = ()
    generation: str = ""
    """Where a base is given, since it names what is in force on it."""
    page_bytes: int = 0
    pages: int = 0
    """In a pool with pages of `page_bytes`; 0 without one."""
    warnings: tuple[str, ...] = field(default=())


def make_report(path: Path, base: Weights | None = None, *, page_bytes: int = 0, max_lora_rank: int = 256) -> Report:
    """Reads the adapter at `path` as a load does. Without a base its tensors are held against each other only."""
    name = path.name or path.resolve().name
    files: AdapterFiles | None = None
    try:
        files = read_adapter(path, base.config if base else None)
        config = base.config if base else implied_base(files.entries)
        checked = check_adapter(
            name,
            files,
            config,
            base.digest if base else "",
            max_lora_rank=max_lora_rank,
            base=partial(values, base) if base else None,
        )
    except AdapterRejected as refusal:
        message = refusal.message if files is None else files.in_own_words(refusal.message)
        return Report(
            name,
            str(path),
            Refusal(refusal.code, readable(message)),
            format=files.format if files else "",
            types=files.types if files else (),
        )
    return Report(
        name,
        str(path),
        format=files.format,
        types=files.types,
        element=checked.element,
        bytes=checked.bytes,
        modules=len(checked.modules),
        rank=checked.rank,
        effects=effects(checked.modules),
        generation=checked.generation if base else "",
        page_bytes=page_bytes,
        pages=make_layout(spec_of(checked), page_bytes).pages if page_bytes else 0,
        warnings=checked.warnings,
    )


def effects(modules: Sequence[ModuleLora]) -> tuple[Effect, ...]:
    """By module, in the order of `ModelConfig.adaptable`."""
    found = []
    for number, name in enumerate((*MODULES, *VOCABULARY)):
        loras = [lora for lora in modules if lora.module == number]
        if loras:
            norms = [norm(lora) for lora in loras]
            found.append(
                Effect(
                    name,
                    len(loras),
                    tuple(sorted({lora.rank for lora in loras})),
                    tuple(sorted({lora.scale for lora in loras})),
                    min(norms),
                    sum(norms) / len(norms),
                    max(norms),
                    tuple(name for name in ("gain", "bias") if any(getattr(lora, name) is not None for lora in loras)),
                )
            )
    return tuple(found)


def norm(lora: ModuleLora) -> float:
    """Frobenius norm of scale · B · A, f64, without the product: |BA|² = sum of (BᵀB) · (AAᵀ), both [rank, rank]."""
    a, b = lora.a.double(), lora.b.double()
    squared = float(((b.T @ b) * (a @ a.T)).sum())
    return abs(lora.scale) * math.sqrt(max(squared, 0.0))
