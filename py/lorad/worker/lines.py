"""Sampling parameters by line of the page table, so that a step samples all its rows in one call."""

from __future__ import annotations

import numpy as np

from lorad.engine.messages import Sampling
from lorad.worker.plan import Ints


class SamplingLines:
    """One row of parameters for each line; a request writes its line when it takes it."""

    def __init__(self, rows_max: int) -> None:
        self.temperature = np.zeros(rows_max, dtype=np.float32)
        self.top_k = np.zeros(rows_max, dtype=np.int32)
        self.top_p = np.ones(rows_max, dtype=np.float32)
        self.min_p = np.zeros(rows_max, dtype=np.float32)
        self.seed = np.zeros(rows_max, dtype=np.uint64)
        self.logprobs = np.full(rows_max, -1, dtype=np.int32)

    def open(self, line: int, sampling: Sampling) -> None:
        """Sets the parameters of the request that took `line`."""
        self.temperature[line] = sampling.temperature
        self.top_k[line] = sampling.top_k
        self.top_p[line] = sampling.top_p
        self.min_p[line] = sampling.min_p
        self.seed[line] = sampling.seed
        self.logprobs[line] = sampling.logprobs

    def best_wanted(self, lines: Ints) -> int:
        """How many best tokens the most demanding of `lines` asked for; -1: nobody wants log-probabilities."""
        return int(self.logprobs[lines].max(initial=-1))
