"""Sockets that are listened on."""

from __future__ import annotations

import socket

from lorad.errors import Unavailable


def bind(host: str, port: int) -> socket.socket:
    """Takes a port, 0: any. `Unavailable`: it can't be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family[0], socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(family[4])
        except BaseException:
            bound.close()
            raise
        return bound
    except OSError as error:
        raise Unavailable(f"can't listen on {host}:{port}: {error.strerror}", code="listen") from None


def address_of(bound: socket.socket) -> str:
    """Where it listens, as a URL."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
