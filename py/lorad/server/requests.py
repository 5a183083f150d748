"""What clients send: OpenAI's two request bodies, decoded from bytes, and `Ask`, the checked form that both come to."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lorad.adapters.combine.weighted import Wanted, check_wanted
from lorad.counted import counted
from lorad.engine.messages import Sampling
from lorad.errors import InvalidRequest
from lorad.models.fields import shown
from lorad.server.conversation import Message, plain_messages
from lorad.server.fields import COMPLETION_TOKENS, GREEDY_BELOW, LENGTHS, check_ids, check_length, check_range
from lorad.server.structured import Form, ResponseFormat, StructuredOutputs, form_of
from lorad.server.tools import Calling, Choice, Tool, calling_of

_SEED_SPACE = 1 << 64
_NUMBERS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "n", "max_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"),
)
"""Fields of both endpoints with a range."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How an answer is streamed."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class WeightedAdapter(msgspec.Struct, forbid_unknown_fields=True):
    """One adapter of a combination."""

    name: str
    weight: float


class _Common(msgspec.Struct, kw_only=True):
    model: str
    adapters: list[WeightedAdapter] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    explain: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[int, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # Labels of OpenAI's own accounts and caches: they ask for nothing in an answer, and clients send them unasked.
    user: str | None = None


class ChatRequest(_Common, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Choice | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class CompletionRequest(_Common, kw_only=True):
    """The body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None


Prompt = str | list[int]


@dataclass(frozen=True)
class Ask:
    """A checked request, whichever endpoint it came through."""

    model: str
    stream: bool
    include_usage: bool
    explain: bool
    """Whether the answer tells what it waited for."""
    n: int
    max_tokens: int | None
    """None: as many as fit."""
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    keep_stop: bool
    """The text ends with the stop string or token that ended it."""
    skip_special: bool
    """Special tokens are no text."""
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    logprobs: int
    """-1: none; 0: the chosen token's; n: also of the n best."""
    logit_bias: dict[int, float]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    min_tokens: int
    form: Form | Calling | None
    """What the answer has to look like."""
    echo: bool = False
    """The answer begins with the prompt."""
    prompt_only: bool = False
    """And ends with it: the one token that is made is nobody's."""
    adapters: tuple[Wanted, ...] = ()
    """Served together in place of the model; none: the model itself."""
    grammar: str = ""
    """Of `form`, once it's compiled."""

    @property
    def calling(self) -> Calling | None:
        """The tools that answers may call."""
        return self.form if isinstance(self.form, Calling) else None

    def sampling(self, choice: int, max_tokens: int, end_ids: Sequence[int]) -> Sampling:
        """How the `choice`-th answer to a prompt samples: the same whatever else is in the request."""
        ends = () if self.ignore_eos else tuple(end_ids)
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=(self.seed + choice) % _SEED_SPACE,
            stop_token_ids=tuple(dict.fromkeys((*ends, *self.stop_token_ids))),
            logprobs=self.logprobs,
            # The further answers to a prompt find its pages; the first one computes it.
            prompt_logprobs=self.logprobs if self.echo and choice == 0 else -1,
            logit_bias=self.logit_bias,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            min_tokens=self.min_tokens,
            grammar=self.grammar,
        )


def ask_chat(request: ChatRequest, vocab_size: int, end_ids: Sequence[int]) -> tuple[Ask, list[dict[str, Any]]]:
    """Checks a chat request; gives the conversation in the form that templates know."""
    messages = plain_messages(request.messages)
    logprobs = -1
    if request.logprobs:
        logprobs = request.top_logprobs or 0
    if request.top_logprobs is not None:
        check_range("top_logprobs", request.top_logprobs)
        if not request.logprobs:
            raise InvalidRequest("top_logprobs: wants logprobs true", code="field_needs", param="top_logprobs")
    max_tokens = request.max_tokens
    if request.max_completion_tokens is not None:
        check_range("max_completion_tokens", request.max_completion_tokens)
        if max_tokens not in (None, request.max_completion_tokens):
            raise InvalidRequest(
                f"max_completion_tokens: {request.max_completion_tokens}, but max_tokens is {max_tokens}",
                code="field_conflict",
                param="max_completion_tokens",
            )
        max_tokens = request.max_completion_tokens
    ask = _ask(request, max_tokens, logprobs, vocab_size, end_ids)
    calling = calling_of(request, form_of(request))
    return (ask if calling is None else replace(ask, form=calling)), messages


def ask_completion(request: CompletionRequest, vocab_size: int, end_ids: Sequence[int]) -> tuple[Ask, list[Prompt]]:
    """Checks a completion request; gives its prompts in order."""
    logprobs = -1
    if request.logprobs is not None:
        check_range("logprobs", request.logprobs)
        logprobs = request.logprobs
    max_tokens = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    prompt_only = bool(request.echo) and max_tokens == 0
    if prompt_only:
        request = msgspec.structs.replace(request, max_tokens=None)
    ask = replace(_ask(request, max_tokens, logprobs, vocab_size, end_ids), echo=bool(request.echo))
    if prompt_only:
        # The engine makes at least one, and tells of the prompt with it.
        ask = replace(ask, max_tokens=1, prompt_only=True)
    elif ask.echo and ask.stream:
        raise InvalidRequest("echo: with stream true only at max_tokens 0", code="field_conflict", param="echo")
    return ask, _prompts(request.prompt, vocab_size)


def _ask(request: _Common, max_tokens: int | None, logprobs: int, vocab_size: int, end_ids: Sequence[int]) -> Ask:
    if not request.model:
        raise InvalidRequest("model: the name of a model, got an empty one", code="field_length", param="model")
    for name in _NUMBERS:
        value = getattr(request, name)
        if value is not None:
            check_range(name, value)
    if logprobs > vocab_size:
        raise InvalidRequest(
            f"logprobs: at most {vocab_size} (the vocabulary), got {logprobs}", code="field_range", param="logprobs"
        )
    n, min_tokens = 1 if request.n is None else request.n, request.min_tokens or 0
    if request.best_of not in (None, n):
        raise InvalidRequest(
            f"best_of: only n, {n}, is supported, got {shown(request.best_of)}",
            code="unsupported_field",
            param="best_of",
        )
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens: at most max_tokens, {max_tokens}, got {min_tokens}", code="field_conflict", param="min_tokens"
        )
    options = request.stream_options
    if options is not None and not request.stream:
        raise InvalidRequest("stream_options: wants stream true", code="field_needs", param="stream_options")
    if options is not None and options.include_obfuscation:
        raise InvalidRequest(
            "stream_options.include_obfuscation: not supported yet; only its absence or false is accepted",
            code="unsupported_field",
            param="stream_options.include_obfuscation",
        )
    stop_ids = request.stop_token_ids or []
    _check_stop_ids(stop_ids, () if request.ignore_eos else end_ids)
    check_ids("stop_token_ids", stop_ids, vocab_size)
    temperature = 1.0 if request.temperature is None else request.temperature
    return Ask(
        model=request.model,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        explain=bool(request.explain),
        n=n,
        max_tokens=max_tokens,
        stops=_stops(request.stop),
        stop_token_ids=tuple(stop_ids),
        ignore_eos=bool(request.ignore_eos),
        keep_stop=bool(request.include_stop_str_in_output),
        skip_special=request.skip_special_tokens is not False,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        seed=secrets.randbits(63) if request.seed is None else request.seed % _SEED_SPACE,
        logprobs=logprobs,
        logit_bias=_bias(request.logit_bias or {}, vocab_size),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        min_tokens=min_tokens,
        form=form_of(request),
        adapters=_adapters(request.adapters),
    )


def _adapters(given: list[WeightedAdapter] | None) -> tuple[Wanted, ...]:
    return () if given is None else check_wanted([(adapter.name, adapter.weight) for adapter in given])


def _bias(given: dict[int, float], vocab_size: int) -> dict[int, float]:
    check_length("logit_bias", len(given))
    check_ids("logit_bias", list(given), vocab_size)
    for token, bias in given.items():
        check_range("logit_bias[]", bias, param=f"logit_bias[{token}]")
    return given


def _check_stop_ids(ids: Sequence[int], end_ids: Sequence[int]) -> None:
    """The engine's limit is on both together."""
    most = LENGTHS["stop_token_ids"] - len(end_ids)
    if len(ids) > most:
        beside = f" (beside the model's {counted(len(end_ids), 'end token')})" if end_ids else ""
        raise InvalidRequest(
            f"stop_token_ids: at most {most} entries{beside}, got {len(ids)}",
            code="field_length",
            param="stop_token_ids",
        )


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    stops = [given] if isinstance(given, str) else given
    check_length("stop", len(stops))
    for index, stop in enumerate(stops):
        where = "stop" if isinstance(given, str) else f"stop[{index}]"
        if not stop:
            raise InvalidRequest(f"{where}: an empty string would stop everything", code="field_length", param="stop")
        check_length("stop[]", len(stop), param=where)
    return tuple(dict.fromkeys(stops))


def _prompts(given: str | list[str | int | list[int]], vocab_size: int) -> list[Prompt]:
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest("prompt: at least 1 entry, got 0", code="field_length", param="prompt")
    kinds = {type(entry) for entry in given}
    if len(kinds) > 1:
        raise InvalidRequest(
            "prompt: a string, strings, token ids or lists of token ids, got a mixture",
            code="field_type",
            param="prompt",
        )
    if kinds == {int}:
        ids = [entry for entry in given if isinstance(entry, int)]
        check_ids("prompt", ids, vocab_size)
        return [ids]
    check_length("prompt", len(given))
    prompts: list[Prompt] = [entry for entry in given if not isinstance(entry, int)]
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, list):
            check_ids(f"prompt[{index}]", prompt, vocab_size)
    return prompts
