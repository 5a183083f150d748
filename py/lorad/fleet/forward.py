"""`Forward`: sends a request to the replica that the router chooses, and its answer back byte by byte.

While nothing of an answer was sent, another replica may be asked: where one can't be reached, ends the connection or
says 503. An answer of a known, moderate length is read whole before it's sent, so that a replica may die in the middle
of it; a stream is sent as it comes from its first part on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from lorad.errors import Unavailable
from lorad.fleet.asked import read
from lorad.fleet.inventory import ROUTE_HEADER
from lorad.fleet.metrics import RouteMetrics
from lorad.fleet.replica import Replica
from lorad.fleet.replicas import Replicas
from lorad.fleet.router import Decision, Router
from lorad.server.failures import error_event
from lorad.server.formats import DONE
from lorad.server.writing import write

WHOLE_BYTES_MAX = 4 << 20
"""An answer of up to so many bytes is read before it's sent."""
REFUSAL_BYTES_MAX = 1 << 16
TOLD_MAX = 8
"""Candidates in an explanation: a header has to stay short."""

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "expect", "date", "server"),
        ROUTE_HEADER.lower(),
    }
)
"""Of one connection, or ours to say."""

_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""What the client's library would add by itself."""


class _Elsewhere(Exception):
    """This replica hasn't answered; another one may."""

    def __init__(self, cause: str, refusal: web.Response | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.refusal = refusal
        """What it said, if it said something."""


class Forward:
    """The way of requests."""

    def __init__(
        self,
        router: Router,
        replicas: Replicas,
        session: aiohttp.ClientSession,
        metrics: RouteMetrics,
        *,
        router_id: str,
        attempts: int,
        connect_seconds: float,
    ) -> None:
        self._router = router
        self._replicas = replicas
        self._session = session
        self._metrics = metrics
        self._router_id = router_id
        self._attempts = attempts
        # An answer may take as long as it takes.
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)

    async def answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """What the chosen replica answers, or the last one that was asked."""
        refusal: web.Response | None = None
        for _ in range(self._attempts):
            began = time.perf_counter()
            try:
                asked = read(body)
                decision = self._router.route(asked)
            except Unavailable:
                if refusal is not None:
                    break
                raise
            self._metrics.decided(decision)
            self._metrics.decision_seconds.observe(time.perf_counter() - began)
            # Now: a replica may be forgotten, and its number with it, before it answers.
            replica = self._replicas.numbered(decision.replica)
            ours = {ROUTE_HEADER: self._explained(decision)} if asked.explain else {}
            try:
                return await self._ask(request, body, decision.number, ours, replica)
            except _Elsewhere as elsewhere:
                replica.failed()
                refusal = elsewhere.refusal or refusal
                self._metrics.retries.labels(elsewhere.cause).inc()
        if refusal is not None:
            return refusal
        raise Unavailable(f"{self._attempts} servers were asked, and none has answered", code="replicas_failed")

    async def _ask(
        self, request: web.Request, body: bytes, number: int, ours: Mapping[str, str], replica: Replica
    ) -> web.StreamResponse:
        """`number`: the request's; `ours`: what its answer's headers have beside the server's."""
        headers = passed_on(request.headers)
        headers[ROUTE_HEADER] = f"{self._router_id}:{number}"
        self._metrics.sent.labels(replica.name).inc()
        replica.in_flight += 1
        try:
            upstream = await replica.unless_silent(self._send(request, body, headers, replica))
        except aiohttp.ClientConnectorError:
            raise _Elsewhere("refused") from None
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise _Elsewhere("reset") from None
        else:
            try:
                return await self._pass_back(request, ours, upstream)
            finally:
                # Where not all of it was read, its connection ends with it, and the replica stops.
                upstream.close()
        finally:
            replica.in_flight -= 1

    async def _send(
        self, request: web.Request, body: bytes, headers: CIMultiDict[str], replica: Replica
    ) -> aiohttp.ClientResponse:
        return await self._session.request(
            request.method,
            replica.url + request.raw_path,
            data=body or None,
            headers=headers,
            skip_auto_headers=_SKIPPED,
            allow_redirects=False,
            timeout=self._timeout,
        )

    async def _pass_back(
        self, request: web.Request, ours: Mapping[str, str], upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        headers = passed_on(upstream.headers)
        headers.update(ours)
        length = upstream.content_length
        try:
            if upstream.status == 503:
                said = await upstream.content.read(REFUSAL_BYTES_MAX)
                raise _Elsewhere("unavailable", web.Response(body=said, status=503, headers=headers))
            if length is not None and length <= WHOLE_BYTES_MAX:
                whole = await upstream.read()
                return web.Response(body=whole, status=upstream.status, headers=headers)
            data = await upstream.content.readany()
        except (aiohttp.ClientError, OSError):
            raise _Elsewhere("reset") from None
        response = web.StreamResponse(status=upstream.status, headers=headers)
        await response.prepare(request)
        while data:
            await write(request, response, data)
            try:
                data = await upstream.content.readany()
            except (aiohttp.ClientError, OSError):
                self._metrics.lost.inc()
                if upstream.content_type != "text/event-stream":
                    raise ConnectionResetError("the server failed within its answer") from None
                error = Unavailable("the server failed before its answer was complete", code="replica_lost")
                await write(request, response, error_event(error) + DONE)
                return response
        return response

    def _explained(self, decision: Decision) -> str:
        """Terms in ms, of the chosen one, the runner-up, and those that come next."""
        others = sorted(decision.candidates, key=lambda one: sum(one[2].values()))
        second = decision.runner_up

        def told(number: int, is_home: bool, cost: Mapping[str, int]) -> dict[str, object]:
            terms = {term: us / 1000 for term, us in cost.items()}
            name = self._replicas.numbered(number).name
            return {"replica": name, "home": is_home, "total": sum(cost.values()) / 1000, **terms}

        homes = {number for number, is_home, _ in others if is_home}
        return msgspec.json.encode(
            {
                "policy": self._router.policy,
                "number": decision.number,
                "chosen": told(decision.replica, decision.replica in homes, decision.cost),
                "runner_up": None if second is None else told(*second),
                "candidates": [told(*one) for one in others[:TOLD_MAX]],
                "candidates_total": len(others),
            }
        ).decode()


def passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """All but those of one connection, and those that the header Connection names."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    made: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        if name.lower() not in HOP_BY_HOP and name.lower() not in named:
            made.add(name, value)
    return made


async def ask_all(
    replicas: list[Replica], session: aiohttp.ClientSession, request: web.Request, seconds: float
) -> list[tuple[int, bytes, CIMultiDict[str]]]:
    """What each of them answers to this request without a body: status, body, headers. Those that don't are left
    out."""

    async def ask(replica: Replica) -> tuple[int, bytes, CIMultiDict[str]] | None:
        try:
            async with asyncio.timeout(seconds):
                async with session.get(
                    replica.url + request.raw_path, headers=passed_on(request.headers), allow_redirects=False
                ) as answer:
                    return answer.status, await answer.read(), passed_on(answer.headers)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    return [found for found in await asyncio.gather(*map(ask, replicas)) if found is not None]
