"""`Pieces`: an adapter as a file holds it, module by module: what the readers give and the writers take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lorad.adapters.check import pairs_of
from lorad.adapters.files import AdapterFiles
from lorad.adapters.peft_config import parse_config
from lorad.adapters.trained import trained_rows
from lorad.lazy import torch
from lorad.models.config import ModelConfig
from lorad.models.elements import Element

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""Number types that are written."""


class Piece(NamedTuple):
    """What an adapter has for one module."""

    layer: int
    module: int
    """Index into `ModelConfig.adaptable()`."""
    scale: float
    """Of B · A; an f32's value."""
    parts: Mapping[str, torch.Tensor]
    """A [rank, in], B [out, rank], and those of `parts`: magnitude, lora_bias, bias [out], whole, rows [n, hidden]."""


@dataclass(frozen=True)
class Pieces:
    """All of them, in the order of (layer, module), and what a config says beside the tensors."""

    modules: tuple[Piece, ...]
    bias: str = "none"
    """Which biases of the base were trained: see `peft_config.BIASES`."""
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Tokens of the embedding and of the head whose rows were trained."""

    def tensors(self) -> Iterator[tuple[Piece, str, torch.Tensor]]:
        """Every tensor, with the piece and the part that it is."""
        for piece in self.modules:
            for part, tensor in piece.parts.items():
                yield piece, part, tensor

    def element(self) -> Element:
        """The narrowest number type that holds all numbers exactly."""
        kinds = {tensor.dtype for _, _, tensor in self.tensors()}
        only: tuple[Element, ...] = ("f16", "bf16")
        return next((name for name in only if kinds == {DTYPES[name]}), "f32")


def pieces_of(files: AdapterFiles, config: ModelConfig, max_lora_rank: int) -> Pieces:
    """Reads all tensors of an adapter that `check_adapter` accepts. Copies of the base's weights are left out."""
    peft = parse_config(files.config)
    pairs, _ = pairs_of(files, config, peft, max_lora_rank)
    rows = trained_rows(peft, is_tied=config.tie_embeddings)
    names, tensors = config.adaptable(), files.load()
    modules = []
    for pair in pairs:
        name = names[pair.module].name
        # On a base with tied embeddings the head's rows may be the embedding's own.
        keys = {part: key for part, key in pair.keys.items() if part != "rows" or rows[name].source == name}
        if keys:
            modules.append(
                Piece(pair.layer, pair.module, pair.scale, {part: tensors[key] for part, key in keys.items()})
            )
    return Pieces(tuple(modules), peft.bias, peft.rows)
