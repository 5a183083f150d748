"""Who may ask: every route wants the API key but those listed here, and so does every path that is no route at all.

Control endpoints are for operators: they want the control key instead, and without one they are off.
"""

from __future__ import annotations

import hmac

from aiohttp import web

from lorad.control.routes import PREFIXES as CONTROL_PREFIXES
from lorad.errors import Forbidden, Unauthorized
from lorad.server.failures import Handler

OPEN_ROUTES = frozenset({("GET", "/health"), ("HEAD", "/health")})
"""Answered without a key. They tell no names, prompts or paths."""


def key_check(api_key: str, control_key: str = "") -> object:
    """A middleware that wants `Authorization: Bearer KEY`. An empty API key wants nothing, an empty control key refuses
    the control endpoints."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_control(request):
            if not control_key:
                raise Forbidden("control endpoints are off; --control-key turns them on", code="control_off")
            _check(request, control_key, "the control key")
        elif api_key and (request.method, request.rel_url.raw_path) not in OPEN_ROUTES:
            _check(request, api_key, "the API key")
        return await handler(request)

    return check


def is_control(request: web.Request) -> bool:
    """Whether the path, as the router reads it, is that of a control endpoint."""
    path = request.rel_url.path
    return any(path == prefix or path.startswith(prefix + "/") for prefix in CONTROL_PREFIXES)


def _check(request: web.Request, wanted: str, which: str) -> None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # A key from the header may hold surrogates; they are bytes like any other here.
    sent = given.strip().encode(errors="surrogateescape")
    if scheme.lower() != "bearer" or not sent:
        raise Unauthorized(f"{which} is wanted: Authorization: Bearer <key>", code="missing_api_key")
    if not hmac.compare_digest(sent, wanted.encode()):
        raise Unauthorized(f"{which} isn't valid", code="invalid_api_key")
