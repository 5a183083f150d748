"""Measures many plans in rounds, so that each is measured at several moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from adapters import random_image
from reference import Reference
from rig import Rig, Stage
from sample import Sample
from scene import OF_EACH_RANK, PAGE_IN_RANKS, RANKS, ROWS_MAX, Scene

from lorad.models.open import open_model

POOL_BYTES = 4 << 30
FLUSH_BYTES = 96 << 20
"""Read before each page-in, more than a cache holds: an adapter that comes in wasn't used lately."""
COPIES = 15
"""Repeats of a page-in in each measurement: short ones vary."""


class Bench:
    """The worker, the adapters and the reference."""

    def __init__(self, model: str) -> None:
        self.weights = open_model(model, lambda stage, done, total: None)
        self.rig = Rig(self.weights, POOL_BYTES, ROWS_MAX + 1)
        page_bytes = self.rig.worker.geometry.page_bytes
        ranks = (*RANKS * OF_EACH_RANK, *PAGE_IN_RANKS)
        self.images = [random_image(self.weights.config, rank, seed, page_bytes) for seed, rank in enumerate(ranks)]
        self.reference = Reference(self.weights, self.images[RANKS.index(max(RANKS))])
        self._flush = np.ones(FLUSH_BYTES, dtype=np.uint8)

    def sample(self, scene: Scene, sample: Sample | None) -> Sample | None:
        """Measures the plan of a scene once more; None: the scene doesn't lead to one."""
        for skip in dict.fromkeys((scene.skip, 0)):
            stage = Stage(self.rig, self.images, scene, skip)
            try:
                if stage.reach():
                    rows = stage.rows()
                    sample = sample or Sample(scene.kind, scene.adapters, rows, stage.page_in_pages)
                    if rows != sample.rows:
                        raise RuntimeError("the core made another plan of the same scene")
                    self._measure(stage, sample)
                    return sample
            finally:
                stage.close()
        return None

    def _measure(self, stage: Stage, sample: Sample) -> None:
        def start() -> None:
            self.rig.copied()
            stage.start_page_ins()

        def empty_cache() -> None:
            self.rig.copied()
            self._flush.sum()

        def copy() -> None:
            stage.start_page_ins()
            self.rig.copied()

        if sample.is_step:
            self.reference.measure(sample, lambda: stage.worker.run(stage.plan), start if stage.page_ins else None)
        else:
            self.reference.measure(sample, copy, empty_cache, COPIES)


def measure(
    bench: Bench, scenes: Sequence[Scene], rounds: int, on_progress: Callable[[int, int], None]
) -> dict[int, Sample]:
    """By a scene's place a sample, if it leads to a plan; measured once in each round.

    `on_progress`: how many are measured, of how many.
    """
    found: dict[int, Sample] = {}
    for number in range(rounds):
        for index, scene in enumerate(scenes):
            sample = bench.sample(scene, found.get(index))
            if sample is not None:
                found[index] = sample
            on_progress(number * len(scenes) + index + 1, rounds * len(scenes))
    for sample in found.values():
        sample.settle(bench.reference.usual_ns)
    return found
