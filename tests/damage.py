"""Damage to GGUF files: cut, bytes changed, and the numbers that a reader trusts replaced by hostile ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorad.models import gguf_header
from lorad.models.gguf_header import parse_header

SIZES = {"B": 1, "b": 1, "?": 1, "H": 2, "h": 2, "I": 4, "i": 4, "f": 4, "Q": 8, "q": 8, "d": 8}
HOSTILE = (
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    9,
    10,
    24,
    255,
    1 << 16,
    (1 << 24) + 1,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    1 << 62,
    1 << 63,
)
EDGE = 60
"""Numbers at the beginning and at the end of a header: counts and places. Most others are lengths of tokens."""


class Damaged:
    """A sound file's header and size, and a file that is written anew for each damage. The tensors' data are zeros,
    which a file system need not store."""

    def __init__(self, sound: Path, target: Path) -> None:
        self.path, self._size = target, sound.stat().st_size
        content = sound.read_bytes()
        self._numbers, tensors = _read(content)
        self._header = content[: min(tensor.begin for tensor in tensors)]
        self._end = max(tensor.begin + tensor.bytes for tensor in tensors)

    def whole(self) -> None:
        """Leaves it as it was, but for the weights."""
        self._write(self._header, self._end)

    def cut(self, rng: np.random.Generator) -> None:
        """Ends it before its last tensor does: half of them within the header."""
        self._write(self._header, int(rng.integers(0, len(self._header) if rng.random() < 0.5 else self._end)))

    def change(self, rng: np.random.Generator) -> None:
        """Up to four bytes of the header anywhere, or one number of it: another one, or a bit of it."""
        header, way = bytearray(self._header), int(rng.integers(0, 3))
        place, code = self._number(rng)
        if way == 0:
            for byte in rng.integers(0, len(header), int(rng.integers(1, 5))).tolist():
                header[byte] ^= int(rng.integers(1, 256))
        elif way == 1:
            value = HOSTILE[int(rng.integers(0, len(HOSTILE)))] * int(rng.choice([1, -1]))
            header[place : place + SIZES[code]] = (value % (1 << 64)).to_bytes(8, "little")[: SIZES[code]]
        else:
            header[place + int(rng.integers(0, SIZES[code]))] ^= 1 << int(rng.integers(0, 8))
        self._write(header, self._size)

    def _number(self, rng: np.random.Generator) -> tuple[int, str]:
        edge = [*range(EDGE), *range(-EDGE, 0)]
        return self._numbers[int(rng.choice(edge) if rng.random() < 0.8 else rng.integers(0, len(self._numbers)))]

    def _write(self, header: bytes, size: int) -> None:
        with open(self.path, "wb") as file:
            file.write(header)
            file.truncate(size)


def _read(content: bytes) -> tuple[list[tuple[int, str]], list[gguf_header.TensorInfo]]:
    """Where the reader reads a number, and of which type; the tensors."""
    numbers: list[tuple[int, str]] = []
    scalar = gguf_header._Cursor.scalar

    def noted(cursor: Any, code: str) -> Any:
        numbers.append((cursor.at, code))
        return scalar(cursor, code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_header._Cursor, "scalar", noted)
        return numbers, list(parse_header(content).tensors.values())
