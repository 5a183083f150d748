"""What each route takes and answers, beside what its handler says of itself. `openapi.json` is made of this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lorad.control.routes import (
    WAIT_SECONDS_MAX,
    AliasBody,
    ChangeBody,
    LoadBody,
    PrewarmBody,
    VllmLoadBody,
    VllmUnloadBody,
)
from lorad.page.files import FILES
from lorad.page.query import LIMIT_MAX, OFFSET_MAX, SORTS, TIERS
from lorad.server.conversation import ROLES
from lorad.server.fields import unsupported
from lorad.server.requests import ChatRequest, CompletionRequest
from lorad.server.tokens import DEFAULTS_ONLY as TOKENIZE_DEFAULTS
from lorad.server.tokens import DetokenizeBody, TokenizeBody
from lorad.tenants.sums import GROUPS

JSON, TEXT, STREAM, CSV = "application/json", "text/plain", "text/event-stream", "text/csv"

Schema = Mapping[str, Any]


class Described(NamedTuple):
    """One route."""

    body: type[msgspec.Struct] | None = None
    defaults_only: Mapping[str, tuple[Any, ...]] = {}
    """Further fields of the body, that are taken at these values only."""
    query: Mapping[str, Schema] = {}
    answers: Mapping[int, tuple[str, ...]] = {200: (JSON,)}
    """Content types by status; (): no content. Refusals have OpenAI's error form."""


_NULL = (None,)
VALUES: dict[str, dict[str, Sequence[Any]]] = {
    "Message": {
        "role": tuple(ROLES),
        **dict.fromkeys(("refusal", "audio", "function_call"), _NULL),
        "annotations": (None, []),
    },
    "TextPart": {"type": ("text",), **dict.fromkeys(("image_url", "input_audio", "file", "refusal"), _NULL)},
    "Tool": {"type": ("function",), "custom": _NULL},
    "Choice": {"type": ("function",), "custom": _NULL, "allowed_tools": _NULL},
    "ToolCall": {"type": ("function",)},
    "ResponseFormat": {"type": ("text", "json_object", "json_schema")},
    "StructuredOutputs": {
        **dict.fromkeys(("disable_additional_properties", "disable_fallback"), (None, False)),
        "structural_tag": _NULL,
    },
    "StreamOptions": {"include_obfuscation": (None, False)},
}
"""Fields of structs that are taken at these values only, which their types don't say."""

LEAST: dict[str, dict[str, int]] = {"CompletionRequest": {"max_tokens": 0}}
"""Fields of structs that may be less than elsewhere: `max_tokens` beside `echo`."""

_SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": WAIT_SECONDS_MAX}
_WAIT: Mapping[str, Schema] = {"wait_seconds": _SECONDS}
_OPERATION: Mapping[int, tuple[str, ...]] = {200: (JSON,), 202: (JSON,)}
_ANSWER: Mapping[int, tuple[str, ...]] = {200: (JSON, STREAM)}
_OVERVIEW: Mapping[str, Schema] = {
    "filter": {"type": "string", "maxLength": 256},
    "tier": {"enum": list(TIERS)},
    "sort": {"enum": list(SORTS)},
    "offset": {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX},
    "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX},
}
_ROUTER: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
_USAGE: Mapping[str, Schema] = {
    "by": {"type": "string", "description": f"some of {', '.join(GROUPS)}, separated by commas"},
    "since_hours": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
    "format": {"enum": ["json", "csv"]},
}

ROUTES: dict[tuple[str, str], Described] = {
    ("POST", "/v1/chat/completions"): Described(ChatRequest, unsupported("chat"), answers=_ANSWER),
    ("POST", "/v1/completions"): Described(CompletionRequest, unsupported("completion"), answers=_ANSWER),
    ("POST", "/tokenize"): Described(TokenizeBody, TOKENIZE_DEFAULTS),
    ("POST", "/detokenize"): Described(DetokenizeBody),
    ("GET", "/v1/models"): Described(),
    ("GET", "/v1/models/{name}"): Described(),
    ("GET", "/health"): Described(answers={200: (JSON,), 503: (JSON,)}),
    ("GET", "/health/live"): Described(),
    ("GET", "/version"): Described(),
    ("GET", "/metrics"): Described(answers={200: (TEXT,)}),
    ("GET", "/openapi.json"): Described(),
    ("GET", "/v1/lora_adapters"): Described(),
    ("GET", "/v1/lora_adapters/{name}"): Described(),
    ("PUT", "/v1/lora_adapters/{name}"): Described(LoadBody, answers=_OPERATION),
    ("PATCH", "/v1/lora_adapters/{name}"): Described(ChangeBody),
    ("DELETE", "/v1/lora_adapters/{name}"): Described(query={**_WAIT, "within_seconds": _SECONDS}, answers=_OPERATION),
    ("POST", "/v1/lora_prewarm"): Described(PrewarmBody, answers=_OPERATION),
    ("GET", "/v1/lora_aliases"): Described(),
    ("PUT", "/v1/lora_aliases/{name}"): Described(AliasBody),
    ("DELETE", "/v1/lora_aliases/{name}"): Described(answers={204: ()}),
    ("GET", "/v1/operations"): Described(),
    ("GET", "/v1/operations/{id}"): Described(query=_WAIT),
    ("GET", "/v1/overview"): Described(query=_OVERVIEW),
    ("GET", "/v1/inventory"): Described(query={"router": _ROUTER}, answers={200: (STREAM,)}),
    ("POST", "/v1/load_lora_adapter"): Described(
        VllmLoadBody, {"is_3d_lora_weight": (False, None)}, answers={200: (TEXT,)}
    ),
    ("POST", "/v1/unload_lora_adapter"): Described(VllmUnloadBody, answers={200: (TEXT,)}),
    ("GET", "/v1/tenants"): Described(),
    ("GET", "/v1/usage"): Described(query=_USAGE, answers={200: (JSON, CSV)}),
    **{("GET", path): Described(answers={200: (kind,)}) for path, (_, kind) in FILES.items()},
}
"""By method and path, as the router spells it. HEAD is GET without a body, and isn't listed."""
