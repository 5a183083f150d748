"""The first layers of a model in a GGUF file, as a file of its own with the same tensors and tokenizer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WRITTEN = ("GGUF.", "general.architecture")
"""Fields that the writer writes by itself."""


def truncate(source: Path, target: Path, layers: int) -> Path:
    """Writes and returns `target`."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if not field.name.startswith(WRITTEN):
            value = layers if field.name == f"{architecture}.block_count" else field.contents()
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, value, field.types[0], sub_type=of)
    for tensor in reader.tensors:
        place = tensor.name.split(".")
        if place[0] != "blk" or int(place[1]) < layers:
            writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
