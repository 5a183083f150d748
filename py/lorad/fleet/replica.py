"""`Replica`: one server behind the router, and what it's heard of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import msgspec

from lorad import _core
from lorad.fleet.inventory import PATH, Inventory
from lorad.fleet.metrics import RouteMetrics
from lorad.fleet.router import Router

log = logging.getLogger("lorad.fleet")

AGAIN_SECONDS = (0.1, 2.0)
"""Between two tries to hear of a replica: the first and the longest, each twice the one before."""
EVENT_BYTES_MAX = 32 << 20
"""Of an inventory, which has a line of a few hundred bytes for each adapter."""

T = TypeVar("T")

_decoder = msgspec.json.Decoder(Inventory)


class Replica:
    """A server by its address. It has a number while it's heard of, or was lately."""

    def __init__(
        self,
        url: str,
        name: str,
        router: Router,
        session: aiohttp.ClientSession,
        metrics: RouteMetrics,
        *,
        router_id: str,
        control_key: str,
        silent_seconds: float,
    ) -> None:
        """`name`: for metrics and explanations, which don't tell addresses."""
        self.url = url
        self.name = name
        self.number: int | None = None
        self.in_flight = 0
        self._router = router
        self._session = session
        self._metrics = metrics
        self._listen = f"{url}{PATH}?router={router_id}"
        self._headers = {"Authorization": f"Bearer {control_key}"}
        self._timeout = aiohttp.ClientTimeout(total=None, connect=silent_seconds, sock_read=silent_seconds)
        self._task: asyncio.Task[None] | None = None
        self.heard_at = asyncio.get_running_loop().time()
        """When it was last, or when this began."""
        self.trouble = ""
        """Why it isn't heard of; "": it is."""
        self._silent = asyncio.Event()

    def begin(self) -> None:
        """Listens from now on."""
        self._task = asyncio.create_task(self._keep_listening())

    async def end(self) -> None:
        """Listens no longer, and sends it nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.forget()

    def forget(self) -> None:
        """It's gone until it's heard of again: adapters get other homes."""
        if self.number is not None:
            self._router.leave(self.number)
            self.number = None

    def failed(self) -> None:
        """A request to it has, or it can't be heard."""
        if self.number is not None:
            self._router.fail(self.number)

    async def unless_silent(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, which waits for this replica. TimeoutError: it has fallen silent meanwhile, so that
        nothing may come, and no end of the connection either."""
        working, silent = asyncio.ensure_future(work), asyncio.ensure_future(self._silent.wait())
        try:
            await asyncio.wait({working, silent}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise TimeoutError
            return working.result()
        finally:
            silent.cancel()
            working.cancel()

    async def _keep_listening(self) -> None:
        pause = AGAIN_SECONDS[0]
        while True:
            try:
                async with self._session.get(
                    self._listen,
                    headers=self._headers,
                    timeout=self._timeout,
                    read_bufsize=EVENT_BYTES_MAX,
                    allow_redirects=False,
                ) as response:
                    if response.status != 200:
                        raise OSError(f"{PATH} is answered {response.status}")
                    async for line in response.content:
                        if line.startswith(b"data: "):
                            self._take(_decoder.decode(line[6:]))
                            pause = AGAIN_SECONDS[0]
                raise OSError("its stream has ended")
            except (OSError, aiohttp.ClientError, TimeoutError, ValueError, _core.FleetRefused) as error:
                if isinstance(error, _core.FleetRefused):
                    self._metrics.gaps.inc()
                else:
                    self.failed()
                if isinstance(error, TimeoutError):
                    self._silent.set()
                self._say(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS[1])

    def _take(self, inventory: Inventory) -> None:
        if self.number is None:
            if inventory.base is not None:
                raise ValueError("changes on an inventory that was forgotten")
            self.number = self._router.join(self.url)
        self._router.publish(self.number, inventory)
        self._silent.clear()
        self.heard_at = asyncio.get_running_loop().time()
        if self.trouble:
            log.warning("%s (%s) is heard of again", self.name, self.url)
        self.trouble = ""

    def _say(self, error: BaseException) -> None:
        text = str(error) or type(error).__name__
        if text != self.trouble:  # once, not at each try
            log.warning("%s (%s) isn't heard of: %s", self.name, self.url, text)
        self.trouble = text
