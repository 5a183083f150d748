"""`Scorer`: an engine that tells how probable given answers are, computed in mixed batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lorad.engine.engine import Engine

TOKENS_MAX = 128
"""In a step, of as many texts."""


class Score(NamedTuple):
    """An answer's."""

    total: float
    """Sum of its tokens' log-probabilities, natural."""
    tokens: int


class Scorer:
    """Scores by the log-probabilities of prompts' tokens."""

    def __init__(self, model: str, adapters: dict[str, str], **options: Any) -> None:
        """`adapters`: folders by name; `options` of the engine."""
        # Nothing is found in a prefix cache where all is computed.
        size = {"max_num_batched_tokens": TOKENS_MAX, "max_num_seqs": TOKENS_MAX, "enable_prefix_caching": False}
        self.engine = Engine(model, **(size | options))
        for name, path in adapters.items():
            self.engine.load_adapter(name, path)

    def scores(self, asked: Sequence[tuple[str, Sequence[int], int]]) -> list[Score]:
        """For each (model, ids, where its answer begins). "" is the base."""
        requests = [
            # One token ends each request, whatever it is.
            self.engine.add(ids, model, max_tokens=1, stop_token_ids=(), prompt_logprobs=0)
            for model, ids, _ in asked
        ]
        while self.engine.step():
            pass
        made = []
        for request, (_, ids, answer) in zip(requests, asked, strict=True):
            found = [one.chosen for one in request.prompt_logprobs]
            if request.finish != "length" or len(found) != len(ids) - 1:
                raise RuntimeError(f"{request}: {len(found)} tokens scored of {len(ids) - 1}")
            made.append(Score(sum(found[answer - 1 :]), len(ids) - answer))
        return made

    def close(self) -> None:
        """Ends the engine."""
        self.engine.close()
