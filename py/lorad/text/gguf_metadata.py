"""The key-value part of a GGUF file, read without touching the tensors.

`gguf.GGUFReader` makes a numpy view of each string, which takes seconds for a vocabulary; this takes milliseconds.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from lorad.errors import ModelRejected

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


def read_gguf_metadata(path: str | Path) -> dict[str, Any]:
    """All keys of the file. Strings that aren't UTF-8 are refused, as is a file that ends too early."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).metadata()
    except (struct.error, UnicodeDecodeError, ValueError, MemoryError) as error:
        raise ModelRejected(f"not a readable GGUF file: {error}", code="gguf_form") from None
    except OSError as error:
        raise ModelRejected(f"the model file can't be read: {error.strerror}", code="model_file") from None


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def metadata(self) -> dict[str, Any]:
        if self._data[:4] != b"GGUF":
            raise ValueError("it doesn't begin with GGUF")
        self._at = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, known are {_VERSIONS}")
        _tensors, keys = self._scalar("Q"), self._scalar("Q")
        found: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            found[key] = self._value(self._scalar("I"))
        return found

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        size = self._scalar("Q")
        end = self._at + size
        if end > len(self._data):
            raise ValueError("it ends within a string")
        text = self._data[self._at : end].decode()
        self._at = end
        return text

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise ValueError(f"a value of unknown type {kind}")
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner in _SCALARS:
            code = f"<{count}{_SCALARS[inner]}"
            values = list(struct.unpack_from(code, self._data, self._at))
            self._at += struct.calcsize(code)
            return values
        return [self._value(inner) for _ in range(count)]
