"""The products of a model: which weights are stacked and multiplied together, and as what kinds of matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from lorad import _core
from lorad.models.weights import RawTensor, Weights


class Stack(NamedTuple):
    """Weights over one input, by their canonical names; their outputs lie side by side."""

    names: tuple[str, ...]
    fine: bool = False
    """See `_core.QuantMatrix`."""


class MatrixKind(NamedTuple):
    """What the time of a product depends on, beside rows of x."""

    element: str
    """f32, f16, bf16 or one of QUANT_KINDS."""
    rows: int
    cols: int
    fine: bool


def layer_stacks(layer: int) -> tuple[Stack, Stack, Stack, Stack]:
    """q|k|v, o, gate|up, down."""
    at = f"layers.{layer}."
    # A few channels of attention's input are by far larger than the others: with 8 bits for a block of 32, what stands
    # beside them would be lost.
    qkv = Stack((f"{at}q_proj", f"{at}k_proj", f"{at}v_proj"), fine=True)
    return qkv, Stack((f"{at}o_proj",)), Stack((f"{at}gate_proj", f"{at}up_proj")), Stack((f"{at}down_proj",))


def alike(parts: Sequence[RawTensor], *, dequantize: bool) -> Iterator[tuple[str, list[RawTensor]]]:
    """Neighbours that are one matrix: of one quantised type, by its name, or of floats, by "".

    Files of mixed types are common: llama.cpp's Q4_K_M has v in Q6_K in half of the layers.
    """

    def quantised(part: RawTensor) -> str:
        return part.kind if not dequantize and part.kind in _core.QUANT_KINDS else ""

    for kind, run in groupby(parts, quantised):
        yield kind, list(run)


def matrix_kinds(weights: Weights, *, dequantize: bool) -> set[MatrixKind]:
    """What the model multiplies with; nothing of it is read but q and k where they lie in another order."""
    config = weights.config
    stacks = [stack for layer in range(config.layers) for stack in layer_stacks(layer)]
    stacks.append(Stack(("embed" if config.tie_embeddings else "head",)))
    return {
        _kind(kind, run, stack.fine)
        for stack in stacks
        for kind, run in alike([weights.tensor(name) for name in stack.names], dequantize=dequantize)
    }


def _kind(kind: str, run: Sequence[RawTensor], fine: bool) -> MatrixKind:
    rows, cols = sum(part.rows for part in run), run[0].cols
    if kind:
        return MatrixKind(kind, rows, cols, fine)
    # Floats of one type stay as they are, others are widened.
    element = run[0].kind.lower() if len({part.kind for part in run}) == 1 and run[0].is_dense else "f32"
    return MatrixKind(element, rows, cols, False)
