"""`PromptScores`: how probable each token of a prompt was, for requests that want to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from lorad.engine.messages import TokenLogprobs
from lorad.worker.ops import F32, StepArrays
from lorad.worker.plan import Ints


class _Prompt:
    """One request's."""

    def __init__(self, tokens: NDArray[np.uint32], best: int) -> None:
        self.tokens = tokens
        self.best = best
        """How many of the likeliest tokens are told at each place."""
        self.found: list[TokenLogprobs] = []
        """Of the tokens from the second on: nothing comes before the first."""


class PromptScores:
    """Kept by request: a prompt that is computed in pieces, or again after a preemption, is told of once."""

    def __init__(self, rows_max: int) -> None:
        """`rows_max`: logits that the model has room for."""
        self._rows_max = rows_max
        self._prompts: dict[int, _Prompt] = {}

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def expect(self, request: int, tokens: NDArray[np.uint32], best: int) -> None:
        """A request's prompt will come by."""
        self._prompts[request] = _Prompt(tokens, best)

    def take(self, request: int) -> list[TokenLogprobs]:
        """What was found, at its end."""
        prompt = self._prompts.pop(request, None)
        return [] if prompt is None else prompt.found

    def look(self, step: StepArrays, token_request: NDArray[np.uint64], logits_of: Callable[[StepArrays], F32]) -> None:
        """Looks at the prompts' tokens of a step that was just computed. `token_request`: the request of each token;
        `logits_of` gives the logits of the tokens that a step names as sampled."""
        places = np.array(list(self._places(step, token_request)), dtype=np.int32)
        for begin in range(0, len(places), self._rows_max):
            some: Ints = places[begin : begin + self._rows_max]
            logits = logits_of(step._replace(sample_token=some))
            peaks = logits.max(axis=1)
            totals = peaks + np.log(np.exp(logits - peaks[:, None]).sum(axis=1))
            for row, place in enumerate(some.tolist()):
                prompt = self._prompts[int(token_request[place])]
                token = int(prompt.tokens[int(step.token_pos[place]) + 1])
                prompt.found.append(_scored(logits[row], float(totals[row]), token, prompt.best))

    def _places(self, step: StepArrays, token_request: NDArray[np.uint64]) -> Iterator[int]:
        """Tokens of the step that are followed by one of their prompt which isn't told of yet, in order."""
        told = {request: len(prompt.found) for request, prompt in self._prompts.items()}
        wanted = np.isin(token_request, np.fromiter(told, dtype=np.uint64))
        for place in np.flatnonzero(wanted).tolist():
            request, position = int(token_request[place]), int(step.token_pos[place])
            if position == told[request] and position + 1 < len(self._prompts[request].tokens):
                told[request] += 1
                yield place


def _scored(logits: F32, total: float, token: int, best: int) -> TokenLogprobs:
    top: list[tuple[int, float]] = []
    if best:
        likeliest = np.argpartition(logits, -best)[-best:]
        likeliest = likeliest[np.argsort(-logits[likeliest], kind="stable")]
        top = [(int(one), float(logits[one]) - total) for one in likeliest]
    return TokenLogprobs(float(logits[token]) - total, top)
