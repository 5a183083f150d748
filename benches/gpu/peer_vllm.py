"""vLLM's pair of LoRA kernels on a site's operands: called as it's installed, nothing of it is copied."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.lora.ops.triton_ops import LoRAKernelMeta, lora_expand, lora_shrink


def sides(site: Any, count: int) -> list[Callable[[Tensor], None]]:
    """`site`: sections.peers.Site. Adapters lie in slots padded to the highest rank, as vLLM keeps them."""
    adapters, slices, tokens = len(site.a), len(site.a[0]), len(site.x)
    rank = max(16, *(adapter[0].shape[0] for adapter in site.a))
    stacked_a, stacked_b = [], []
    for part in range(slices):
        a = site.x.new_zeros(adapters, rank, site.x.shape[1])
        b = site.x.new_zeros(adapters, site.b[0][part].shape[0], rank)
        for slot in range(adapters):
            own = site.a[slot][part].shape[0]
            a[slot, :own], b[slot, :, :own] = site.a[slot][part], site.b[slot][part]
        stacked_a.append(a)
        stacked_b.append(b)
    meta = LoRAKernelMeta.make(max_loras=adapters, max_num_tokens=tokens, device=site.x.device)
    meta.prepare_tensors(site.owner)
    specialised = {"specialize_active_lora": False} if len(inspect.signature(meta.meta_args).parameters) > 1 else {}
    args = meta.meta_args(tokens, **specialised)
    between = torch.zeros(slices, tokens, rank, dtype=torch.float32, device=site.x.device)

    def side(a: list[Tensor], b: list[Tensor]) -> Callable[[Tensor], None]:
        def add(y: Tensor) -> None:
            lora_shrink(site.x, a, between, *args, 1.0)
            lora_expand(between, b, y, *args, offset_start=0, add_inputs=True)

        return add

    return [side([a.clone() for a in stacked_a], [b.clone() for b in stacked_b]) for _ in range(count)]
