"""Times plans on a machine that isn't quiet, beside a reference plan.

Other work on the machine, and other machines on its host, slow everything down by up to a half for seconds. So the same
reference plan is timed before and after each measurement, and each measurement is scaled by what the reference took
above its usual time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from rig import Rig, Stage
from sample import Measured, Sample
from scene import Scene

from lorad.adapters.image import AdapterImage
from lorad.models.weights import Weights

BLOCK_NS = 50_000_000
"""A measurement repeats its plan for about so long, and takes the median."""
BLOCK_MAX = 7
USUAL = 0.1
"""The reference's usual time is this quantile of all its times."""
FRESH_NS = 100_000_000
"""So long the reference's last time still holds."""
REFERENCE = Scene("mixed", "one adapter", 1, (200,) * 6, (16,), 22, (None, None, None, 0, 0, 0, 0), None, 0)
REFERENCE_POOL_BYTES = 256 << 20


class Reference:
    """One plan on a worker of its own, with its own copy of the weights, that touches a bit of everything."""

    def __init__(self, weights: Weights, image: AdapterImage) -> None:
        rig = Rig(weights, REFERENCE_POOL_BYTES, len(REFERENCE.of))
        self._stage = Stage(rig, [image], REFERENCE, 0)
        if not self._stage.reach():
            raise RuntimeError("the core doesn't make the reference plan")
        self.times: list[int] = []
        self._timed_ns = 0

    @property
    def usual_ns(self) -> int:
        """What it takes while nothing disturbs."""
        times = sorted(self.times)
        return times[int(len(times) * USUAL)]

    def told(self) -> str:
        """How quiet the machine was."""
        times = sorted(self.times)
        least, half = times[0] / self.usual_ns, times[len(times) // 2] / self.usual_ns
        return (
            f"the reference plan took {self.usual_ns / 1e6:.1f} ms when it was quiet, to which all times are scaled; "
            f"{least:.2f} times that at least, {half:.2f} times in the median"
        )

    def measure(
        self,
        sample: Sample,
        work: Callable[[], object],
        before: Callable[[], object] | None = None,
        repeats_min: int = 3,
    ) -> None:
        """Adds a measurement of `work` to `sample`; `before` runs before each repeat, untimed."""
        if time.perf_counter_ns() - self._timed_ns > FRESH_NS:
            self._time()
        first, times = self.times[-1], []
        while len(times) < repeats_min or (sum(times) < BLOCK_NS and len(times) < BLOCK_MAX):
            if before is not None:
                before()
            times.append(once(work))
        self._time()
        sample.measured.append(Measured(int(median(times)), first, self.times[-1]))

    def _time(self) -> None:
        self.times.append(min(once(lambda: self._stage.worker.run(self._stage.plan)) for _ in range(2)))
        self._timed_ns = time.perf_counter_ns()


def once(work: Callable[[], object]) -> int:
    """How long it takes, ns."""
    begin = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begin
