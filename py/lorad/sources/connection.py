"""One HTTP/1.1 exchange with an address that was checked: every byte that is waited for has a deadline."""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import time
from typing import Any
from urllib.parse import SplitResult, unquote

from lorad.sources.transfer import Transfer

HEAD_BYTES_MAX = 1 << 16
POLL_SECONDS = 0.2
"""How long a silent connection is waited for without a look at `cancelled`."""


class Exchange:
    """A request that was sent and the answer to it; raises OSError and http.client.HTTPException.

    `addresses` are the host's, or those of the proxy `via`, which is asked for a tunnel (https) or to pass on (http).
    """

    def __init__(
        self,
        method: str,
        url: SplitResult,
        addresses: list[str],
        headers: dict[str, str],
        transfer: Transfer,
        tls: ssl.SSLContext | None,
        via: SplitResult | None = None,
    ) -> None:
        host, port = url.hostname or "", port_of(url)
        self._connection = http.client.HTTPConnection(host, port)
        self._connection.default_port = 443 if tls is not None else 80
        self._socket = _Guarded(_connect(addresses, port_of(via or url), transfer), transfer)
        try:
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            if via is not None and tls is None:
                target = f"http://{url.netloc}{target}"
                headers = headers | _proxy_headers(via)
            elif via is not None:
                self._socket.tunnel(f"{url.hostname}:{port}", _proxy_headers(via))
            if tls is not None:
                self._socket.encrypt(tls, host)
            self._connection.sock = self._socket
            self._connection.request(method, target, headers=headers)
            self._answer = self._connection.getresponse()
        except BaseException:
            self.close()
            raise
        self.status = self._answer.status

    def header(self, name: str) -> str:
        """A header of the answer, empty if it isn't there."""
        return self._answer.getheader(name) or ""

    @property
    def length(self) -> int | None:
        """Bytes of the body as announced; None if it comes in chunks or isn't announced at all."""
        text = self.header("Content-Length")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 and not self.chunked else None

    @property
    def chunked(self) -> bool:
        """Whether the body says itself where it ends."""
        return self.header("Transfer-Encoding").lower() == "chunked"

    def read(self, count: int) -> bytes:
        """Up to `count` bytes of the body, as they come; none at its end."""
        return self._answer.read1(count)

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()
        self._socket.end()


def port_of(url: SplitResult) -> int:
    """The port of a URL, given or not."""
    return url.port or (443 if url.scheme == "https" else 80)


def _proxy_headers(via: SplitResult) -> dict[str, str]:
    if via.username is None:
        return {}
    known = f"{unquote(via.username)}:{unquote(via.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(known.encode()).decode()}


def _connect(addresses: list[str], port: int, transfer: Transfer) -> socket.socket:
    failure: OSError = OSError("no address")
    for address in addresses:
        transfer.check()
        try:
            seconds = min(transfer.policy.connect_seconds, max(transfer.remaining(), 0.001))
            return socket.create_connection((address, port), timeout=seconds)
        except OSError as error:
            failure = error
    raise failure


class _Guarded:
    """What http.client wants of a socket; each read looks at the transfer's deadline and at the silence so far."""

    def __init__(self, plain: socket.socket, transfer: Transfer) -> None:
        self._socket, self._transfer = plain, transfer

    def encrypt(self, tls: ssl.SSLContext, host: str) -> None:
        self._socket = tls.wrap_socket(self._socket, server_hostname=host.strip("[]"))

    def tunnel(self, target: str, headers: dict[str, str]) -> None:
        """Asks a proxy for a connection to `target`, host and port; ConnectionError if it doesn't give one."""
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *(f"{name}: {headers[name]}" for name in headers)]
        self.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        # Byte by byte: what follows the head belongs to TLS.
        head, reads = bytearray(), _Reads(self._socket, self._transfer)
        while not head.endswith(b"\r\n\r\n"):
            byte = reads.read(1)
            if not byte or len(head) > HEAD_BYTES_MAX:
                raise ConnectionError("the proxy's answer is cut or too long")
            head += byte
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise ConnectionError("the proxy doesn't connect")

    def sendall(self, data: Any) -> None:
        self._socket.settimeout(min(self._transfer.policy.idle_seconds, max(self._transfer.remaining(), 0.001)))
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reads(self._socket, self._transfer), 1 << 16)

    def close(self) -> None:
        """Called when the head is there and no further answer will come; the body is still to be read."""

    def end(self) -> None:
        self._socket.close()


class _Reads(io.RawIOBase):
    def __init__(self, source: socket.socket, transfer: Transfer) -> None:
        self._socket, self._transfer = source, transfer

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        idle_from = time.monotonic()
        while True:
            self._transfer.check()
            self._socket.settimeout(min(POLL_SECONDS, max(self._transfer.remaining(), 0.001)))
            try:
                return self._socket.recv_into(into)
            except TimeoutError:
                if time.monotonic() - idle_from > self._transfer.policy.idle_seconds:
                    raise
