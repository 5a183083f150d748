"""What operators see of tenants: `GET /v1/tenants`, `GET /v1/usage`. `lorad tenants` and `lorad keys` change them."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lorad.errors import InvalidRequest
from lorad.models.fields import shown
from lorad.server.failures import json_response
from lorad.tenants.file import Used
from lorad.tenants.serving import Tenancy
from lorad.tenants.sums import BY, HOURS_MAX, as_csv, as_dicts, fields_of
from lorad.tenants.tenant import Tenant

PREFIXES = ("/v1/tenants", "/v1/usage")
"""For operators."""


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
        by, hours, form = fields_of(query.get("by", BY), "query_field"), query.get("since_hours"), query.get("format")
        if hours is not None and not (hours.isascii() and hours.isdigit() and 1 <= int(hours[:8]) <= HOURS_MAX):
            raise InvalidRequest(
                f"since_hours: 1 to {HOURS_MAX}, got {shown(hours)}", code="query_field", param="since_hours"
            )
        if form not in (None, "json", "csv"):
            raise InvalidRequest(f"format: json or csv, got {shown(form)}", code="query_field", param="format")
        rows = await self._tenancy.rows(None if hours is None else int(hours))
        if form == "csv":
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
