"""Refusals and failures as answers: OpenAI's error form, for our own errors, aiohttp's, and those nobody foresaw."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from lorad.errors import EngineFailure, LoradError, Overloaded, Unauthorized, Unavailable
from lorad.observe.logs import fault
from lorad.observe.record import RECORD, note

log = logging.getLogger("lorad.server")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

INTERNAL = EngineFailure("internal error", code="internal_error")
"""All that a client learns of a fault of ours; the log has the rest."""

HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_entity_too_large", 417: "expectation_failed"}
"""Codes of what aiohttp refuses before a handler is asked. Its own words for a status differ between Pythons."""
HTTP_CODE = "http_error"
"""Of any other status."""

_KEPT_HEADERS = ("Allow",)

_RETRY_AFTER_S = {"draining": 1, "engine_restarting": 2, "engine_starting": 2, "engine_stalled": 5}
"""When to come back after what passes: to another server, or to this one's next engine, which starts in seconds."""


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error form."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def passing(code: str) -> dict[str, str]:
    """Headers of a refusal that is over soon; none of others."""
    return {"Retry-After": str(_RETRY_AFTER_S[code])} if code in _RETRY_AFTER_S else {}


def error_event(error: LoradError) -> bytes:
    """An error inside a stream that has begun."""
    return b"data: " + msgspec.json.encode(_body(error)) + b"\n\n"


def error_response(error: LoradError) -> web.Response:
    """An error as a whole answer."""
    headers = passing(error.code) if isinstance(error, Unavailable) else {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(_body(error), status=error.status, headers=headers)


def json_response(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Any JSON answer."""
    return web.Response(body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json")


def _body(error: LoradError) -> dict[str, Any]:
    return error_body(error.message, error.kind, error.code, error.param)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns whatever a handler raises into an answer."""
    try:
        return await handler(request)
    except LoradError as error:
        note(request, error.code)
        return error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _from_http(request, error)
    except asyncio.CancelledError:
        raise
    except ConnectionError:
        # The client left while its answer was on the way; nobody reads what is returned here.
        if (record := request.get(RECORD)) is not None:
            record.left()
        return error_response(INTERNAL)
    except Exception as error:
        fault(log, f"{request.method} {request.path} failed", error)
        note(request, INTERNAL.code)
        return error_response(INTERNAL)


def _from_http(request: web.Request, error: web.HTTPException) -> web.Response:
    code = HTTP_CODES.get(error.status, HTTP_CODE)
    note(request, code)
    messages = {
        404: f"no such route: {request.method} {request.path[:200]}",
        405: f"{request.method} isn't allowed on {request.path[:200]}",
        413: f"the body is longer than {request.client_max_size} bytes",
    }
    kind = "not_found_error" if error.status == 404 else "invalid_request_error"
    headers = {name: error.headers[name] for name in _KEPT_HEADERS if name in error.headers}
    return json_response(
        error_body(messages.get(error.status, error.reason), kind, code), status=error.status, headers=headers
    )
