"""One HTTP/1.1 exchange with an address that was checked: every byte that is waited for has a deadline."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from typing import Any
from urllib.parse import SplitResult

from lorad.sources.transfer import Transfer

POLL_SECONDS = 0.2
"""How long a silent connection is waited for without a look at `cancelled`."""


class Exchange:
    """A request that was sent and the answer to it; raises OSError and http.client.HTTPException."""

    def __init__(
        self,
        method: str,
        url: SplitResult,
        addresses: list[str],
        headers: dict[str, str],
        transfer: Transfer,
        tls: ssl.SSLContext | None,
    ) -> None:
        host = url.hostname or ""
        port = url.port or (443 if url.scheme == "https" else 80)
        self._connection = http.client.HTTPConnection(host, port)
        self._socket = _Guarded(_connect(addresses, port, transfer), transfer)
        try:
            if tls is not None:
                self._socket.encrypt(tls, host)
            self._connection.sock = self._socket
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
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
        return int(text) if text.isascii() and text.isdigit() and not self.chunked else None

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
