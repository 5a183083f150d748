"""A GGUF model in another number type, and with other values in some of its matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from lorad.errors import InvalidRequest, LoradError
from lorad.lazy import torch
from lorad.models.gguf_file import GgufWeights, canonical_name

TABLE = "Q8_0"
"""What the embedding and the head take where the others take blocks of fewer bits, which cost these the most."""
_OWN = ("GGUF.", "general.architecture", "general.file_type", "general.alignment", "general.quantization_version")
"""Keys that the writer writes."""


def retype(weights: GgufWeights, file: Path, changed: Mapping[str, Callable[[], torch.Tensor]], kind: str) -> Path:
    """Writes the model as a new file whose matrices are of `kind`, one of `rewrite.WRITABLE`, with these f32 values by
    canonical name.

    A matrix that keeps its values and has no more bits than `kind` stays as it is; vectors keep their type.
    """
    reader = gguf.GGUFReader(weights.path)
    writer = gguf.GGUFWriter(file, weights.metadata["general.architecture"])
    for field in reader.fields.values():
        if not field.name.startswith(_OWN):
            last = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=last)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(_file_type(kind))
    kinds = {}
    for tensor in reader.tensors:
        name = canonical_name(tensor.name)
        shape = tuple(int(length) for length in reversed(tensor.shape))
        kinds[name] = _kind(name, shape, tensor.tensor_type, kind, is_changed=name in changed)
        columns, block_bytes = gguf.GGML_QUANT_SIZES[kinds[name]]
        if shape[-1] % columns:
            raise InvalidRequest(
                f"type: {name} has rows of {shape[-1]}, {kinds[name].name} wants whole blocks of {columns}",
                code="merge_type",
                param="type",
            )
        size = int(np.prod(shape)) // columns * block_bytes
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), size, raw_dtype=kinds[name])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in reader.tensors:
            name = canonical_name(tensor.name)
            writer.write_tensor_data(_data(weights, name, tensor, changed.get(name), kinds[name]))
    except OSError as error:
        raise LoradError(f"the model can't be written to {file}: {error.strerror}", code="model_write") from None
    finally:
        writer.close()
    return file


def _kind(
    name: str, shape: tuple[int, ...], old: gguf.GGMLQuantizationType, kind: str, *, is_changed: bool
) -> gguf.GGMLQuantizationType:
    if len(shape) < 2:
        return old
    wanted = gguf.GGMLQuantizationType[kind]
    if name in ("embed", "head") and _bits(wanted) < _bits(gguf.GGMLQuantizationType[TABLE]):
        wanted = gguf.GGMLQuantizationType[TABLE]
    return wanted if is_changed or _bits(old) > _bits(wanted) else old


def _bits(kind: gguf.GGMLQuantizationType) -> float:
    """Of a number."""
    columns, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return 8 * block_bytes / columns


def _data(
    weights: GgufWeights,
    name: str,
    tensor: Any,
    change: Callable[[], torch.Tensor] | None,
    kind: gguf.GGMLQuantizationType,
) -> NDArray[Any]:
    """Rows as they lie in a file."""
    if change is None and kind == tensor.tensor_type:
        return np.asarray(tensor.data)
    values = weights.tensor(name).dequantize() if change is None else change()
    rows = np.asarray(gguf.quants.quantize(values.numpy(), kind))
    order = weights.place(name).order
    return rows if order is None else rows[order]


def _file_type(kind: str) -> gguf.LlamaFileType:
    """llama.cpp's number of the type that most matrices have."""
    return gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"]
