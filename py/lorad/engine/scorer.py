"""`Scorer`: an engine that tells how probable given answers are, token by token, computed in mixed batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lorad.engine.engine import Engine
from lorad.engine.request import Request
from lorad.lazy import torch
from lorad.worker.ops import StepArrays
from lorad.worker.plan import Plan
from lorad.worker.worker import Samples

TOKENS_MAX = 128
"""In a step; logits are kept for all of them at once."""


class Score(NamedTuple):
    """An answer's."""

    total: float
    """Sum of its tokens' log-probabilities, natural."""
    tokens: int


class Scorer:
    """An engine whose worker also looks at the tokens of a prompt, not only at the one to sample. Not for serving."""

    def __init__(self, model: str, adapters: dict[str, str], **options: Any) -> None:
        """`adapters`: folders by name; `options` of the engine."""
        # Without a prefix cache, so that every token is computed here and not found there.
        size = {"max_num_batched_tokens": TOKENS_MAX, "max_num_seqs": TOKENS_MAX, "enable_prefix_caching": False}
        self.engine = Engine(model, **(size | options))
        for name, path in adapters.items():
            self.engine.load_adapter(name, path)
        self._texts: dict[int, tuple[Sequence[int], int]] = {}
        self._found: dict[int, list[float]] = {}
        self._lines: dict[int, int] = {}
        # This engine's own worker, whose steps are looked into; what they sample doesn't matter.
        self.engine.worker.run = self._run  # type: ignore[method-assign]

    def scores(self, asked: Sequence[tuple[str, Sequence[int], int]]) -> list[Score]:
        """For each (model, ids, where its answer begins). "" is the base."""
        requests: list[Request] = []
        for model, ids, answer in asked:
            request = self.engine.add(ids[:-1], model, max_tokens=1, stop_token_ids=())
            self._texts[request.id], self._found[request.id] = (ids, answer), []
            requests.append(request)
        while self.engine.step():
            pass
        made = []
        for request in requests:
            (ids, answer), found = self._texts.pop(request.id), self._found.pop(request.id)
            if request.finish != "length" or len(found) != len(ids) - answer:
                raise RuntimeError(f"{request}: {len(found)} tokens scored of {len(ids) - answer}")
            made.append(Score(sum(found), len(found)))
        return made

    def _run(self, plan: Plan) -> Samples:
        self._lines.update(plan.opened())
        step = StepArrays.of(plan)
        requests = [self._lines[line] for line in step.token_line.tolist()]
        places = [
            (index, request, position + 1)
            for index, (request, position) in enumerate(zip(requests, step.token_pos.tolist(), strict=True))
            if position + 1 >= self._texts[request][1]
        ]
        if places:
            logits = self.engine.worker.model.forward(
                step._replace(sample_token=np.array([index for index, _, _ in places], dtype=np.int32))
            )
            logprobs = torch.log_softmax(torch.from_numpy(logits), dim=-1)
            for row, (_, request, position) in enumerate(places):
                self._found[request].append(float(logprobs[row, self._texts[request][0][position]]))
        else:
            self.engine.worker.model.forward(step)
        # One token ends each request, whatever it is.
        return Samples(np.zeros(plan.samples, dtype=np.int32), {})

    def close(self) -> None:
        """Ends the engine."""
        self.engine.close()
