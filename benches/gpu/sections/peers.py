"""G3: the LoRA operator at the sites of an 8B-shaped model, beside vLLM's and SGLang's kernels if these are there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from math import isnan
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpu_adapters import LAYER, GpuAdapters, tiles_of, work_list
from lora_cases import CLOSE
from lorad.kernels.lora.kernel import lora, workspace_shape
from lorad.kernels.lora.table import Table
from report import Report
from scene import Scene
from timing import bandwidth, copies, each_us

SITES = {
    "qkv": (4096, (4096, 1024, 1024)),
    "o": (4096, (4096,)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}
TOKENS = 64
RANKS = {
    "1 distinct": [16],
    "8 distinct": [16] * 8,
    "64 distinct": [16] * 64,
    "7 of r=8, 1 of r=128": [8] * 7 + [128],
}
FASTER = {"64 distinct": 2.0, "7 of r=8, 1 of r=128": 3.0}
"""Of all sites together, than the faster peer."""
PEERS = ("vllm", "sglang")


class Site(NamedTuple):
    """One product's adapters and operands, as all sides get them."""

    a: list[list[Tensor]]
    """[adapter][slice] bf16 [rank, in]."""
    b: list[list[Tensor]]
    """[adapter][slice] bf16 [out, rank]."""
    owner: Tensor
    """i32 [tokens]: each token's adapter, ascending."""
    x: Tensor
    """bf16 [tokens, in]"""
    y: Tensor
    """bf16 [tokens, all of out]: what the base's product gave."""

    def wanted(self) -> Tensor:
        """f32, by the definition."""
        out = self.y.float()
        for token, adapter in enumerate(self.owner.tolist()):
            x = self.x[token].float()
            out[token] += torch.cat(
                [b.float() @ (a.float() @ x) for a, b in zip(self.a[adapter], self.b[adapter], strict=True)]
            )
        return out

    def bytes(self) -> int:
        """That have to be read and written."""
        weights = sum(one.nbytes for adapter in (*self.a, *self.b) for one in adapter)
        return weights + self.x.nbytes + 2 * self.y.nbytes


Side = Callable[[Tensor], None]
"""Adds the adapters of all tokens to y."""


def run(scene: Scene, report: Report) -> None:
    rate = bandwidth(scene)
    sites = {"tiny": (32, (16, 16))} if scene.dry else SITES
    peers = {name: module for name in PEERS if (module := _peer(name, report)) is not None}
    for load, ranks in ({"2 distinct": [4, 8]} if scene.dry else RANKS).items():
        took: dict[str, float] = {}
        floor = 0.0
        for place, (inputs, widths) in sites.items():
            site, own = make_site(scene, inputs, widths, ranks)
            count = copies(site.bytes(), scene)
            sides = {"lorad": own(count)} | {name: made.sides(site, count) for name, made in peers.items()}
            wanted = site.wanted()
            floor += site.bytes() / rate * 1e6
            for name, calls in sides.items():
                y = site.y.clone()
                calls[0](y)
                near = torch.allclose(
                    y.float(), wanted, rtol=CLOSE[y.dtype], atol=CLOSE[y.dtype] * float(wanted.abs().max())
                )
                if name == "lorad":
                    report.must(f"{load}, {place}: as defined", near)
                elif not near:
                    report.skipped(f"{load}, {place}: {name}", "it computes something else, so its time says nothing")
                    took[name] = float("nan")
                    continue
                outs = [site.y.clone() for _ in calls]
                us = each_us(
                    scene,
                    [lambda call=call, out=out: call(out) for call, out in zip(calls, outs, strict=True)],
                )
                took[name] = took.get(name, 0.0) + us.median
                report.tells(
                    f"{load}, {place}: {name}",
                    us.median,
                    f"{us.median:.1f} µs ({us.least:.1f} to {us.most:.1f})",
                )
        report.tells(f"{load}, all sites: of the byte floor", floor / took["lorad"], f"{floor / took['lorad']:.0%}")
        others = [us for name, us in took.items() if name != "lorad" and not isnan(us)]
        if others and load in FASTER:
            times = min(others) / took["lorad"]
            report.figure(f"G3: {load}, faster than the best peer", times, f"{times:.2f} ×", least=FASTER[load])


def _peer(name: str, report: Report) -> object | None:
    try:
        importlib.import_module(name)
        return importlib.import_module(f"peer_{name}")
    except Exception as failure:  # an installation that can't be imported is like none
        report.skipped(f"G3: {name}'s kernels", f"{type(failure).__name__}: {str(failure)[:80]}")
        return None


def make_site(
    scene: Scene, inputs: int, widths: tuple[int, ...], ranks: list[int], tokens: int = TOKENS
) -> tuple[Site, Callable[[int], list[Side]]]:
    """The operands, and what makes so many of lorad's sides, each with its own copy of the adapters."""
    rng, modules = np.random.default_rng(0), range(len(widths))
    made = GpuAdapters(rng, [(inputs, width) for width in widths], 1 << 12 if scene.dry else 1 << 21)
    for rank in ranks:
        made.add(rank, "bf16", list(modules))
    arena, table = made.build()
    tokens = len(ranks) if scene.dry else tokens
    owner = np.sort(np.arange(tokens) % len(ranks)).astype(np.int32)
    tiles = []
    for slot in range(len(ranks)):
        rows = np.flatnonzero(owner == slot)
        tiles += tiles_of(slot, int(rows[0]), len(rows))
    work = [part.to(scene.device) for part in work_list(tiles, 4)]
    there = Table(*(part.to(scene.device) for part in table.table[:4]), table.table.modules)
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(tokens, wide, generator=random).bfloat16().to(scene.device) for wide in (inputs, sum(widths)))
    scaled = [[one[module].a * one[module].scale for module in modules] for one in made.weights]
    site = Site(
        [[a.bfloat16().to(scene.device) for a in adapter] for adapter in scaled],
        [[one[module].b.to(scene.device) for module in modules] for one in made.weights],
        torch.from_numpy(owner).to(scene.device),
        x,
        y,
    )
    columns = [sum(widths[:module]) for module in modules]
    workspace = torch.empty(workspace_shape(tokens, inputs, len(widths), max(ranks)), device=scene.device)

    def sides(count: int) -> list[Side]:
        arenas = [arena.to(scene.device).clone() for _ in range(count)]
        return [
            lambda out, own=own: lora(out, x, own, there, *work, LAYER, modules, columns, widths, workspace)
            for own in arenas
        ]

    return site, sides
