"""Rotation and page writes by their definitions, on the kernel's buffers."""

from __future__ import annotations

import torch
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.pages import Pages
from lorad.kernels.rms_norm.ref import rms_norm
from lorad.kernels.rope import ref
from lorad.kernels.rope.kernel import HeadNorms


def rope_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    line: Tensor,
    count: Tensor,
    pages: Pages,
    layer: int,
    norms: HeadNorms | None = None,
) -> None:
    launch(_rope_write, None, qkv, cos, sin, position, line, count, pages, layer, norms)


def _rope_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    line: Tensor,
    count: Tensor,
    pages: Pages,
    layer: int,
    norms: HeadNorms | None,
) -> None:
    n, kv_heads = int(count), pages.kv_heads
    place = position[:n].long()
    heads = qkv[:n].unflatten(1, (-1, pages.head_dim))
    q, k, v = heads.float().tensor_split([heads.shape[1] - 2 * kv_heads, heads.shape[1] - kv_heads], dim=1)
    if norms is not None:
        q, k = rms_norm(q, norms.q, norms.eps), rms_norm(k, norms.k, norms.eps)
    q, k = (ref.rope(x, cos, sin, place) for x in (q, k))
    heads[:, :-kv_heads] = torch.cat([q, k], dim=1).to(qkv.dtype)
    page = pages.table[line[:n].long(), place // pages.page_tokens].long()
    geometry = (pages.layers, kv_heads, pages.page_tokens, pages.head_dim, getattr(torch, pages.dtype))
    ref.write_pages(pages.arena, page, place % pages.page_tokens, k, v, layer, *geometry)
