"""A request's body: JSON by its headers, as it is, and all of it within a time."""

from __future__ import annotations

import asyncio

from aiohttp import web

from lorad.errors import InvalidRequest
from lorad.server.decode import check_content_type

BODY_SECONDS = 60.0
"""How long a client may take to send its body."""
_SHOWN_MAX = 100


async def read_body(request: web.Request) -> bytes:
    """The whole body. One that is longer than the application's `client_max_size`, by its header or as it comes, is
    HTTP's 413."""
    check_content_type(request.headers.get("Content-Type", ""))
    _check_encoding(request.headers.getall("Content-Encoding", []))
    length = request.content_length
    if length is not None and length > request.client_max_size:  # said at once, not when that much has come
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, length)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise InvalidRequest(f"the body didn't arrive within {BODY_SECONDS:g} s", code="body_timeout") from None


def _check_encoding(given: list[str]) -> None:
    """Nothing is unpacked, and what calls itself packed isn't taken for JSON as it is."""
    for coding in given:
        if coding.strip().lower() not in ("", "identity"):
            raise InvalidRequest(
                f"Content-Encoding: bodies are taken as they are, got {coding[:_SHOWN_MAX]!r}", code="content_encoding"
            )
