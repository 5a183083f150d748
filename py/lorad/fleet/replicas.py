"""`Replicas`: the servers that a router stands in front of, as a list and a name in DNS have them."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import aiohttp

from lorad.errors import InvalidRequest
from lorad.fleet.metrics import RouteMetrics
from lorad.fleet.replica import Replica
from lorad.fleet.router import Router

log = logging.getLogger("lorad.fleet")

_NAME_AND_PORT = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,253}):(?P<port>[0-9]{1,5})")


def parse_urls(urls: Sequence[str]) -> list[str]:
    """Addresses of servers, without a slash at the end."""
    for url in urls:
        try:
            parts = urlsplit(url)
            right = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
            right = right and parts.path in ("", "/") and parts.username is None and parts.port != 0
        except ValueError:
            right = False
        if not right:
            message = f"replica: http://HOST:PORT or https://HOST:PORT, got {url[:200]!r}"
            raise InvalidRequest(message, code="option_form", param="replica")
    stripped = [url.rstrip("/") for url in urls]
    for url in stripped:
        if stripped.count(url) > 1:
            raise InvalidRequest(f"replica: {url} is given twice", code="option_form", param="replica")
    return stripped


def parse_dns(text: str) -> tuple[str, int] | None:
    """A name and a port; None: there's none."""
    if not text:
        return None
    match = _NAME_AND_PORT.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        message = f"replicas_dns: name:port, got {text[:200]!r}"
        raise InvalidRequest(message, code="option_form", param="replicas_dns")
    return match["name"], int(match["port"])


class Replicas:
    """All of them, by address."""

    def __init__(
        self,
        router: Router,
        session: aiohttp.ClientSession,
        metrics: RouteMetrics,
        *,
        router_id: str,
        control_key: str,
        silent_seconds: float,
        forget_seconds: float,
    ) -> None:
        self._router = router
        self._session = session
        self._metrics = metrics
        self._router_id = router_id
        self._control_key = control_key
        self._silent_seconds = silent_seconds
        self._forget_seconds = forget_seconds
        self._by_url: dict[str, Replica] = {}
        self._names = 0

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_url.values())

    def numbered(self, number: int) -> Replica:
        """The one of a decision that was just made."""
        return next(one for one in self if one.number == number)

    @property
    def live(self) -> list[Replica]:
        """Those that requests go to."""
        return [one for one in self if one.number is not None and self._router.is_live(one.number)]

    def add(self, url: str) -> None:
        """One more."""
        replica = self._by_url[url] = Replica(
            url,
            f"r{self._names}",
            self._router,
            self._session,
            self._metrics,
            router_id=self._router_id,
            control_key=self._control_key,
            silent_seconds=self._silent_seconds,
        )
        self._names += 1
        replica.begin()

    async def remove(self, url: str) -> None:
        """One less. Requests that it answers go on."""
        await self._by_url.pop(url).end()

    def forget_silent(self) -> None:
        """Gives up those that weren't heard of for long, until they are again."""
        now = asyncio.get_running_loop().time()
        for replica in self:
            if replica.number is not None and replica.trouble and now - replica.heard_at > self._forget_seconds:
                log.warning("%s (%s) is given up: %s", replica.name, replica.url, replica.trouble)
                replica.forget()

    async def close(self) -> None:
        """Listens to nobody any more."""
        for url in list(self._by_url):
            await self.remove(url)

    async def follow(self, name: str, port: int, every_seconds: float) -> None:
        """Has the addresses of a name in DNS, for ever. Where it can't be looked up, all stays as it is."""
        loop = asyncio.get_running_loop()
        ours: set[str] = set()
        while True:
            try:
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except OSError as error:
                log.warning("%s can't be looked up: %s", name, error)
            else:
                urls = {_url(str(address[0]), port) for *_, address in found}
                for url in sorted(urls - ours - self._by_url.keys()):
                    self.add(url)
                    ours.add(url)
                for url in sorted(ours - urls):
                    ours.discard(url)
                    await self.remove(url)
            await asyncio.sleep(every_seconds)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
