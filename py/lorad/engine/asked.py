"""What a request asks for, checked: whoever calls the engine, the core and the worker get only what they can take."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.engine.messages import Sampling
from lorad.errors import InvalidRequest
from lorad.models.fields import shown

BIAS_MAX = 100.0
I32_MAX, U32_MAX, U64_MAX = 2**31 - 1, 2**32 - 1, 2**64 - 1


class Range(NamedTuple):
    """What a number may be."""

    whole: bool
    least: float
    most: float


_RANGES: dict[str, Range] = {
    "max_tokens": Range(True, 1, I32_MAX),
    # The worker keeps it in f32.
    "temperature": Range(False, 0, float(np.finfo(np.float32).max)),
    "top_p": Range(False, 0, 1),
    "top_k": Range(True, 0, I32_MAX),
    "min_p": Range(False, 0, 1),
    "seed": Range(True, 0, U64_MAX),
    "logprobs": Range(True, -1, _core.BEST_MAX),
    "prompt_logprobs": Range(True, -1, _core.BEST_MAX),
    "presence_penalty": Range(False, -2, 2),
    "frequency_penalty": Range(False, -2, 2),
    "repetition_penalty": Range(False, 0, 2),
    "min_tokens": Range(True, 0, I32_MAX),
}
"""Of `Sampling`, by field."""


def check_sampling(sampling: Sampling, vocab: int) -> Sampling:
    """`sampling` in plain numbers. Refuses a value of another type or out of range, naming field, limit and value."""
    checked: dict[str, Any] = {field: _number(field, getattr(sampling, field), _RANGES[field]) for field in _RANGES}
    for field in ("top_p", "repetition_penalty"):
        if checked[field] == 0:
            raise _out_of_range(field, "above 0", getattr(sampling, field))
    if checked["min_tokens"] > checked["max_tokens"]:
        raise _out_of_range("min_tokens", f"at most max_tokens, {checked['max_tokens']}", sampling.min_tokens)
    for field in ("logprobs", "prompt_logprobs"):
        if checked[field] > vocab:
            raise _out_of_range(field, f"at most {vocab} (the vocabulary)", getattr(sampling, field))
    stops = token_ids(sampling.stop_token_ids, 2**31, "stop_token_ids").tolist()
    if not isinstance(sampling.grammar, str):
        raise _out_of_range("grammar", "a text, as lorad.grammars makes them", sampling.grammar)
    bias = _bias(sampling.logit_bias, vocab)
    return msgspec.structs.replace(sampling, stop_token_ids=tuple(stops), logit_bias=bias, **checked)


def _bias(given: Any, vocab: int) -> dict[int, float]:
    if not isinstance(given, dict):
        raise _out_of_range("logit_bias", "numbers by token id", given)
    tokens = token_ids(list(given), vocab, "logit_bias").tolist()
    limits = Range(False, -BIAS_MAX, BIAS_MAX)
    return {token: _number("logit_bias", bias, limits) for token, bias in zip(tokens, given.values(), strict=True)}


def token_ids(tokens: Sequence[int] | NDArray[Any], vocab: int, field: str = "prompt") -> NDArray[np.uint32]:
    """Token ids as the core takes them. Refuses what isn't a sequence of whole numbers from 0 to `vocab` - 1."""
    if isinstance(tokens, np.ndarray):
        tokens = tokens.tolist()
    if not isinstance(tokens, Sequence) or isinstance(tokens, str | bytes | bytearray):
        raise _not_tokens(field, vocab, tokens)
    # The set of types is made in C, and so are the least and the largest: the loop is for a list with something wrong.
    plain = tokens if set(map(type, tokens)) <= {int} else [_plain(token) for token in tokens]
    if set(map(type, plain)) <= {int} and (not plain or 0 <= min(plain) <= max(plain) < vocab):
        return np.array(plain, dtype=np.uint32)
    raise _not_tokens(field, vocab, next(token for token in plain if type(token) is not int or not 0 <= token < vocab))


def request_number(value: int, field: str = "request", most: int = U64_MAX) -> int:
    """A number by which the core knows a request or a tenant."""
    return int(_number(field, value, Range(True, 0, most), code="request_number"))


def _number(field: str, value: Any, limits: Range, code: str = "sampling_range") -> float:
    """`value` as a plain int or float: numpy's numbers are numbers too, true and false aren't."""
    whole, least, most = limits
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        raise _out_of_range(field, "a whole number" if whole else "a number", value, code)
    # Turned round, so that what is no number is refused; compared before it's converted, which is exact for every int.
    if not least <= value <= most:  # type: ignore[operator]
        raise _out_of_range(field, f"{least} to {most}", value, code)
    return _plain(value) if whole else float(value)


def _plain(value: Any) -> Any:
    """A whole number as an int, anything else as it is."""
    return operator.index(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def _not_tokens(field: str, vocab: int, value: object) -> InvalidRequest:
    return InvalidRequest(
        f"{field}: a list of token ids, whole numbers below {vocab}, got {shown(value)}",
        code="token_out_of_range",
        param=field,
    )


def _out_of_range(field: str, limit: str, value: object, code: str = "sampling_range") -> InvalidRequest:
    return InvalidRequest(f"{field}: {limit}, got {shown(value)}", code=code, param=field)
