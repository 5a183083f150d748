"""Scrapes: `/metrics`, and a listener of its own for it, where nobody needs a key."""

from __future__ import annotations

import asyncio

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from lorad.engine.handle import EngineHandle
from lorad.errors import LoradError
from lorad.observe.metrics import Metrics
from lorad.server.failures import errors_as_json
from lorad.server.runner import sign

STATS_SECONDS = 2.0
"""How long a scrape waits for the engine's numbers."""


class Scrapes:
    """Answers scrapes."""

    def __init__(self, metrics: Metrics, handle: EngineHandle) -> None:
        self._metrics = metrics
        self._handle = handle

    async def answer(self, request: web.Request) -> web.Response:
        """GET /metrics."""
        try:
            async with asyncio.timeout(STATS_SECONDS):
                stats = await self._handle.stats()
        except (LoradError, TimeoutError):
            stats = None
        return web.Response(body=self._metrics.exposition(stats), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def application(self) -> web.Application:
        """An application that has nothing else."""
        app = web.Application(middlewares=[errors_as_json])
        app.router.add_get("/metrics", self.answer)
        app.on_response_prepare.append(sign)
        return app
