"""The part of a GGUF file before its tensors: keys and the directory of tensors, with every bound checked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `gguf.GGUFReader` makes a numpy view of each string,
which takes seconds for a vocabulary; this takes milliseconds. ValueError tells what is wrong with a file.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import gguf

from lorad.errors import ModelRejected
from lorad.models.fields import shown

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_DIMENSIONS_MAX = 4
_NESTING_MAX = 4
_ELEMENTS_MAX = 1 << 40
_VALUES_MAX = 1 << 22
"""Keys, tensors and elements of arrays in all: five times those of a vocabulary of 262,144. A count that was damaged is
as long as the file at most, which may be gigabytes of weights; nothing is made for it."""
_STRING_BYTES_MAX = 1 << 24
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


def parse_header(data: mmap.mmap | bytes, size: int | None = None) -> GgufHeader:
    """Reads keys and directory. The file must hold every tensor that the directory names, in full.

    `data` is the file, or its beginning where `size` says how long it is.
    """
    cursor = _Cursor(data)
    if data[:4] != b"GGUF":
        raise ValueError("it doesn't begin with GGUF")
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise ValueError(
            f"version {version}, known are {_VERSIONS} (a file of the other byte order looks like this too)"
        )
    tensors, keys = cursor.count("tensors"), cursor.count("keys")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = cursor.string()
        if key in metadata:
            raise ValueError(f"the key {shown(key)} is there twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    entries = [cursor.tensor() for _ in range(tensors)]
    alignment = metadata.get("general.alignment", ALIGNMENT_BYTES)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {shown(alignment)}, wants a power of two from 8 on")
    start, end = -(-cursor.at // alignment) * alignment, 0
    found: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in entries:
        if name in found:
            raise ValueError(f"the tensor {shown(name)} is there twice")
        if offset != end:
            raise ValueError(f"tensor {shown(name)} begins at {offset}, the one before it ends at {end}")
        found[name] = info = _place(name, shape, kind, start + offset, len(data) if size is None else size)
        end += -(-info.bytes // alignment) * alignment
    return GgufHeader(metadata, found)


def read_header(path: str | Path) -> GgufHeader:
    """`parse_header` of a file; what is wrong with it is refused."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse_header(data)
    except OSError as error:
        raise ModelRejected(f"the model file can't be read: {error.strerror}", code="model_file") from None
    except ValueError as error:
        # mmap's refusal of an empty file is one too.
        raise ModelRejected(f"{Path(path).name} isn't a readable GGUF file: {error}", code="gguf_form") from None


def _place(name: str, shape: tuple[int, ...], number: int, begin: int, size: int) -> TensorInfo:
    try:
        kind = gguf.GGMLQuantizationType(number)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise ValueError(f"tensor {shown(name)} has the unknown number type {number}") from None
    if shape[-1] % block:
        raise ValueError(
            f"tensor {shown(name)}: a row of {shape[-1]} isn't made of whole {kind.name} blocks of {block}"
        )
    row_bytes = shape[-1] // block * block_bytes
    count = row_bytes * math.prod(shape[:-1])
    if begin + count > size:
        raise ValueError(f"it is cut: tensor {shown(name)} ends at byte {begin + count}, the file at {size}")
    return TensorInfo(kind.name, shape, begin, row_bytes, count)


class _Cursor:
    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._values = 0
        self.at = 0

    def scalar(self, code: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + code, self._data, self.at)
        except struct.error:
            raise ValueError("it is cut: it ends within its header") from None
        self.at += struct.calcsize("<" + code)
        return value

    def count(self, what: str) -> int:
        """How many `what` follow; not more than a header has in all."""
        count: int = self.scalar("Q")
        self._values += count
        if self._values > _VALUES_MAX:
            raise ValueError(f"it says that {count} {what} follow; a header has {_VALUES_MAX} values in all at most")
        return count

    def string(self) -> str:
        size, begin = self.scalar("Q"), self.at
        if size > min(_STRING_BYTES_MAX, len(self._data) - begin):
            raise ValueError(f"it is cut: a string of {size} bytes begins at byte {begin}")
        self.at = begin + size
        try:
            return self._data[begin : self.at].decode()
        except UnicodeDecodeError:
            raise ValueError(f"the string at byte {begin} isn't UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth == _NESTING_MAX:
            raise ValueError(f"a value of unknown type {kind}, or arrays within {_NESTING_MAX} others")
        inner, count = self.scalar("I"), self.count("elements")
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
            raise ValueError(f"tensor {shown(name)} has {dimensions} dimensions")
        shape = tuple(self.scalar("Q") for _ in range(dimensions))[::-1]
        if not 0 < math.prod(shape) <= _ELEMENTS_MAX:
            raise ValueError(f"tensor {shown(name)} has the shape {list(shape)}")
        return name, shape, self.scalar("I"), self.scalar("Q")
