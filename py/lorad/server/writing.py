"""`write`: a part of an answer, to a client that may not read it."""

from __future__ import annotations

import asyncio

from aiohttp import web

WRITE_SECONDS = 120.0
"""How long a client may leave a full socket unread before its connection is cut. The engine doesn't wait for it: tokens
of a slow reader are kept here, and its pages are free as soon as the last one is made."""


async def write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Sends it. ConnectionResetError: the client has left, or doesn't read."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client has left")
    if not transport.get_write_buffer_size():
        await response.write(data)
        return
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(data)
    except TimeoutError:
        transport.abort()
        raise ConnectionResetError("the client doesn't read") from None
