"""`Observer`: hands what is known of a request, when it has ended, to metrics, the access log and traces."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from aiohttp import web

from lorad.observe import logs
from lorad.observe.metrics import Metrics
from lorad.observe.record import CLIENT_LEFT, RECORD, REQUEST_ID, Record, request_id
from lorad.observe.tracing import HEADERS, Tracing
from lorad.server.failures import Handler

log = logging.getLogger("lorad.server")


class Observer:
    """The outermost middleware, and the headers of every answer."""

    def __init__(self, metrics: Metrics, *, log_requests: bool = False, tracing: Tracing | None = None) -> None:
        self.metrics = metrics
        self._log_requests = log_requests
        self._tracing = tracing

    def middleware(self) -> Any:
        """Keeps a record of each request, and tells it at its end."""

        @web.middleware
        async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
            record = request[RECORD] = _begin(request)
            try:
                response = await handler(request)
                record.status = record.status or response.status
                return response
            except asyncio.CancelledError:
                record.left()
                raise
            finally:
                self._ended(record)

        return observe

    async def sign(self, request: web.Request, response: web.StreamResponse) -> None:
        """Puts the request's id on its answer."""
        record = request.get(RECORD)
        if record is not None:
            response.headers[REQUEST_ID] = record.id

    def close(self) -> None:
        """Sends what is left."""
        if self._tracing is not None:
            self._tracing.close()

    def _ended(self, record: Record) -> None:
        record.seconds = asyncio.get_running_loop().time() - record.began
        try:
            self._tell(record)
        except Exception as error:
            # An answer doesn't fail because it can't be told of.
            logs.fault(log, "a request couldn't be told of", error)

    def _tell(self, record: Record) -> None:
        refused = "" if record.status == CLIENT_LEFT else record.code
        self.metrics.answered(record.route, record.status, refused)
        if self._log_requests:
            logs.access(record.fields())
        if self._tracing is not None:
            self._tracing.ended(record)


def _begin(request: web.Request) -> Record:
    resource = request.match_info.route.resource
    record = Record(
        request_id(request.headers.get(REQUEST_ID)),
        request.method,
        # Unknown paths are one: clients choose them.
        resource.canonical if resource is not None else "other",
        asyncio.get_running_loop().time(),
        time.time_ns(),
    )
    record.traceparent = {name: request.headers[name] for name in HEADERS if name in request.headers}
    return record
