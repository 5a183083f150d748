"""Who asks: every route wants a key but those listed here, and so does every path that is no route at all.

Without tenants there's one API key for all, or none, and one control key. With them each key is looked up, and belongs
to a tenant or to an operator. Control endpoints are for operators: without a key that could open them they are off.
"""

from __future__ import annotations

import hmac

from aiohttp import web

from lorad.control.routes import PREFIXES as CONTROL_PREFIXES
from lorad.errors import Forbidden, InvalidRequest, Unauthorized
from lorad.fleet.inventory import PATH as INVENTORY_PATH
from lorad.observe.record import RECORD
from lorad.page.files import FILES
from lorad.page.overview import PREFIX as OVERVIEW_PREFIX
from lorad.server.failures import Handler
from lorad.tenants.directory import Directory
from lorad.tenants.routes import PREFIXES as TENANT_PREFIXES
from lorad.tenants.tenant import EVERYBODY, Tenant

OPEN_ROUTES = frozenset((method, path) for path in ("/health", "/health/live", *FILES) for method in ("GET", "HEAD"))
"""Answered without a key: the page's files and whether tokens can be made. They tell no names, prompts or paths."""

TENANT = web.RequestKey("tenant", Tenant)
"""Whose request it is; on each request that has passed."""

_FOR_OPERATORS = (*CONTROL_PREFIXES, *TENANT_PREFIXES, OVERVIEW_PREFIX, INVENTORY_PATH)

_TELLS_OF_ALL = "/metrics"
"""Where there are tenants, it's for operators."""


def check_key(option: str, key: str) -> None:
    """Refuses a key that a header can't bring as it is, as one with the line end of the file that it was read from: it
    would open nothing. The message doesn't tell the key."""
    for place, letter in enumerate(key, 1):
        if not (letter.isascii() and letter.isprintable()) or letter == " ":
            raise InvalidRequest(
                f"{option}: ASCII characters without blanks and line ends, as it's sent in a header; "
                f"character {place} of {len(key)} is none",
                code="option_form",
                param=option,
            )


def key_check(api_key: str, control_key: str = "", directory: Directory | None = None) -> object:
    """A middleware that wants `Authorization: Bearer KEY`. Without `directory` an empty API key wants nothing, an empty
    control key refuses the control endpoints."""

    def operator(request: web.Request) -> None:
        if not control_key and directory is None:
            raise Forbidden("control endpoints are off; --control-key turns them on", code="control_off")
        sent = _sent(request, "the control key")
        if control_key and hmac.compare_digest(sent, control_key.encode()):
            return
        holder = None if directory is None else directory.find(sent)
        if holder is None:
            raise Unauthorized("the control key isn't valid", code="invalid_api_key")
        if holder.tenant is not None:
            raise Forbidden("this wants an operator's key, not a tenant's", code="operators_only")

    def tenant(request: web.Request) -> Tenant:
        if directory is None:
            if api_key and not hmac.compare_digest(_sent(request, "the API key"), api_key.encode()):
                raise Unauthorized("the API key isn't valid", code="invalid_api_key")
            return EVERYBODY
        holder = directory.find(_sent(request, "the API key"))
        if holder is None:
            raise Unauthorized("the API key isn't valid", code="invalid_api_key")
        if holder.tenant is None:
            raise Forbidden("this wants a tenant's key, not an operator's", code="tenants_only")
        return holder.tenant

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        tells_of_all = directory is not None and request.rel_url.path == _TELLS_OF_ALL
        if is_control(request) or tells_of_all:
            operator(request)
        elif (request.method, request.rel_url.raw_path) not in OPEN_ROUTES:
            request[TENANT] = found = tenant(request)
            if (record := request.get(RECORD)) is not None:
                record.tenant = found.name
        return await handler(request)

    return check


def is_control(request: web.Request) -> bool:
    """Whether the path, as the router reads it, is that of a control endpoint."""
    return wants_operator(request.rel_url.path)


def wants_operator(path: str) -> bool:
    """Whether a path is that of a control endpoint."""
    return any(path == prefix or path.startswith(prefix + "/") for prefix in _FOR_OPERATORS)


def _sent(request: web.Request, which: str) -> bytes:
    headers = request.headers.getall("Authorization", [""])
    if len(headers) > 1:
        # Which of two counts differs between servers; the key that a proxy checked must be the one that counts here.
        raise InvalidRequest("the header Authorization is given twice", code="duplicate_field", param="Authorization")
    scheme, _, given = headers[0].partition(" ")
    # A key from the header may hold surrogates; they are bytes like any other here.
    sent = given.strip().encode(errors="surrogateescape")
    if scheme.lower() != "bearer" or not sent:
        raise Unauthorized(f"{which} is wanted: Authorization: Bearer <key>", code="missing_api_key")
    return sent
