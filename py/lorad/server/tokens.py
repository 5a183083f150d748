"""`POST /tokenize` and `POST /detokenize`, vLLM's: text to ids and back, as the model that is named would see it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from lorad.errors import InvalidRequest
from lorad.server.auth import TENANT
from lorad.server.body import read_body
from lorad.server.conversation import Message, plain_messages, rendering_of
from lorad.server.decode import decode
from lorad.server.failures import json_response
from lorad.server.fields import NOTHING, check_ids, check_length
from lorad.server.gate import Gate
from lorad.server.names import Names
from lorad.server.registry import Registry, Target
from lorad.server.tools import Tool, functions_of, told_of
from lorad.tenants.limits import TenantLimits
from lorad.tenants.tenant import Tenant
from lorad.text.model import TextModel

DEFAULTS_ONLY: dict[str, tuple[Any, ...]] = {
    "chat_template": NOTHING,
    "media_io_kwargs": (None, {}),
    "mm_processor_kwargs": (None, {}),
}
"""vLLM's other fields of /tokenize."""

InThread = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize. One of `prompt` and `messages`; no `model` is the base."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: list[Tool] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize. No `model` is the base."""

    model: str | None = None
    tokens: list[int]


class TokenRoutes:
    """The handlers. They ask nothing of the engine, and count as requests of their tenant."""

    def __init__(
        self,
        names: Names,
        registry: Registry,
        text: TextModel,
        gate: Gate,
        limits: TenantLimits,
        vocab_size: int,
        in_thread: InThread,
    ) -> None:
        """`in_thread`: does work of a text's length off the loop."""
        self._names = names
        self._registry = registry
        self._text = text
        self._gate = gate
        self._limits = limits
        self._vocab_size = vocab_size
        self._in_thread = in_thread

    def add_to(self, app: web.Application) -> None:
        """Adds the routes."""
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)

    async def tokenize(self, request: web.Request) -> web.Response:
        """Ids of a text, or of a conversation in the form of the model's template."""
        body = decode(await read_body(request), TokenizeBody, DEFAULTS_ONLY)
        encode = self._encoder(body)
        tenant = request[TENANT]
        target = await self._target(tenant, body.model)
        with self._gate.passing(1), self._limits.passing(tenant, _adapters(target), 1):
            ids = await self._in_thread(lambda: encode(target))
            names = self._text.tokenizer.names(ids) if body.return_token_strs else None
        told = {"count": len(ids), "max_model_len": target.tokens_max, "tokens": ids, "token_strs": names}
        return json_response(told)

    async def detokenize(self, request: web.Request) -> web.Response:
        """The text of some ids, special tokens by their names."""
        body = decode(await read_body(request), DetokenizeBody, {})
        check_length("tokens", len(body.tokens))
        check_ids("tokens", body.tokens, self._vocab_size)
        tenant = request[TENANT]
        target = await self._target(tenant, body.model)
        with self._gate.passing(1), self._limits.passing(tenant, _adapters(target), 1):
            text = await self._in_thread(lambda: self._text.tokenizer.decode(body.tokens, skip_special=False))
        return json_response({"prompt": text})

    def _encoder(self, body: TokenizeBody) -> Callable[[Target], list[int]]:
        """What makes the ids, after all that can be checked without the model."""
        text = self._text
        if body.prompt is not None and body.messages is not None:
            raise InvalidRequest("prompt: one of prompt and messages, got both", code="field_conflict", param="prompt")
        if body.prompt is not None:
            for field in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"):
                if getattr(body, field) is not None:
                    raise InvalidRequest(f"{field}: wants messages", code="field_needs", param=field)
            check_length("prompt[]", len(body.prompt), param="prompt")
            prompt, special = body.prompt, body.add_special_tokens is not False
            return lambda target: text.tokenizer.encode(prompt, add_special_tokens=special)
        if body.messages is None:
            raise InvalidRequest("prompt: required, or messages", code="missing_field", param="prompt")
        messages = plain_messages(body.messages)
        tools = told_of(functions_of(body.tools))
        rendering = rendering_of(body)
        special = bool(body.add_special_tokens)
        return lambda target: text.chat(
            messages,
            tools or None,
            template=target.template,
            rendering=rendering,
            add_special_tokens=special,
            # Of the text as it was rendered: tools and calls are in it, too.
            check=partial(check_length, "messages[]", param="messages"),
        )

    async def _target(self, tenant: Tenant, model: str | None) -> Target:
        name = await self._names.meant(tenant, self._registry.base_name if model is None else model)
        return self._names.now(tenant, name)


def _adapters(target: Target) -> tuple[str, ...]:
    return (target.name,) if target.generation else ()
