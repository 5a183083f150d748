"""What the device is, and what its memory, its links and its tensor cores give."""

from __future__ import annotations

import platform

import torch
import triton

from report import Report
from scene import Scene
from timing import bandwidth, each_us

PRODUCT = 8192


def run(scene: Scene, report: Report) -> None:
    versions = f"torch {torch.__version__}, Triton {triton.__version__}, Python {platform.python_version()}"
    report.tells("versions", None, versions)
    if scene.dry:
        report.tells("device", None, "CPU tensors")
    else:
        found = torch.cuda.get_device_properties(scene.device)
        capability = found.major * 10 + found.minor
        memory = f"{found.total_memory / 2**30:.0f} GiB, {found.multi_processor_count} multiprocessors"
        report.tells("device", None, f"{found.name}, sm_{capability}, {memory}")
        report.must("capability", capability >= 80, f"{capability / 10}, at least 8.0 is wanted")
    rate = bandwidth(scene)
    report.tells("copy in its memory, read + written", rate, f"{rate / 1e12:.2f} TB/s")
    rate = _from_host(scene)
    report.tells("copy from pinned memory", rate, f"{rate / 1e9:.1f} GB/s")
    width = 64 if scene.dry else PRODUCT
    x, w = (torch.randn(width, width, device=scene.device).bfloat16() for _ in range(2))
    y = torch.empty_like(x)
    rate = 2 * width**3 / (each_us(scene, [lambda: torch.mm(x, w, out=y)]).median * 1e-6)
    report.tells(f"product of bf16, {width} cubed", rate, f"{rate / 1e12:.0f} TFLOP/s")


def _from_host(scene: Scene) -> float:
    """Bytes a second."""
    size = 1 << 16 if scene.dry else 256 << 20
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=not scene.dry)
    target = torch.empty(size, dtype=torch.uint8, device=scene.device)
    best = float("inf")
    for _ in range(5):
        begin = scene.now()
        target.copy_(source, non_blocking=True)
        best = min(best, scene.now() - begin)
    return size / best
