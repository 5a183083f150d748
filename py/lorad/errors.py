"""Every kind of refusal, once: its HTTP status and its exception. Its `code` is given where it is raised.

LoradError
 ├── InvalidRequest        400  a field of a request: `param`, the limit and the value are in the message
 ├── NotFound              404  no such model, request or route
 ├── Conflict              409  what is there already stands against it
 ├── AdapterRejected       400  an adapter file or config that can't be applied in full
 ├── ModelRejected         400  a base model file that can't be served
 ├── Overloaded            429  the queue is full; `retry_after_s` says when to come back
 ├── Unauthorized          401  no key, or a wrong one
 ├── Forbidden             403  a right key for something else
 ├── Unavailable           503  starting, draining, or the engine is gone
 └── EngineFailure         500  the engine failed while it ran this request
      └── EngineLost       500  a part of the engine is gone: it ends, and the front starts another
"""

from __future__ import annotations

from typing import ClassVar


class LoradError(Exception):
    """A refusal with a stable `code`; `param` names the field it is about, if any."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.code, self.param))


def _rebuild(kind: type[LoradError], message: str, code: str, param: str | None) -> LoradError:
    return kind(message, code=code, param=param)


class InvalidRequest(LoradError):
    """A field of a request is wrong."""

    status = 400
    kind = "invalid_request_error"


class NotFound(LoradError):
    """No such model, request or route."""

    status = 404
    kind = "not_found_error"


class Conflict(LoradError):
    """What is there already stands against it."""

    status = 409
    kind = "conflict_error"


class AdapterRejected(LoradError):
    """An adapter that can't be applied in full, with the reason."""

    status = 400
    kind = "invalid_request_error"


class ModelRejected(LoradError):
    """A base model that can't be served, with the reason."""

    status = 400
    kind = "invalid_request_error"


class Overloaded(LoradError):
    """The queue is full."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, *, code: str, param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after_s = retry_after_s


class Unauthorized(LoradError):
    """No key, or a wrong one."""

    status = 401
    kind = "authentication_error"


class Forbidden(LoradError):
    """A right key for something else."""

    status = 403
    kind = "permission_error"


class Unavailable(LoradError):
    """Starting, draining, or the engine is gone."""

    status = 503
    kind = "service_unavailable_error"


class EngineFailure(LoradError):
    """The engine failed while it ran this request."""

    status = 500
    kind = "server_error"


class EngineLost(EngineFailure):
    """A part of the engine is gone: it can't go on."""


KINDS: dict[str, type[LoradError]] = {
    kind.__name__: kind
    for kind in (
        InvalidRequest,
        NotFound,
        Conflict,
        AdapterRejected,
        ModelRejected,
        Overloaded,
        Unauthorized,
        Forbidden,
        Unavailable,
        EngineFailure,
        EngineLost,
    )
}
"""The exception classes by name: how a refusal crosses from the engine process to the front."""
