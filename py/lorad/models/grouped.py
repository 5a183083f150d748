"""`GroupedTensor`: a four-bit weight of GPTQ or AWQ, as blocks of GGUF, which all workers multiply.

A group's columns become blocks of 32. Where every zero is 8, as with GPTQ's symmetric weights, that is Q4_0, which
holds them exactly if scales are f16. Else it's Q4_1, whose minimum −scale · zero is rounded to f16: by 2⁻¹¹ of
itself, so no weight is off by more than 1/128 of the step between two codes (zeros are 16 at most); what would be is
refused. Columns in an order of their own (`desc_act`) have no blocks: such a weight is kept as f16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad.errors import ModelRejected
from lorad.models.grouped_config import UNIT, GroupedFormat
from lorad.models.safetensors_file import FLOATS, Entry
from lorad.models.weights import RawTensor, check_shape

PARTS = ("qweight", "qzeros", "scales", "g_idx")
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column, of eight neighbours, of each half byte of a word, from the lowest."""
STEP_PART = 128
"""No weight is off by more than this part of the step between two codes."""
U8 = NDArray[np.uint8]
F16 = NDArray[np.float16]


class Part(NamedTuple):
    """One of a weight's tensors as it lies in the file."""

    entry: Entry
    data: U8


class GroupedTensor:
    """A weight [out, in] in the parts of its format, checked."""

    def __init__(self, name: str, format: GroupedFormat, shape: tuple[int, ...], parts: Mapping[str, Part]) -> None:
        """Refuses parts that are missing (`model_tensor_missing`), of another shape (`model_shape`) or type
        (`model_tensor_type`)."""
        outputs, inputs = shape
        group = format.group or inputs
        groups = -(-inputs // group)
        if inputs % UNIT or outputs % 8:
            raise ModelRejected(
                f"tensor {name} [{outputs}, {inputs}]: four-bit weights want outputs by 8, inputs by {UNIT}",
                code="model_shape",
            )
        packed = (inputs // 8, outputs) if format.method == "gptq" else (inputs, outputs // 8)
        wanted: dict[str, tuple[int, ...]] = {
            "qweight": packed,
            "qzeros": (groups, outputs // 8),
            "scales": (groups, outputs),
        }
        if "g_idx" in parts:
            wanted["g_idx"] = (inputs,)
        for part, form in wanted.items():
            if part not in parts:
                raise ModelRejected(f"the model lacks {name}.{part}", code="model_tensor_missing")
            entry = parts[part].entry
            check_shape(f"{name}.{part}", entry.shape, form)
            if entry.dtype not in (FLOATS if part == "scales" else ("I32",)):
                raise ModelRejected(
                    f"tensor {name}.{part} of type {entry.dtype} can't be read", code="model_tensor_type"
                )
        self._name, self._format, self._parts = name, format, parts
        self._shape = (outputs, inputs)
        self._groups = groups
        self._group = group

    def raw(self) -> RawTensor:
        """As Q4_0 or Q4_1, or as F16 where columns are in an order of their own. Refuses scales beyond f16's range and
        groups that don't exist (`model_tensor_value`)."""
        codes, zeros, scales = self._codes(), self._zeros(), self._scales()
        order = self._order()
        if order is not None:
            values = scales.astype(np.float32)[order].T * (codes.astype(np.int32) - zeros[order].T)
            narrow = self._narrow(values, scales.astype(np.float32)[order].T / STEP_PART)
            return RawTensor("F16", np.ascontiguousarray(narrow).view(np.uint8), self._shape)
        steps = scales.T
        if (zeros == 8).all():
            return RawTensor("Q4_0", self._blocks(codes, [steps]), self._shape)
        wide = steps.astype(np.float32)
        minima = self._narrow(-wide * zeros.T, wide / STEP_PART)
        return RawTensor("Q4_1", self._blocks(codes, [steps, minima]), self._shape)

    def _blocks(self, codes: U8, heads: list[F16]) -> U8:
        """[out, bytes of a row]: heads f16 [out, groups], then codes 0 to 15 in low halves, 16 to 31 in high ones."""
        outputs, inputs = self._shape
        halves = codes.reshape(outputs, inputs // UNIT, 2, UNIT // 2)
        each = np.arange(inputs // UNIT) * UNIT // self._group
        columns = [np.ascontiguousarray(head[:, each]).view(np.uint8).reshape(outputs, -1, 2) for head in heads]
        blocks = np.concatenate([*columns, halves[:, :, 0] | halves[:, :, 1] << 4], axis=-1)
        return blocks.reshape(outputs, -1)

    def _codes(self) -> U8:
        """[out, in], 0 to 15."""
        words = self._integers("qweight")
        if self._format.method == "awq":
            return np.ascontiguousarray(_columns(words, _AWQ_ORDER).T)
        return np.ascontiguousarray(_columns(words.T, tuple(range(8))))

    def _zeros(self) -> NDArray[np.int32]:
        """[groups, out]."""
        order = _AWQ_ORDER if self._format.method == "awq" else tuple(range(8))
        return _columns(self._integers("qzeros"), order).astype(np.int32) + self._format.zeros_less

    def _scales(self) -> F16:
        """[groups, out]."""
        entry, data = self._parts["scales"]
        if entry.dtype == "BF16":
            values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = data.view(np.float16 if entry.dtype == "F16" else np.float32).astype(np.float32)
        return self._narrow(values, values * 2.0**-11).reshape(entry.shape)

    def _narrow(self, values: NDArray[np.float32], off: NDArray[np.floating[Any]]) -> F16:
        """As f16. Refuses values that f16 is further from than `off`, of the same shape, and what is no number."""
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = values.astype(np.float16)
            near = np.abs(narrow.astype(np.float32) - values) <= np.abs(off)
        if not near.all():
            message = f"tensor {self._name}.scales has values that f16 can't hold: {values[~near][0]:g}"
            raise ModelRejected(message, code="model_tensor_value")
        return narrow

    def _order(self) -> NDArray[np.int32] | None:
        """The group of each column, None if they are one after the other."""
        if "g_idx" not in self._parts:
            return None
        found = self._integers("g_idx")
        if (unknown := found[(found < 0) | (found >= self._groups)]).size:
            raise ModelRejected(
                f"tensor {self._name}.g_idx names group {unknown[0]} of {self._groups}", code="model_tensor_value"
            )
        return None if np.array_equal(found, np.arange(len(found)) // self._group) else found

    def _integers(self, part: str) -> NDArray[np.int32]:
        entry, data = self._parts[part]
        return data.view(np.int32).reshape(entry.shape)


def _columns(words: NDArray[np.int32], order: tuple[int, ...]) -> U8:
    """[rows, words] to [rows, 8 · words]: half byte i of a word, from the lowest, is column `order[i]`."""
    columns = np.empty((*words.shape, 8), dtype=np.uint8)
    for half, column in enumerate(order):
        columns[..., column] = words >> 4 * half & 15
    return columns.reshape(len(words), -1)
