"""The routes of `lorad route`: those of a server that answer with tokens, and what is asked of all servers."""

from __future__ import annotations

import hmac
import uuid
from collections import Counter
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from lorad import __version__
from lorad.errors import Unauthorized, Unavailable
from lorad.fleet.config import RouteConfig
from lorad.fleet.forward import Forward, ask_all
from lorad.fleet.metrics import RouteMetrics
from lorad.fleet.placing import Placing
from lorad.fleet.replicas import Replicas
from lorad.fleet.router import Router
from lorad.server.body import read_body
from lorad.server.failures import Handler, errors_as_json, json_response, passing
from lorad.server.gate import Gate
from lorad.server.path import path_check
from lorad.server.runner import sign

FORWARDED = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
MODELS_SECONDS = 5.0
"""How long a server may take to list its models."""
PLACING = ("affinity", "cost")
"""Policies that look at where adapters live."""


class RouteFront:
    """The state behind the routes. To be made on the loop that it runs on."""

    def __init__(self, config: RouteConfig) -> None:
        self.config = config
        self.metrics = RouteMetrics(config.policy)
        self.gate = Gate(config.in_flight_max)
        self.router = Router(config.policy, silent_seconds=config.silent_seconds, away_loads=config.away_loads)
        # Bodies go through as they are, and no cookie of one client is kept for another.
        self.session = aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=1 << 16,
            max_field_size=1 << 16,
        )
        router_id = uuid.uuid4().hex
        self.replicas = Replicas(
            self.router,
            self.session,
            self.metrics,
            router_id=router_id,
            control_key=config.control_key,
            silent_seconds=config.silent_seconds,
            forget_seconds=config.forget_seconds,
        )
        self.forward = Forward(
            self.router,
            self.replicas,
            self.session,
            self.metrics,
            router_id=router_id,
            attempts=config.attempts,
            connect_seconds=config.connect_seconds,
        )
        self.placing = Placing(
            self.router,
            self.replicas,
            self.session,
            self.metrics,
            control_key=config.control_key,
            moves_max=config.moves_max,
            places=config.policy in PLACING,
        )

    async def close(self) -> None:
        """Lets all connections go."""
        await self.placing.close()
        await self.replicas.close()
        await self.session.close()

    # routes

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """A request with a body, to one server."""
        body = await read_body(request)
        with self.gate.passing(1):
            return await self.forward.answer(request, body)

    async def health(self, request: web.Request) -> web.Response:
        """200 if any server can be asked."""
        states = self._states()
        if self.gate.draining:
            return json_response({"status": "draining"}, status=503, headers=passing("draining"))
        if not states["live"]:
            return json_response({"status": "no_replica", "replicas": states}, status=503)
        return json_response({"status": "ready", "replicas": states})

    async def live(self, request: web.Request) -> web.Response:
        """200 as long as this process answers."""
        return json_response({"status": "live"})

    async def version(self, request: web.Request) -> web.Response:
        """The package's version."""
        return json_response({"version": __version__})

    async def models(self, request: web.Request) -> web.Response:
        """What any server lists for this key, each model once."""
        with self.gate.passing(1):
            answers = await ask_all(self.replicas.live, self.session, request, MODELS_SECONDS)
        found: dict[str, Any] = {}
        for status, body, _ in answers:
            if status == 200:
                for model in msgspec.json.decode(body)["data"]:
                    # One that is on its way somewhere may be there elsewhere, and has all its fields then.
                    if model["id"] not in found or found[model["id"]].get("max_model_len") is None:
                        found[model["id"]] = model
        if found:
            return json_response({"object": "list", "data": list(found.values())})
        return _refusal(answers)

    async def model(self, request: web.Request) -> web.Response:
        """One model, from a server that has it."""
        with self.gate.passing(1):
            answers = await ask_all(self.replicas.live, self.session, request, MODELS_SECONDS)
        for status, body, headers in answers:
            if status == 200:
                return web.Response(body=body, headers=headers)
        return _refusal(answers)

    async def scrape(self, request: web.Request) -> web.Response:
        """GET /metrics, with the control key."""
        scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
        key = self.config.control_key.encode()
        if scheme.lower() != "bearer" or not hmac.compare_digest(sent.strip().encode(errors="surrogateescape"), key):
            raise Unauthorized("the control key is wanted: Authorization: Bearer <key>", code="invalid_api_key")
        for state, count in self._states().items():
            self.metrics.replicas.labels(state).set(count)
        for replica in self.replicas:
            self.metrics.in_flight.labels(replica.name).set(replica.in_flight)
        return web.Response(body=self.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _states(self) -> dict[str, int]:
        live = self.replicas.live
        states = Counter(dict.fromkeys(("live", "draining", "silent"), 0))
        for replica in self.replicas:
            last = None if replica.number is None else self.router.inventory(replica.number)
            drains = last is not None and last.draining and not replica.trouble
            states["live" if replica in live else "draining" if drains else "silent"] += 1
        return dict(states)


def make_route_app(front: RouteFront) -> web.Application:
    """The aiohttp application, for `Runner`."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        front.metrics.answers.labels(str(response.status)).inc()
        return response

    app = web.Application(
        client_max_size=front.config.body_bytes_max,
        middlewares=[count, errors_as_json, path_check],
    )
    for path in FORWARDED:
        app.router.add_post(path, front.pass_on)
    app.router.add_get("/v1/models", front.models)
    app.router.add_get("/v1/models/{name:.+}", front.model)
    app.router.add_get("/health", front.health)
    app.router.add_get("/health/live", front.live)
    app.router.add_get("/version", front.version)
    app.router.add_get("/metrics", front.scrape)
    app.on_response_prepare.append(sign)
    return app


def _refusal(answers: list[tuple[int, bytes, Any]]) -> web.Response:
    """The first one's answer where none has what was asked for."""
    if not answers:
        raise Unavailable("no server has answered", code="no_replica")
    status, body, headers = answers[0]
    return web.Response(status=status, body=body, headers=headers)
