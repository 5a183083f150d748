"""Log lines of both processes: as text or as JSON, one a line, on stderr.

What may stand in a line at level info and above: ids, names, numbers, codes. Never a prompt, an answer or a key.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from lorad.config import LogFormat, LogLevel

ACCESS = "lorad.access"
"""The logger of the access log."""

_FIELDS = "fields"


class Text(logging.Formatter):
    """`LEVEL logger: message key=value …`."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without its traceback."""
        fields: dict[str, Any] = getattr(record, _FIELDS, {})
        return " ".join([super().formatMessage(record), *(f"{key}={_value(value)}" for key, value in fields.items())])


class Json(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, the fields, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(form: LogFormat, level: LogLevel, *, access: bool = False, stream: TextIO | None = None) -> None:
    """Sets up this process's log. `level` is lorad's own: what other packages say below warnings may hold addresses
    with credentials in them. `access`: lines about requests are wanted, whatever the level is."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("lorad").setLevel(level.upper())
    logging.getLogger(ACCESS).setLevel(logging.INFO if access else logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(_is_http)


def _is_http(record: logging.LogRecord) -> bool:
    """Not what the library says of bytes that are no HTTP: it's the client's fault, and its line has them, a key among
    them maybe."""
    # By the module's name, as the engine's process has no aiohttp.
    return not (record.exc_info and type(record.exc_info[1]).__module__ == "aiohttp.http_exceptions")


def access(fields: dict[str, Any]) -> None:
    """A line about a request."""
    logging.getLogger(ACCESS).info("request", extra={_FIELDS: fields})


def fault(log: logging.Logger, what: str, error: BaseException) -> None:
    """A fault of ours while a client's text was at hand: where it was, and its kind. Not its message, as that may hold
    what the client sent."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 8:
        parts.append(type(cause).__name__ + "\n" + "".join(traceback.format_tb(cause.__traceback__)).rstrip())
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    log.error("%s: %s", what, "\ncaused by ".join(parts))


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain and text else json.dumps(text, ensure_ascii=False)
