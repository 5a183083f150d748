"""`Record`: what is told of one HTTP request when it has ended, to metrics, the access log and traces.

It has numbers, ids and names that exist here. It never has a prompt, an answer, a key, a path, or a name that a client
made up: what isn't in it can't get into a log.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from lorad.server.generation import Generation

REQUEST_ID = "X-Request-ID"
_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

CLIENT_LEFT = 499
"""The status of a request whose client left before its answer was complete."""


class Record:
    """Of one request. Times in seconds."""

    def __init__(self, request_id: str, method: str, route: str, began: float, began_unix_ns: int) -> None:
        """`route`: as it's written in the route table, "other" for unknown ones; `began` on the loop's clock."""
        self.id = request_id
        self.method = method
        self.route = route
        self.began = began
        self.began_unix_ns = began_unix_ns
        self.traceparent: dict[str, str] = {}
        """W3C's headers, as they came."""
        self.tenant = ""
        self.generation: Generation | None = None
        """None: it didn't get so far."""
        self.response_id = ""
        self.status = 0
        self.code = ""
        """Of the error that it ended with."""
        self.seconds = 0.0

    def left(self) -> None:
        """The client has left."""
        self.status, self.code = CLIENT_LEFT, "client_left"

    def fields(self) -> dict[str, Any]:
        """For the access log."""
        fields: dict[str, Any] = {"id": self.id, "tenant": self.tenant, "model": "", "method": self.method}
        fields |= {"route": self.route, "status": self.status, "code": self.code}
        if self.generation is not None:
            usage = self.generation.usage
            fields |= {
                "model": self.generation.target.name,
                "generation": self.generation.target.fingerprint,
                "prompt_tokens": usage.prompt,
                "cached_tokens": usage.cached,
                "completion_tokens": usage.completion,
            }
        return fields | {"ms": round(self.seconds * 1e3, 3)}


RECORD = web.RequestKey("record", Record)
"""On each request, from the first middleware on."""


def request_id(given: str | None) -> str:
    """The id that a client gave its request, if it can stand in a log line; else a new one."""
    return given if given is not None and _ID.fullmatch(given) else uuid.uuid4().hex


def note(request: web.Request, code: str) -> None:
    """The request ends with this error; where records are kept (a listener for scrapes has none)."""
    record = request.get(RECORD)
    if record is not None:
        record.code = code
