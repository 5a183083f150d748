"""G2: the step over an INT4 base. It waits for a product with four-bit weights on the device."""

from __future__ import annotations

from report import Report
from scene import Scene


def run(scene: Scene, report: Report) -> None:
    report.skipped(
        "G2: step over an INT4 base",
        "the GPU worker widens quantised weights, it has no product with them yet",
    )
