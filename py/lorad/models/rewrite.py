"""A model with other values in some of its matrices, in the same files and number types."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np

from lorad.errors import LoradError
from lorad.lazy import torch
from lorad.models.weights import Weights

WRITABLE = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
"""Number types that values can be rounded to here. gguf-py only reads the K-quants."""


def rewrite(
    weights: Weights, folder: Path, changed: Mapping[str, Callable[[], torch.Tensor]], *, links: bool = True
) -> Path:
    """Writes the model into an empty folder with these f32 values by canonical name; gives the new file or folder.

    Every tensor keeps its number type, so its place and size stay: a file is copied and written over. Files in which
    nothing changes are links to the old ones, or copies.
    """
    source = weights.path
    try:
        for file in source.iterdir() if source.is_dir() else [source]:
            if links:
                (folder / file.name).symlink_to(file.resolve())
            elif file.is_file():
                shutil.copyfile(file, folder / file.name)
        for name, values in changed.items():
            place, kind = weights.place(name), gguf.GGMLQuantizationType[weights.tensor(name).kind]
            target = folder / place.file.name
            if target.is_symlink():
                target.unlink()
                shutil.copyfile(place.file, target)
            rows = np.asarray(gguf.quants.quantize(values().numpy(), kind))
            with target.open("r+b") as opened:
                opened.seek(place.begin)
                opened.write((rows if place.order is None else rows[place.order]).tobytes())
    except OSError as error:
        raise LoradError(f"the model can't be written to {folder}: {error.strerror}", code="model_write") from None
    return folder if source.is_dir() else folder / source.name
