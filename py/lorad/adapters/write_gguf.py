"""An adapter into a file as llama.cpp's convert_lora_to_gguf.py writes it; `gguf_files` says what is in such a file.

Its format holds pairs of the projections and of an untied output, and one alpha for all: a module's scale is alpha /
its rank. Where that isn't a module's scale exactly, what is left of it is multiplied into its B.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

from lorad.adapters.gguf_files import architecture_of, interleaved_heads, tensor_name
from lorad.adapters.keys import module_path
from lorad.adapters.pieces import Piece, Pieces
from lorad.adapters.write import rounded
from lorad.errors import InvalidRequest
from lorad.lazy import torch
from lorad.models.config import EMBED, HEAD, ModelConfig
from lorad.models.elements import Element

_KINDS = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
}
_REFUSED = {
    "magnitude": "DoRA's magnitudes (use_dora)",
    "lora_bias": "biases of B (lora_bias)",
    "bias": "trained biases (bias)",
    "whole": "a module trained in full (modules_to_save)",
    "rows": "trained tokens (trainable_token_indices)",
}


class Scaled(NamedTuple):
    """An adapter as the format holds it."""

    alpha: float
    """An f32's value, never 0, which would mean a scale of 1."""
    modules: tuple[Piece, ...]
    """Their scales are alpha / rank."""
    folded: int
    """How many B have another scale's rest in them, in f32."""

    def element(self) -> Element:
        """The narrowest number type that holds all numbers exactly."""
        return "f32" if self.folded else Pieces(self.modules).element()


def scaled(pieces: Pieces, config: ModelConfig) -> Scaled:
    """One alpha for all modules; what the format can't hold is refused by name."""
    _check(pieces, config)
    alpha = _alpha(pieces.modules)
    made = tuple(_with_alpha(piece, alpha) for piece in pieces.modules)
    folded = sum(new.scale != old.scale for new, old in zip(made, pieces.modules, strict=True))
    return Scaled(alpha, made, folded)


def write_gguf(file: Path, adapter: Scaled, config: ModelConfig, dtype: str, name: str) -> None:
    """Writes a new file; numbers are rounded to `dtype`, one of `pieces.DTYPES`. `name`: the adapter's own."""
    tensors: list[tuple[str, torch.Tensor]] = []
    for piece in adapter.modules:
        module = config.adaptable()[piece.module].name
        b, heads = piece.parts["B"], interleaved_heads(module, config)
        if heads:
            # Rows [heads, 2, half] to [heads, half, 2].
            b = b.reshape(heads, 2, -1, b.shape[1]).transpose(1, 2).reshape(b.shape)
        for half, tensor in (("a", piece.parts["A"]), ("b", b)):
            place = f"{tensor_name(piece.layer, module)}.lora_{half}"
            tensors.append((place, rounded(tensor, dtype, place)))
    try:
        _write(file, tensors, adapter.alpha, architecture_of(config), dtype, name)
    except OSError as error:
        raise InvalidRequest(
            f"{file} can't be written: {error.strerror}", code="output_write", param="output"
        ) from None


def _write(
    file: Path, tensors: Sequence[tuple[str, torch.Tensor]], alpha: float, architecture: str, dtype: str, name: str
) -> None:
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_name(name)
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for place, tensor in tensors:
        # As bytes: numpy has no bf16.
        data = tensor.view(torch.uint8).numpy()
        writer.add_tensor(place, data, raw_dtype=_KINDS[dtype])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _alpha(modules: Sequence[Piece]) -> float:
    """The f32 that gives the most modules their scale exactly."""
    wanted = [(len(piece.parts["A"]), piece.scale) for piece in modules]
    found: dict[float, int] = {}
    for rank, scale in dict.fromkeys(wanted):
        near = np.float32(scale * rank)
        for alpha in {float(near), *(float(np.nextafter(near, np.float32(way))) for way in (-np.inf, np.inf))}:
            if alpha and np.isfinite(alpha):
                found[alpha] = sum(float(np.float32(alpha / other)) == own for other, own in wanted)
    return max(found, key=lambda alpha: (found[alpha], -abs(alpha)))


def _with_alpha(piece: Piece, alpha: float) -> Piece:
    scale = float(np.float32(alpha / len(piece.parts["A"])))
    if scale == piece.scale:
        return piece
    b = piece.parts["B"].double() * (piece.scale / scale)
    return piece._replace(scale=scale, parts={"A": piece.parts["A"], "B": b.float()})


def _check(pieces: Pieces, config: ModelConfig) -> None:
    for piece, part, _ in pieces.tensors():
        name = config.adaptable()[piece.module].name
        path = module_path(piece.layer, name)
        if part in _REFUSED:
            raise _refused(path, _REFUSED[part])
        if name == EMBED:
            raise _refused(path, "LoRA on the embedding, which llama.cpp may apply at a tied output too")
        if name == HEAD and config.tie_embeddings:
            raise _refused(
                path, "LoRA on the output of a base whose embeddings are tied, where llama.cpp has no such tensor"
            )


def _refused(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"to: {path} has {what}; llama.cpp's format can't hold it, --to peft can", code="convert_feature", param="to"
    )
