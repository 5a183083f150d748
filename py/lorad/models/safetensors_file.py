"""The header of a safetensors file, with every bound checked. Used for base models and for adapters.

Format: https://github.com/huggingface/safetensors#format. ValueError tells what is wrong with a file.
"""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad.lazy import torch

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The number types of floats that lorad computes with, by torch's names."""

HEADER_BYTES_MAX = 100_000_000
"""The format's own limit."""
_METADATA = "__metadata__"


class Entry(NamedTuple):
    """A tensor's place."""

    dtype: str
    """The format's name, a key of `ITEM_BYTES`."""
    shape: tuple[int, ...]
    begin: int
    """Offset in the file."""
    end: int


def read_header(file: BinaryIO) -> dict[str, Entry]:
    """The directory of an open file, by name; the tensors fill the file without gap or overlap."""
    length = os.fstat(file.fileno()).st_size
    file.seek(0)
    lead = file.read(8)
    if len(lead) < 8:
        raise ValueError(f"it is cut: {length} bytes")
    size = int.from_bytes(lead, "little")
    if size > HEADER_BYTES_MAX:
        raise ValueError(f"its header is said to have {size} bytes, at most {HEADER_BYTES_MAX} are allowed")
    start = 8 + size
    if start > length:
        raise ValueError(f"it is cut: its header ends at byte {start}, the file at {length}")
    try:
        header = json.loads(file.read(size), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header can't be read: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("its header isn't an object")
    header.pop(_METADATA, None)
    found = {name: _entry(name, entry, start) for name, entry in header.items()}
    at = start
    for name, entry in sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            raise ValueError(f"tensor {name!r} begins at byte {entry.begin}, the one before it ends at {at}")
        at = entry.end
    if at != length:
        what = "it is cut" if at > length else "bytes are left over"
        raise ValueError(f"{what}: its tensors end at byte {at}, the file at {length}")
    return found


def view(data: NDArray[np.uint8], entry: Entry) -> torch.Tensor:
    """The tensor of one of `FLOATS`, without a copy unless it lies at an odd address."""
    raw = data[entry.begin : entry.end]
    if raw.ctypes.data % ITEM_BYTES[entry.dtype]:
        raw = raw.copy()
    return torch.from_numpy(raw).view(getattr(torch, FLOATS[entry.dtype])).reshape(entry.shape)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return found


def _entry(name: str, entry: Any, start: int) -> Entry:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        item = ITEM_BYTES[dtype]
        numbers = [*shape, begin, end]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the entry of tensor {name!r} can't be understood: {str(entry)[:200]}") from None
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in numbers) or len(shape) > 8:
        raise ValueError(f"the entry of tensor {name!r} has numbers out of range: {str(entry)[:200]}")
    count = item
    for dimension in shape:
        count *= dimension
    if end - begin != count:
        raise ValueError(f"tensor {name!r} of {dtype} {shape} needs {count} bytes and has {end - begin}")
    return Entry(dtype, tuple(shape), start + begin, start + end)
