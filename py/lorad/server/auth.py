"""Who may ask: every route wants the key but those listed here, and so does every path that is no route at all."""

from __future__ import annotations

import hmac

from aiohttp import web

from lorad.errors import Unauthorized
from lorad.server.failures import Handler

OPEN_ROUTES = frozenset({("GET", "/health"), ("HEAD", "/health")})
"""Answered without a key. They tell no names, prompts or paths."""


def key_check(api_key: str) -> object:
    """A middleware that wants `Authorization: Bearer <api_key>`; an empty key wants nothing."""
    wanted = api_key.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if wanted and (request.method, request.rel_url.raw_path) not in OPEN_ROUTES:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            # A key from the header may hold surrogates; they are bytes like any other here.
            sent = given.strip().encode(errors="surrogateescape")
            if scheme.lower() != "bearer" or not sent:
                raise Unauthorized("an API key is wanted: Authorization: Bearer <key>", code="missing_api_key")
            if not hmac.compare_digest(sent, wanted):
                raise Unauthorized("the API key isn't valid", code="invalid_api_key")
        return await handler(request)

    return check
