"""SGLang's chunked pair of LoRA kernels on a site's operands: called as it's installed, nothing of it is copied."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.lora.triton_ops import chunked_sgmv_lora_expand_forward, chunked_sgmv_lora_shrink_forward
from torch import Tensor

CHUNK = 16


def sides(site: Any, count: int) -> list[Callable[[Tensor], None]]:
    """`site`: sections.peers.Site. Slices lie behind one another at their adapter's rank, with room for the highest."""
    adapters, slices, tokens = len(site.a), len(site.a[0]), len(site.x)
    rank = max(16, *(adapter[0].shape[0] for adapter in site.a))
    widths = [part.shape[0] for part in site.b[0]]
    a = site.x.new_zeros(adapters, slices * rank, site.x.shape[1])
    b = site.x.new_zeros(adapters, sum(widths), rank)
    for slot in range(adapters):
        whole = torch.cat(site.a[slot])
        a[slot, : len(whole)] = whole
        b[slot, :, : site.b[slot][0].shape[1]] = torch.cat(site.b[slot])
    begins = [at for at in range(tokens) if at == 0 or site.owner[at] != site.owner[at - 1]]
    chunks = [at for begin, end in zip(begins, [*begins[1:], tokens], strict=True) for at in range(begin, end, CHUNK)]

    def i32(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=site.x.device)

    info = SimpleNamespace(
        use_cuda_graph=True,
        bs=len(chunks),
        num_segments=len(chunks),
        seg_indptr=i32([*chunks, tokens]),
        weight_indices=site.owner[chunks].contiguous(),
        lora_ranks=i32([adapter[0].shape[0] for adapter in site.a]),
        scalings=torch.ones(adapters, device=site.x.device),
        max_len=CHUNK,
        seg_lens=None,
        permutation=i32(list(range(tokens))),
    )
    offsets = i32([sum(widths[:part]) for part in range(slices + 1)])

    def side(own_a: Tensor, own_b: Tensor) -> Callable[[Tensor], None]:
        def add(y: Tensor) -> None:
            between = chunked_sgmv_lora_shrink_forward(site.x, own_a, info, slices)
            chunked_sgmv_lora_expand_forward(between, own_b, info, offsets, max(widths), y)

        return add

    return [side(a.clone(), b.clone()) for _ in range(count)]
