"""`route`: listens, until a stop signal; running requests may end, a second signal ends at once."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys

from aiohttp import web

from lorad import open_files
from lorad.config import from_arguments
from lorad.errors import InvalidRequest
from lorad.fleet.app import RouteFront, make_route_app
from lorad.fleet.config import RouteConfig
from lorad.fleet.replicas import parse_dns, parse_urls
from lorad.observe.logs import configure
from lorad.server.auth import check_key
from lorad.server.listening import address_of, bind
from lorad.server.runner import Runner

CUT_SECONDS = 1.0
"""After the deadline: how long connections may take to close."""


def route(arguments: argparse.Namespace) -> int:
    """`lorad route`."""
    import uvloop

    config = check_route(from_arguments(RouteConfig, arguments))
    configure(config.log_format, config.log_level)
    open_files.allow_all()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_route(config))


def check_route(config: RouteConfig) -> RouteConfig:
    """Refuses options that don't go together."""
    parse_urls(config.replica)
    if not config.replica and not parse_dns(config.replicas_dns):
        message = "replica: at least one address, or --replicas-dns"
        raise InvalidRequest(message, code="option_missing", param="replica")
    if not config.control_key:
        message = "control_key: the servers' own, which they are started with: without it they tell a router nothing"
        raise InvalidRequest(message, code="option_missing", param="control_key")
    check_key("control_key", config.control_key)
    return config


class RouteServer:
    """A running router: `start`, use it, `stop`."""

    def __init__(self, config: RouteConfig) -> None:
        self._config = config
        self.front: RouteFront | None = None
        self._bound: socket.socket | None = None
        self._runner: Runner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Listens, and gives the address. Servers are heard of from now on."""
        config = self._config
        self._bound = bind(config.host, config.port)
        front = self.front = RouteFront(config)
        for url in parse_urls(config.replica):
            front.replicas.add(url)
        if (named := parse_dns(config.replicas_dns)) is not None:
            self._tasks.append(asyncio.create_task(front.replicas.follow(*named, config.dns_seconds)))
        self._tasks.append(asyncio.create_task(front.placing.run(config.rebalance_seconds)))
        self._runner = Runner(make_route_app(front), shutdown_timeout=CUT_SECONDS)
        await self._runner.setup()
        await web.SockSite(self._runner, self._bound, backlog=1024).start()
        return address_of(self._bound)

    async def stop(self) -> None:
        """Lets running requests end, then ends all."""
        front, runner = self.front, self._runner
        if front is not None:
            front.gate.drain()
            try:
                async with asyncio.timeout(self._config.drain_seconds):
                    await front.gate.emptied()
            except TimeoutError:
                pass
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if runner is not None:
            await runner.cleanup()
        if front is not None:
            await front.close()
        if self._bound is not None:
            self._bound.close()


async def _route(config: RouteConfig) -> int:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(0)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    server = RouteServer(config)
    address = await server.start()
    _say(f"lorad: routing by {config.policy} on {address}")
    await stop.wait()
    _say(f"lorad: stopping; running requests have {config.drain_seconds:g} s, a second signal ends at once")
    await server.stop()
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
