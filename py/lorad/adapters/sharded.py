"""An adapter's part for one rank of several, divided like the base's weights: no sum between ranks is added.

Where the base is divided by outputs, A is on every rank and B by rows; where by inputs, A by columns and B on every
rank, so each adds its part to what is summed anyway. A gain is a factor of each part of that sum; a bias is one rank's.
"""

from __future__ import annotations

from dataclasses import replace

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.lazy import torch
from lorad.models.shard import BY_INPUTS, BY_OUTPUTS, Shard


def sharded(checked: CheckedAdapter, shard: Shard) -> CheckedAdapter:
    """The part of one rank. Parts of all ranks have equal shapes, those of vectors included."""
    return replace(checked, modules=tuple(_part(lora, shard) for lora in checked.modules))


def _part(lora: ModuleLora, shard: Shard) -> ModuleLora:
    module = shard.config.adaptable()[lora.module]

    def cut(tensor: torch.Tensor, axis: int, width: int) -> torch.Tensor:
        begin, end = shard.range(tensor.shape[axis], width)
        part = tensor.narrow(axis, begin, end - begin)
        missing = width - part.shape[axis]
        fill = (0, missing) if axis == tensor.ndim - 1 else (0, 0, 0, missing)
        return torch.nn.functional.pad(part, fill).contiguous()

    if module.name in BY_OUTPUTS:
        b, gain, bias = (
            None if part is None else cut(part, 0, module.out_features) for part in (lora.b, lora.gain, lora.bias)
        )
        assert b is not None
        return lora._replace(b=b, gain=gain, bias=bias)
    if module.name in BY_INPUTS:
        others = lora.bias if lora.bias is None or shard.rank == 0 else torch.zeros_like(lora.bias)
        return lora._replace(a=cut(lora.a, 1, module.in_features), bias=others)
    return lora
