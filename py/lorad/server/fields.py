"""The API's limits and its missing fields, in two tables. Checks, documentation and tests read them from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lorad.errors import InvalidRequest
from lorad.models.fields import shown


class Range(NamedTuple):
    """What a number may be; `above` excludes the lower border itself."""

    low: float
    high: float
    above: bool = False


RANGES: dict[str, Range] = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, above=True),
    "top_k": Range(-1, 1 << 20),
    "min_p": Range(0, 1),
    "seed": Range(-(1 << 63), (1 << 63) - 1),
    "n": Range(1, 128),
    "max_tokens": Range(1, 1 << 24),
    "max_completion_tokens": Range(1, 1 << 24),
    "logprobs": Range(0, 20),
    "top_logprobs": Range(0, 20),
    "logit_bias[]": Range(-100, 100),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 2, above=True),
    "min_tokens": Range(0, 1 << 24),
}
"""Numbers. `top_k` 0 and -1 mean that it's off; `logit_bias[]`: of one token."""

LENGTHS: dict[str, int] = {
    "stop": 16,
    "stop[]": 1024,
    "stop_token_ids": 64,
    "messages": 4096,
    "prompt": 1024,
    "logit_bias": 1024,
    "tools": 128,
    "chat_template_kwargs": 64,
    "chat_template_kwargs[]": 1 << 16,
    "prompt[]": 1 << 20,
    "messages[]": 1 << 20,
    "tokens": 1 << 20,
}
"""Longest list of each list field; `stop[]`: characters of one stop string; `prompt[]`, `messages[]`: characters of a
text that is only tokenised (one that is answered has the context's limit); `tokens`: ids that are only decoded;
`chat_template_kwargs[]`: characters of all of them as JSON; `stop_token_ids`: with the model's end tokens, unless they
are ignored."""

GREEDY_BELOW = 1e-5
"""A temperature below this is 0: dividing logits by less leaves nothing of them but the largest."""

COMPLETION_TOKENS = 16
"""What /v1/completions makes when `max_tokens` is absent, as OpenAI does. Chat goes on as far as the context allows."""

_SHOWN_MAX = 40
"""Characters of a wrong number."""

NOTHING = (None,)

UNSUPPORTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "chat": {
        "audio": NOTHING,
        "function_call": (None, "none"),
        "functions": (None, []),
        "modalities": (None, ["text"]),
        "moderation": NOTHING,
        "prediction": NOTHING,
        "prompt_cache_options": NOTHING,
        "prompt_cache_retention": NOTHING,
        "reasoning_effort": NOTHING,
        "service_tier": (None, "auto", "default"),
        "store": (None, False),
        "verbosity": NOTHING,
        "web_search_options": NOTHING,
    },
    "completion": {
        "suffix": NOTHING,
    },
    "both": {
        "guided_decoding_backend": NOTHING,
        "guided_whitespace_pattern": NOTHING,
        "length_penalty": (None, 1),
        "spaces_between_special_tokens": (None, True),
        "use_beam_search": (None, False),
    },
}
"""Documented fields of OpenAI ("chat", "completion") and common ones of vLLM ("both") that lorad doesn't have yet, with
the values that mean the same as leaving the field out. Any other value is refused by name."""


def unsupported(kind: str) -> dict[str, tuple[Any, ...]]:
    """The fields of one endpoint that are taken at their defaults only."""
    return {**UNSUPPORTED[kind], **UNSUPPORTED["both"]}


def check_default(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    """Refuses a field that lorad doesn't have, unless it asks for nothing."""
    if not any(_same(value, default) for default in accepted):
        shown = next((default for default in accepted if default is not None), None)
        raise InvalidRequest(
            f"{name}: not supported yet; only its default ({_json(shown)}) is accepted",
            code="unsupported_field",
            param=name,
        )


def check_range(name: str, value: float, *, param: str | None = None) -> None:
    """Refuses a number out of its range, naming the field (`param` where it's one of several), the limit, the value."""
    low, high, above = RANGES[name]
    # Turned round, so that what is no number is refused too.
    if not low <= value <= high or (above and value == low):
        raise out_of_range(name, shown(value), param=param)


def out_of_range(name: str, got: str, *, param: str | None = None) -> InvalidRequest:
    """The refusal of a number that is out of its range."""
    low, high, above = RANGES[name]
    lower = f"above {low:g}" if above else f"at least {_number(low)}"
    got = got if len(got) <= _SHOWN_MAX else f"{got[:_SHOWN_MAX]}…"
    return InvalidRequest(
        f"{param or name}: {lower} and at most {_number(high)}, got {got}",
        code="field_range",
        param=name.removesuffix("[]"),
    )


def check_length(name: str, count: int, *, param: str | None = None) -> None:
    """Refuses a list that is too long."""
    limit = LENGTHS[name]
    if count > limit:
        what = "characters" if name.endswith("[]") else "entries"
        shown = param or name
        raise InvalidRequest(
            f"{shown}: at most {limit} {what}, got {count}", code="field_length", param=name.removesuffix("[]")
        )


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuses ids that the vocabulary hasn't got."""
    # min and max run in C; the loop that finds the culprit runs only for a wrong list.
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        index, wrong = next((i, token) for i, token in enumerate(ids) if not 0 <= token < vocab_size)
        raise InvalidRequest(
            f"{name}[{index}]: a token id from 0 to {vocab_size - 1}, got {shown(wrong)}",
            code="token_id",
            param=name.partition("[")[0],
        )


def _same(value: Any, default: Any) -> bool:
    # True == 1 in Python, and not in JSON.
    return isinstance(value, bool) == isinstance(default, bool) and bool(value == default)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def _json(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}.get(value, repr(value)) if _plain(value) else repr(value)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool)
