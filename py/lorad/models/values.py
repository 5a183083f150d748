"""A base's weights as plain numbers, for what is derived from them when an adapter is loaded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.models.weights import Weights


def values(weights: Weights, name: str) -> NDArray[np.float32]:
    """The weight with this canonical name, f32 of its shape: of a quantised one what its blocks stand for.

    Reads the file's memory and nothing else, so it may run on any thread.
    """
    tensor = weights.tensor(name)
    if tensor.kind not in _core.QUANT_KINDS:
        return tensor.values()
    found = np.empty(tensor.shape, dtype=np.float32)
    data = np.ascontiguousarray(tensor.raw).reshape(-1)
    _core.QuantMatrix(tensor.kind, data, tensor.rows, tensor.cols).dequantize(found)
    return found
