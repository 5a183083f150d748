"""`Placing`: has adapters live where the router says, by the replicas' own control endpoints.

Each round moves homes within the budget, then has as many adapters loaded where they live and aren't in pages. What
isn't asked for there any more, a replica evicts by itself.
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import quote

import aiohttp

from lorad.fleet.metrics import RouteMetrics
from lorad.fleet.replica import Replica
from lorad.fleet.replicas import Replicas
from lorad.fleet.router import Router, Wanted

log = logging.getLogger("lorad.fleet")

PREWARM_SECONDS = 10.0
"""How long a replica may take to have an adapter in pages, which waits for room that nobody uses."""
AGAIN_SECONDS = 60.0
"""A replica that has evicted such an adapter meanwhile had better use for its room: for so long it isn't told again."""
LOAD_SECONDS = 600.0
"""Likewise, to fetch one that it hasn't got."""


class Placing:
    """Rounds of it."""

    def __init__(
        self,
        router: Router,
        replicas: Replicas,
        session: aiohttp.ClientSession,
        metrics: RouteMetrics,
        *,
        control_key: str,
        moves_max: int,
        places: bool,
    ) -> None:
        """`places`: the policy looks at where adapters live."""
        self._router = router
        self._replicas = replicas
        self._session = session
        self._metrics = metrics
        self._headers = {"Authorization": f"Bearer {control_key}"}
        self._moves_max = moves_max
        self._places = places
        self._under_way: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._told: dict[tuple[int, str], float] = {}
        """When each was loaded last, of the last minute."""

    async def run(self, every_seconds: float) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(every_seconds)
            self.round()

    def round(self) -> None:
        """One."""
        self._replicas.forget_silent()
        if not self._places:
            return
        for reason in self._router.rebalance(self._moves_max):
            self._metrics.moves.labels(reason).inc()
        now = asyncio.get_running_loop().time()
        self._told = {key: at for key, at in self._told.items() if now - at < AGAIN_SECONDS}
        free = self._moves_max - len(self._under_way)
        for wanted in self._router.wanted(free, without=self._told.keys() | self._under_way.keys()):
            key = wanted.replica, wanted.name
            self._told[key] = now
            replica = self._replicas.numbered(wanted.replica)
            self._under_way[key] = task = asyncio.create_task(self._warm(wanted, replica))
            task.add_done_callback(lambda _, key=key: self._under_way.pop(key))  # type: ignore[misc]

    async def close(self) -> None:
        """Ends what is under way; a replica may go on with it."""
        for task in list(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def settled(self) -> None:
        """Waits for what is under way."""
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _warm(self, wanted: Wanted, replica: Replica) -> None:
        try:
            if wanted.card is None:
                if not wanted.source:
                    self._metrics.prewarms.labels("no_source").inc()
                    return
                await self._call(
                    "PUT",
                    f"{replica.url}/v1/lora_adapters/{quote(wanted.name, safe='')}",
                    {"source": wanted.source, "wait_seconds": LOAD_SECONDS},
                )
            body = {"names": [wanted.name], "within_seconds": PREWARM_SECONDS, "wait_seconds": 2 * PREWARM_SECONDS}
            await self._call("POST", f"{replica.url}/v1/lora_prewarm", body)
            self._metrics.prewarms.labels("done").inc()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._metrics.prewarms.labels("failed").inc()
            log.info("%s: %r isn't warm: %s", replica.name, wanted.name, error)

    async def _call(self, method: str, url: str, body: dict[str, object]) -> None:
        timeout = aiohttp.ClientTimeout(total=LOAD_SECONDS + PREWARM_SECONDS)
        async with self._session.request(method, url, json=body, headers=self._headers, timeout=timeout) as answer:
            said = await answer.text()
            if answer.status != 200:
                raise OSError(f"{method} {url} is answered {answer.status}: {said[:200]}")
