"""The part of a GGUF file before its tensors: keys and the directory of tensors, with every bound checked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `gguf.GGUFReader` makes a numpy view of each string,
which takes seconds for a vocabulary; this takes milliseconds. ValueError tells what is wrong with a file.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import gguf

from lorad.errors import ModelRejected

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_DIMENSIONS_MAX = 4
_NESTING_MAX = 4
_ELEMENTS_MAX = 1 << 40
ALIGNMENT_BYTES = 32
"""Where a file doesn't say otherwise."""


class TensorInfo(NamedTuple):
    """A tensor's place."""

    kind: str
    """GGUF's name of the number type."""
    shape: tuple[int, ...]
    """Outermost first, as torch counts; GGUF stores it the other way round."""
    begin: int
    """Offset in the file."""
    row_bytes: int
    """Bytes of one innermost row."""
    bytes: int


class GgufHeader(NamedTuple):
    """All that stands before the tensors' data."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def parse_header(data: mmap.mmap | bytes) -> GgufHeader:
    """Reads keys and directory. The file must hold every tensor that the directory names, in full."""
    cursor = _Cursor(data)
    if data[:4] != b"GGUF":
        raise ValueError("it doesn't begin with GGUF")
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise ValueError(
            f"version {version}, known are {_VERSIONS} (a file of the other byte order looks like this too)"
        )
    tensors, keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = cursor.string()
        if key in metadata:
            raise ValueError(f"the key {key!r} is there twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    entries = [cursor.tensor() for _ in range(tensors)]
    alignment = metadata.get("general.alignment", ALIGNMENT_BYTES)
    if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    found: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in entries:
        if name in found:
            raise ValueError(f"the tensor {name!r} is there twice")
        found[name] = _place(name, shape, kind, offset, start, alignment, len(data))
    return GgufHeader(metadata, found)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The keys of a GGUF file: its tokenizer, its chat template, its shape."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse_header(data).metadata
    except OSError as error:
        raise ModelRejected(f"the model file can't be read: {error.strerror}", code="model_file") from None
    except (ValueError, struct.error, MemoryError) as error:
        # mmap refuses an empty file; strings that aren't UTF-8 are a ValueError too.
        raise ModelRejected(f"not a readable GGUF file: {error}", code="gguf_form") from None


def _place(
    name: str, shape: tuple[int, ...], number: int, offset: int, start: int, alignment: int, size: int
) -> TensorInfo:
    try:
        kind = gguf.GGMLQuantizationType(number)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise ValueError(f"tensor {name!r} has the unknown number type {number}") from None
    if shape[-1] % block:
        raise ValueError(f"tensor {name!r}: a row of {shape[-1]} isn't made of whole {kind.name} blocks of {block}")
    if offset % alignment:
        raise ValueError(f"tensor {name!r} begins at {offset}, which isn't a multiple of {alignment}")
    row_bytes = shape[-1] // block * block_bytes
    count = row_bytes
    for dimension in shape[:-1]:
        count *= dimension
    begin = start + offset
    if begin + count > size:
        raise ValueError(f"it is cut: tensor {name!r} ends at byte {begin + count}, the file at {size}")
    return TensorInfo(kind.name, shape, begin, row_bytes, count)


class _Cursor:
    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + code, self._data, self.at)
        except struct.error:
            raise ValueError("it is cut: it ends within its header") from None
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        size = self.scalar("Q")
        end = self.at + size
        if end > len(self._data):
            raise ValueError("it is cut: it ends within a string")
        text = self._data[self.at : end].decode()
        self.at = end
        return text

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth == _NESTING_MAX:
            raise ValueError(f"a value of unknown type {kind}")
        inner, count = self.scalar("I"), self.scalar("Q")
        # Every element takes a byte at least, so a count beyond the file is refused before a list is made for it.
        if count > len(self._data) - self.at:
            raise ValueError("it is cut: it ends within an array")
        if inner in _SCALARS:
            code = f"<{count}{_SCALARS[inner]}"
            if struct.calcsize(code) > len(self._data) - self.at:
                raise ValueError("it is cut: it ends within an array")
            values = list(struct.unpack_from(code, self._data, self.at))
            self.at += struct.calcsize(code)
            return values
        return [self.value(inner, depth + 1) for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self.string(), self.scalar("I")
        if not 1 <= dimensions <= _DIMENSIONS_MAX:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self.scalar("Q") for _ in range(dimensions))[::-1]
        elements = 1
        for dimension in shape:
            elements *= dimension
        if not 0 < elements <= _ELEMENTS_MAX:
            raise ValueError(f"tensor {name!r} has the shape {list(shape)}")
        return name, shape, self.scalar("I"), self.scalar("Q")
