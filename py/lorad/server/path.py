"""Paths that are text: names in them are refused rather than guessed at."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from aiohttp import web

from lorad.errors import InvalidRequest
from lorad.server.failures import Handler

_BROKEN = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SHOWN_MAX = 80


@web.middleware
async def path_check(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses a path whose percent-encoding isn't of UTF-8. aiohttp would leave such bytes encoded, and %FF would be
    the same name as %25FF."""
    path = request.raw_path.partition("?")[0]
    try:
        if _BROKEN.search(path):
            raise ValueError
        unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode("utf-8")
    except ValueError:
        raise InvalidRequest(
            f"the path isn't percent-encoded UTF-8: {path[:_SHOWN_MAX]!a}", code="path_encoding", param="path"
        ) from None
    return await handler(request)
