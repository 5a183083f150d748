"""`Shards`: the tensors of an adapter in one safetensors file or in several, as if they were in one.

Several belong together by an index, as transformers writes it: `{"weight_map": {key: file}}`. Every file that the index
names must hold exactly the tensors that it says, and no file that looks like a part may be left over.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad.adapters.files import read_json
from lorad.adapters.reject import reject
from lorad.lazy import torch
from lorad.models.safetensors_file import FLOATS, Entry, read_header, view

TENSORS = "adapter_model.safetensors"
INDEX = "adapter_model.safetensors.index.json"
INDEX_BYTES_MAX = 64 << 20
PARTS_MAX = 1024

_PART = re.compile(r"adapter_model-[0-9]{1,9}-of-[0-9]{1,9}\.safetensors")

EIGHT_BITS = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Floats of 8 bits, by torch's names. Both f16 and bf16 hold all their values exactly."""


class Shards(NamedTuple):
    """Files and what is in them; their bytes are still on the disk."""

    folder: Path
    files: dict[str, dict[str, Entry]]
    """By file name, its directory as stored."""
    entries: dict[str, Entry]
    """All of them, by key. Floats of 8 bits are given as the type that they are widened to."""

    @property
    def types(self) -> tuple[str, ...]:
        """Number types as stored, sorted."""
        return tuple(sorted({entry.dtype for stored in self.files.values() for entry in stored.values()}))

    def load(self) -> dict[str, torch.Tensor]:
        """All tensors, whose types must be of FLOATS or EIGHT_BITS, read at once and complete."""
        found: dict[str, torch.Tensor] = {}
        for name, stored in self.files.items():
            data = self._data(name, stored)
            for key, entry in stored.items():
                found[key] = _tensor(data, entry, self.entries[key].dtype)
        return found

    def _data(self, name: str, stored: dict[str, Entry]) -> NDArray[np.uint8]:
        try:
            with open(self.folder / name, "rb") as file:
                unchanged = read_header(file) == stored
                file.seek(0)
                data = np.fromfile(file, dtype=np.uint8)
        except (OSError, ValueError):
            unchanged, data = False, np.empty(0, np.uint8)
        if not unchanged or (stored and max(entry.end for entry in stored.values()) != len(data)):
            raise reject("adapter_file", f"{name} changed while it was read; try again when it's complete")
        return data


def read_shards(folder: Path, single: str = TENSORS) -> Shards | None:
    """The directory of `single`, or of the parts that an index names; None if there is nothing of either."""
    parts = sorted(file.name for file in folder.glob("adapter_model-*-of-*.safetensors"))
    index = (folder / INDEX).is_file()
    if single != TENSORS or not (parts or index):
        return _shards(folder, [single]) if (folder / single).is_file() else None
    if (folder / single).is_file():
        raise reject("adapter_split", f"both {single} and {INDEX if index else parts[0]} are there: remove what is old")
    if not index:
        raise reject(
            "adapter_split", f"{parts[0]} is a part of several ({len(parts)} here), and their index {INDEX} is missing"
        )
    return _indexed(folder, parts)


def _indexed(folder: Path, parts: list[str]) -> Shards:
    index = read_json(folder, INDEX, INDEX_BYTES_MAX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not (isinstance(places, dict) and places and all(isinstance(name, str) for name in places.values())):
        raise reject("adapter_split", f"{INDEX} has no weight_map from tensors to files")
    names = sorted(set(places.values()))
    if len(names) > PARTS_MAX:
        raise reject("adapter_split", f"{INDEX} names {len(names)} files, at most {PARTS_MAX} are allowed")
    for name in names:
        if _PART.fullmatch(name) is None:
            raise reject(
                "adapter_split",
                f"{INDEX} names the file {name!r}; parts are called adapter_model-00001-of-00002.safetensors",
            )
    for name in names:
        count = int(name.removesuffix(".safetensors").rsplit("-", 1)[1])
        if count != len(names):
            raise reject("adapter_split", f"{INDEX} names {len(names)} files, {name} is of {count}")
        if not (folder / name).is_file():
            raise reject("adapter_split", f"the part {name} is missing")
    left = [name for name in parts if name not in names]
    if left:
        raise reject("adapter_split", f"{left[0]} looks like a part, but {INDEX} doesn't name it")
    found = _shards(folder, names)
    for name, stored in found.files.items():
        said = {key for key, place in places.items() if place == name}
        for key in (*stored, *said):
            if key not in said:
                raise reject("adapter_split", f"{name} holds the tensor {key}, which {INDEX} doesn't say")
            if key not in stored:
                raise reject("adapter_split", f"{name} lacks the tensor {key}, which {INDEX} says is there")
    return found


def _shards(folder: Path, names: list[str]) -> Shards:
    files = {name: _header(folder, name) for name in names}
    entries: dict[str, Entry] = {}
    for name, stored in files.items():
        for key, entry in stored.items():
            if key in entries:
                raise reject("adapter_split", f"the tensor {key} is in {name} and in a part before it")
            entries[key] = entry
    # The one that mixes with the file's others without widening them all.
    types = {entry.dtype for entry in entries.values()}
    wide = "F16" if "F16" in types and "BF16" not in types else "BF16"
    widened = {
        key: entry._replace(dtype=wide) if entry.dtype in EIGHT_BITS else entry for key, entry in entries.items()
    }
    return Shards(folder, files, widened)


def _header(folder: Path, name: str) -> dict[str, Entry]:
    try:
        with open(folder / name, "rb") as file:
            return read_header(file)
    except OSError as error:
        raise reject("adapter_file", f"{name} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise reject("adapter_file", f"{name} isn't a readable safetensors file: {error}") from None


def _tensor(data: NDArray[np.uint8], entry: Entry, wanted: str) -> torch.Tensor:
    if entry.dtype not in EIGHT_BITS:
        return view(data, entry)
    raw = torch.from_numpy(data[entry.begin : entry.end]).view(getattr(torch, EIGHT_BITS[entry.dtype]))
    return raw.to(getattr(torch, FLOATS[wanted])).reshape(entry.shape)
