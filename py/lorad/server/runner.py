"""`Runner`: an aiohttp application that listens, and answers what is no HTTP in our own form too.

aiohttp refuses lines that are too long, and bytes that are no HTTP, before an application learns of them: what handles
the connection answers, with a text and the versions of everything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from lorad.errors import InvalidRequest
from lorad.server.failures import INTERNAL, error_response

NAME = "lorad"
"""Of the server, without versions."""
LINE_MAX = 8190
"""Bytes of a request's first line and of each of its headers, aiohttp's own default."""


class Runner(web.AppRunner):
    """Runs an application with what its handlers count on: who leaves is noticed, and nobody else logs requests."""

    def __init__(self, app: web.Application, *, shutdown_timeout: float) -> None:
        """`shutdown_timeout`: seconds that open connections have at the end."""
        super().__init__(app, handle_signals=False, shutdown_timeout=shutdown_timeout)

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=True,
            access_log=None,
            # aiohttp would unpack a body before anybody has looked at its key, and log one that can't be as our fault.
            auto_decompress=False,
            max_line_size=LINE_MAX,
            max_field_size=LINE_MAX,
        )


async def sign(request: web.Request, response: web.StreamResponse) -> None:
    """Names the server, for an application's `on_response_prepare`."""
    response.headers["Server"] = NAME


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(self, request: Any, status: int = 500, exc: Any = None, message: Any = None) -> web.StreamResponse:
        """What a client learns of bytes that no application has seen."""
        super().handle_error(request, status, exc, message)  # logs it, and raises if an answer has begun
        answer = error_response(_refusal(exc) if status < 500 else INTERNAL)
        answer.headers["Server"] = NAME
        answer.force_close()
        return answer


def _refusal(error: object) -> InvalidRequest:
    if isinstance(error, LineTooLong):
        return InvalidRequest(
            f"the request's first line, or one of its headers, is longer than {LINE_MAX} bytes", code="http_line_length"
        )
    # The parser's own words quote what came, keys among it.
    return InvalidRequest("this is no right HTTP request", code="http_form")
