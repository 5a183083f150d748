"""What a request asks for, checked: whoever calls the engine, the worker computes only what it can."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lorad.engine.messages import Sampling
from lorad.errors import InvalidRequest

_RANGES: dict[str, tuple[type, float, float]] = {
    "max_tokens": (int, 1, 2**31 - 1),
    "temperature": (float, 0, math.inf),
    "top_p": (float, 0, 1),
    "top_k": (int, 0, 2**31 - 1),
    "min_p": (float, 0, 1),
    "seed": (int, 0, 2**64 - 1),
    "logprobs": (int, -1, 2**31 - 1),
}
"""Field to its type, least and largest value."""


def check_sampling(sampling: Sampling) -> Sampling:
    """Refuses a value of another type or out of range, naming the field, the limit and the value."""
    for field, (kind, least, most) in _RANGES.items():
        value = getattr(sampling, field)
        right = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if isinstance(value, bool) or not right:
            raise _out_of_range(field, f"{'a number' if kind is float else 'a whole number'}", value)
        if not (least <= value <= most) or math.isinf(value):
            raise _out_of_range(field, f"{least} to {most}", value)
    if sampling.top_p == 0:
        raise _out_of_range("top_p", "above 0", sampling.top_p)
    token_ids(sampling.stop_token_ids, 2**31, "stop_token_ids")
    return sampling


def token_ids(tokens: Sequence[int] | NDArray[np.uint32], vocab: int, field: str = "prompt") -> NDArray[np.uint32]:
    """Token ids as the core takes them. Raises InvalidRequest for what isn't one below `vocab`."""
    given = np.asarray(tokens) if len(tokens) else np.empty(0, dtype=np.uint32)
    if given.ndim == 1 and given.dtype.kind in "iu" and (given.size == 0 or 0 <= given.min() <= given.max() < vocab):
        return given.astype(np.uint32)
    wrong = [token for token in tokens if not isinstance(token, (int, np.integer)) or not 0 <= token < vocab]
    raise InvalidRequest(
        f"{field}: token ids are whole numbers below {vocab}, got {next(iter(wrong), tokens)!r}",
        code="token_out_of_range",
        param=field,
    )


def _out_of_range(field: str, limit: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"{field}: {limit}, got {value!r}", code="sampling_range", param=field)
