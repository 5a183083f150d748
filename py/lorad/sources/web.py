"""Reading files over http(s): addresses, redirects, retries and what must stay the same meanwhile.

Not through obstore, whose HTTP store follows redirects by itself and connects wherever a name leads.
"""

from __future__ import annotations

import http.client
import itertools
import ssl
import urllib.request
from collections.abc import Callable
from typing import NoReturn, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from lorad.sources.address import Resolve, addresses, resolve
from lorad.sources.connection import Exchange, port_of
from lorad.sources.files import Item
from lorad.sources.policy import SourcePolicy
from lorad.sources.reject import Changed, reject
from lorad.sources.transfer import CHUNK_BYTES, Sink, Transfer

REDIRECTS_MAX = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
Result = TypeVar("Result")


class Again(Exception):
    """A failure that may pass: `code` and message if it doesn't, and how many seconds it asks for."""

    def __init__(self, code: str, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.message, self.after = code, message, after


def with_retries(transfer: Transfer, call: Callable[[], Result]) -> Result:
    """What `call` gives, tried again where it raises `Again`, as often as the policy says."""
    for attempt in itertools.count():
        try:
            return call()
        except Again as failure:
            if attempt >= transfer.policy.retries_max:
                times = f" ({attempt + 1} times)" if attempt else ""
                raise reject(failure.code, failure.message + times) from None
            transfer.pause(attempt, failure.after)
    raise AssertionError


def refuse_status(status: int, what: str, after: str = "") -> NoReturn:
    """Raises what an answer's status means for `what`."""
    if status in (404, 410):
        raise reject("source_missing", f"{what}: nothing is there ({status})")
    if status in (401, 403, 407):
        raise reject("source_denied", f"{what}: the server doesn't allow it ({status})")
    if status in _AGAIN:
        seconds = float(after) if after.isascii() and after.isdigit() else 0.0
        raise Again("source_unreachable", f"{what}: the server answered {status}", min(seconds, 30.0))
    raise reject("source_unreachable", f"{what}: the server answered {status}")


class Web:
    """Files by URL, as the policy allows.

    `trusted`: hosts that the operator named, which may have private addresses. `leads`: a redirect may go to any host
    that may be asked, and the environment's proxy is used; without, none is, for it would choose the addresses.
    `headers` are sent to the host of the URL, and not to another one that it leads to.
    """

    def __init__(
        self,
        policy: SourcePolicy,
        *,
        trusted: frozenset[str] = frozenset(),
        leads: bool = False,
        headers: dict[str, str] | None = None,
        ask: Resolve = resolve,
    ) -> None:
        self._policy, self._trusted, self._leads, self._ask = policy, trusted, leads, ask
        self._headers = headers or {}
        self._tls: ssl.SSLContext | None = None

    def probe(self, url: str, name: str, transfer: Transfer) -> Item | None:
        """What there is to read at `url`; None if nothing is."""

        def once() -> Item | None:
            for method in ("HEAD", "GET"):
                answer = self._answer(method, url, {}, transfer)
                try:
                    if answer.status == 200:
                        return Item(name, answer.length, *_tag(answer))
                    if answer.status in (404, 410):
                        return None
                    # 403: servers that sign URLs allow one method of them; 405, 501: no HEAD here.
                    if method == "GET" or answer.status not in (403, 405, 501):
                        refuse_status(answer.status, name, answer.header("Retry-After"))
                finally:
                    answer.close()
            raise AssertionError

        return with_retries(transfer, once)

    def read(self, url: str, item: Item, sink: Sink, transfer: Transfer, *, fixed: bool = False) -> None:
        """Writes the file to `sink`; `Changed` if it isn't what `item` says. `fixed`: `url` always means the same."""

        def once() -> None:
            headers = {}
            if sink.written and (item.strong or fixed):
                headers["Range"] = f"bytes={sink.written}-"
                if item.strong and not fixed:
                    headers["If-Range"] = item.tag
            answer = self._answer("GET", url, headers, transfer)
            try:
                self._body(answer, item, sink, fixed)
            except (OSError, http.client.HTTPException) as error:
                raise _again(error, item.name, sink.written) from None
            finally:
                answer.close()

        with_retries(transfer, once)

    def _body(self, answer: Exchange, item: Item, sink: Sink, fixed: bool) -> None:
        if answer.status in (412, 416):
            raise Changed(f"{item.name} changed while it was read")
        if answer.status not in (200, 206):
            refuse_status(answer.status, item.name, answer.header("Retry-After"))
        if answer.header("Content-Encoding").lower() not in ("", "identity"):
            raise reject("source_unreachable", f"{item.name} was sent compressed, which wasn't asked for")
        begins = 0
        if answer.status == 206:
            begins = sink.written
            if not answer.header("Content-Range").startswith(f"bytes {begins}-"):
                raise reject("source_unreachable", f"{item.name}: the server sent another range than was asked for")
        elif sink.written:
            sink.restart()
        if answer.length is None and not answer.chunked:
            raise reject("source_unreachable", f"{item.name}: the server doesn't say how long it is")
        if item.bytes is not None and answer.length is not None and begins + answer.length != item.bytes:
            raise Changed(f"{item.name} had {item.bytes} bytes and has {begins + answer.length}")
        tag = _tag(answer)[0]
        if tag and item.tag and tag != item.tag and not fixed:
            raise Changed(f"{item.name} changed while it was read")
        while data := answer.read(CHUNK_BYTES):
            if item.bytes is not None and sink.written + len(data) > item.bytes:
                raise Changed(f"{item.name} had {item.bytes} bytes and has more")
            sink.write(data)
        due = item.bytes if answer.length is None else begins + answer.length
        if due is not None and sink.written < due:
            raise Again("source_unreachable", f"{item.name} ended after {sink.written} of {due} bytes")

    def _answer(self, method: str, url: str, headers: dict[str, str], transfer: Transfer) -> Exchange:
        """The answer at `url` or where it leads; failures that may pass are `Again`."""
        here = start = urlsplit(url)
        for _ in range(REDIRECTS_MAX + 1):
            own = self._headers if (here.hostname, here.port) == (start.hostname, start.port) else {}
            answer = self._exchange(method, here, {"Accept-Encoding": "identity", **own, **headers}, transfer)
            if answer.status not in _REDIRECTS:
                return answer
            answer.close()
            here = self._next(here, answer.header("Location"))
        raise reject("source_unreachable", f"{transfer.where} leads on more than {REDIRECTS_MAX} times")

    def _exchange(self, method: str, url: SplitResult, headers: dict[str, str], transfer: Transfer) -> Exchange:
        host, port = url.hostname or "", port_of(url)
        via = _proxy(url) if self._leads else None
        if via is not None:
            # The proxy resolves the name, and decides what may be asked.
            found = addresses(via.hostname or "", port_of(via), True, resolve)
        else:
            private = self._policy.private_addresses or f"{host}:{port}" in self._trusted
            found = addresses(host, port, private, self._ask)
        if url.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            tls = self._tls if url.scheme == "https" else None
            return Exchange(method, url, found, headers, transfer, tls, via)
        except ssl.SSLCertVerificationError as error:
            raise reject("source_unreachable", f"the certificate of {host!r}: {error.verify_message}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _again(error, f"the host {host!r}", 0) from None

    def _next(self, here: SplitResult, location: str) -> SplitResult:
        there = urlsplit(urljoin(here.geturl(), location))
        try:
            there.port  # noqa: B018 (raises where it isn't a number)
        except ValueError:
            location = ""
        host = there.hostname or ""
        if not location or there.scheme not in ("http", "https") or not host or "@" in there.netloc:
            raise reject("source_unreachable", f"the host {here.hostname!r} leads to no URL that can be followed")
        if here.scheme == "https" and there.scheme == "http":
            raise reject("source_address", f"the host {here.hostname!r} leads from https to http")
        place = f"{there.scheme}://{there.netloc.lower()}{there.path}"
        if not self._leads and host not in self._policy.redirect_hosts:
            if host != here.hostname:
                raise reject("source_address", f"the host {here.hostname!r} leads to another one, {host!r}")
            if not self._policy.permits(place) and not self._policy.permits(place.replace("http:", "https:", 1)):
                raise reject(
                    "source_prefix", f"the host {here.hostname!r} leads outside of the places that are allowed"
                )
        return there


def _proxy(url: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for a URL (HTTPS_PROXY, HTTP_PROXY, NO_PROXY)."""
    named = urllib.request.getproxies().get(url.scheme)
    if not named or urllib.request.proxy_bypass(url.netloc.rpartition("@")[2]):
        return None
    return urlsplit(named if "://" in named else f"http://{named}")


def _again(error: Exception, what: str, written: int) -> Again:
    so_far = f" after {written} bytes" if written else ""
    if isinstance(error, TimeoutError):
        return Again("source_timeout", f"{what}: no answer in time{so_far}")
    return Again("source_unreachable", f"{what}: the connection failed{so_far}")


def _tag(answer: Exchange) -> tuple[str, bool]:
    """What changes with the content, and whether it's the same only for the same bytes."""
    if etag := answer.header("ETag"):
        return etag, not etag.startswith("W/")
    return answer.header("Last-Modified"), False
