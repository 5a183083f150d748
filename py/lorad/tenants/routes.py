"""What operators see of tenants: `GET /v1/tenants`, `GET /v1/usage`. `lorad tenants` and `lorad keys` change them."""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

from aiohttp import web

from lorad.errors import InvalidRequest
from lorad.server.failures import json_response
from lorad.tenants.file import Used, UsedRow
from lorad.tenants.ledger import summed
from lorad.tenants.serving import Tenancy
from lorad.tenants.tenant import Tenant

PREFIXES = ("/v1/tenants", "/v1/usage")
"""For operators."""

GROUPS = ("tenant", "model", "hour", "base")
"""Fields of the ledger that usage can be summed by."""


class TenantRoutes:
    """The handlers."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy

    def add_to(self, app: web.Application) -> None:
        """Adds the routes."""
        app.router.add_get("/v1/tenants", self.tenants)
        app.router.add_get("/v1/usage", self.usage)

    async def tenants(self, request: web.Request) -> web.Response:
        """All tenants, what they have in flight, and what they used since the server started."""
        totals: dict[str, Used] = {}
        for (name, _), used in self._tenancy.ledger.totals.items():
            totals[name] = totals.get(name, Used()).plus(used)
        tenants = self._tenancy.directory.tenants
        cards = [self._card(tenant, totals.get(tenant.name, Used())) for tenant in tenants]
        return json_response({"object": "list", "data": cards})

    async def usage(self, request: web.Request) -> web.Response:
        """The ledger, summed: `?by=tenant,model&since_hours=24&format=csv`."""
        query = request.query
        by = tuple(query.get("by", "tenant,model").split(","))
        if not by or not set(by) <= set(GROUPS):
            raise InvalidRequest(
                f"by: some of {', '.join(GROUPS)}, separated by commas, got {query.get('by')!r}",
                code="query_field",
                param="by",
            )
        hours = query.get("since_hours", "")
        if hours and not (hours.isascii() and hours.isdigit() and int(hours) <= 1_000_000):
            raise InvalidRequest(
                f"since_hours: a whole number up to 1000000, got {hours!r}", code="query_field", param="since_hours"
            )
        await self._tenancy.ledger.write()
        rows = await asyncio.to_thread(self._tenancy.rows, int(hours) if hours else None)
        if query.get("format") == "csv":
            return web.Response(text=as_csv(rows, by), content_type="text/csv")
        return json_response({"object": "list", "data": as_dicts(rows, by)})

    def _card(self, tenant: Tenant, used: Used) -> dict[str, Any]:
        limits = self._tenancy.limits
        return {
            "name": tenant.name,
            "adapters": tenant.adapters,
            "base": tenant.base,
            "weight": tenant.weight,
            "limits": tenant.limits._asdict(),
            "in_flight": 0 if limits is None else limits.in_flight(tenant),
            "since_start": used._asdict(),
        }


def as_dicts(rows: list[UsedRow], by: tuple[str, ...]) -> list[dict[str, Any]]:
    """Sums as objects."""
    return [dict(zip(by, key, strict=True)) | used._asdict() for key, used in summed(rows, by).items()]


def as_csv(rows: list[UsedRow], by: tuple[str, ...]) -> str:
    """Sums as a table with a heading."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*by, *Used._fields])
    for key, used in summed(rows, by).items():
        writer.writerow([*map(_safe, key), *used])
    return text.getvalue()


def _safe(cell: str) -> str:
    """Names are their owners' choice, and some programs take a cell that begins so for a formula."""
    return "'" + cell if cell[:1] in ("=", "+", "-", "@") else cell
