"""The control endpoints: adapters, aliases and operations as resources, and vLLM's two calls.

What takes time answers 202 with an operation that can be looked at and waited for. `wait_seconds` waits in the call
itself: 200 when it has succeeded, its own error when it has failed, 202 if it still runs then.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from lorad.control.manager import AdapterManager
from lorad.control.operation import Operation
from lorad.control.prewarm import prewarm
from lorad.engine.handle import EngineHandle
from lorad.errors import Conflict, InvalidRequest, LoradError, NotFound
from lorad.server.body import read_body
from lorad.server.decode import decode
from lorad.server.failures import json_response

WAIT_SECONDS_MAX = 3600.0
PREWARM_NAMES_MAX = 1024
"""Names in one call: its operation keeps them, is listed with them, and is on the page."""

PREFIXES = (
    "/v1/lora_adapters",
    "/v1/lora_aliases",
    "/v1/lora_prewarm",
    "/v1/operations",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
)
"""The routes of this file begin with one of these; they want the control key."""


class LoadBody(msgspec.Struct, forbid_unknown_fields=True):
    """PUT /v1/lora_adapters/NAME."""

    source: str
    reload: bool = False
    digest: str = ""
    pinned: bool = False
    wait_seconds: float = 0.0


class ChangeBody(msgspec.Struct, forbid_unknown_fields=True):
    """PATCH /v1/lora_adapters/NAME."""

    pinned: bool


class PrewarmBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/lora_prewarm."""

    names: list[str]
    within_seconds: float = 60.0
    wait_seconds: float = 0.0


class AliasBody(msgspec.Struct, forbid_unknown_fields=True):
    """PUT /v1/lora_aliases/ALIAS."""

    target: str


class VllmLoadBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class VllmUnloadBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter."""

    lora_name: str
    lora_int_id: int | None = None
    """vLLM's, which ignores it too."""


class ControlRoutes:
    """Handlers over an adapter manager."""

    def __init__(self, manager: AdapterManager, handle: EngineHandle) -> None:
        self._manager = manager
        self._handle = handle

    @property
    def manager(self) -> AdapterManager:
        """What they act on."""
        return self._manager

    def add_to(self, app: web.Application) -> None:
        """Registers all routes."""
        router, name = app.router, "{name:.+}"
        router.add_get("/v1/lora_adapters", self.adapters)
        router.add_get(f"/v1/lora_adapters/{name}", self.adapter)
        router.add_put(f"/v1/lora_adapters/{name}", self.load)
        router.add_patch(f"/v1/lora_adapters/{name}", self.change)
        router.add_delete(f"/v1/lora_adapters/{name}", self.unload)
        router.add_post("/v1/lora_prewarm", self.prewarm)
        router.add_get("/v1/lora_aliases", self.aliases)
        router.add_put(f"/v1/lora_aliases/{name}", self.set_alias)
        router.add_delete(f"/v1/lora_aliases/{name}", self.remove_alias)
        router.add_get("/v1/operations", self.operations)
        router.add_get("/v1/operations/{id}", self.operation)
        router.add_post("/v1/load_lora_adapter", self.vllm_load)
        router.add_post("/v1/unload_lora_adapter", self.vllm_unload)

    # adapters

    async def adapters(self, request: web.Request) -> web.Response:
        """All adapters, with tier, generation, requests in flight."""
        stats = await self._handle.stats()
        cards = [self._card(record.name, stats.adapters) for record in self._manager.records]
        return json_response({"object": "list", "data": cards})

    async def adapter(self, request: web.Request) -> web.Response:
        """One of them."""
        stats = await self._handle.stats()
        return json_response(self._card(request.match_info["name"], stats.adapters))

    async def load(self, request: web.Request) -> web.Response:
        """Loads or reloads."""
        body = decode(await read_body(request), LoadBody, {})
        wait = _wait(body.wait_seconds)
        operation = self._manager.load(
            request.match_info["name"], body.source, reload=body.reload, digest=body.digest, pinned=body.pinned
        )
        return await _answer(operation, wait)

    async def change(self, request: web.Request) -> web.Response:
        """Pins or unpins."""
        body = decode(await read_body(request), ChangeBody, {})
        record = await self._manager.pin(request.match_info["name"], body.pinned)
        stats = await self._handle.stats()
        return json_response(self._card(record.name, stats.adapters))

    async def unload(self, request: web.Request) -> web.Response:
        """Unloads; `within_seconds` in the query: how long running requests may take."""
        wait = _wait(_number(request, "wait_seconds") or 0.0)
        within = _number(request, "within_seconds")
        if within is not None:
            _range("within_seconds", within)
        operation = self._manager.unload(request.match_info["name"], within_seconds=within)
        return await _answer(operation, wait)

    async def prewarm(self, request: web.Request) -> web.Response:
        """Pages in some adapters ahead of their requests."""
        body = decode(await read_body(request), PrewarmBody, {})
        if not 1 <= len(body.names) <= PREWARM_NAMES_MAX:
            raise InvalidRequest(
                f"names: 1 to {PREWARM_NAMES_MAX}, got {len(body.names)}", code="field_range", param="names"
            )
        wait = _wait(body.wait_seconds)
        _range("within_seconds", body.within_seconds)
        for name in body.names:
            await self._manager.bring_back(name)
        return await _answer(prewarm(self._manager, self._handle, body.names, body.within_seconds), wait)

    def _card(self, name: str, stats: dict[str, Any]) -> dict[str, Any]:
        record = self._manager.record(name)
        known = None if record.info is None else stats.get(record.info.generation)
        return record.card(known, self._manager.registry.last_used(name))

    # aliases

    async def aliases(self, request: web.Request) -> web.Response:
        """All aliases."""
        aliases = self._manager.registry.aliases
        data = [{"alias": alias, "object": "lora_alias", "target": target} for alias, target in aliases.items()]
        return json_response({"object": "list", "data": data})

    async def set_alias(self, request: web.Request) -> web.Response:
        """Lets an alias stand for an adapter."""
        body = decode(await read_body(request), AliasBody, {})
        alias = request.match_info["name"]
        await self._manager.set_alias(alias, body.target)
        return json_response({"alias": alias, "object": "lora_alias", "target": body.target})

    async def remove_alias(self, request: web.Request) -> web.Response:
        """Takes an alias away."""
        await self._manager.remove_alias(request.match_info["name"])
        return web.Response(status=204)

    # operations

    async def operations(self, request: web.Request) -> web.Response:
        """Those that run and the last ones that ended."""
        cards = [operation.card() for operation in self._manager.operations.listing()]
        return json_response({"object": "list", "data": cards})

    async def operation(self, request: web.Request) -> web.Response:
        """One of them; `wait_seconds` in the query: wait for its end."""
        operation = self._manager.operations.find(request.match_info["id"])
        await operation.wait(_wait(_number(request, "wait_seconds") or 0.0))
        return json_response(operation.card())

    # vLLM's

    async def vllm_load(self, request: web.Request) -> web.Response:
        """As vLLM: answers when the adapter can be served."""
        body = decode(await read_body(request), VllmLoadBody, {"is_3d_lora_weight": (False, None)})
        for field in ("lora_name", "lora_path"):
            if not getattr(body, field):
                raise InvalidRequest(f"{field}: at least 1 character, got 0", code="field_range", param=field)
        try:
            operation = self._manager.load(body.lora_name, body.lora_path, reload=body.load_inplace)
            await operation.wait()
            if operation.error is not None:
                raise operation.error
        except Conflict as error:
            if error.code != "adapter_exists":
                raise
            message = f"the adapter {body.lora_name!r} is loaded from another path; load_inplace: true replaces it"
            raise InvalidRequest(message, code=error.code, param="load_inplace") from None
        except LoradError as error:
            if error.code not in ("source_missing", "adapter_missing"):
                raise
            raise NotFound(error.message, code=error.code, param="lora_path") from None
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def vllm_unload(self, request: web.Request) -> web.Response:
        """As vLLM: the name is gone when this answers; running requests end on what they had."""
        body = decode(await read_body(request), VllmUnloadBody, {})
        operation = self._manager.unload(body.lora_name)
        await operation.accepted()
        if operation.error is not None:
            raise operation.error
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def _answer(operation: Operation, wait_seconds: float) -> web.Response:
    """200, 202 or the operation's own error."""
    await operation.accepted()
    if wait_seconds and not operation.ended:
        await operation.wait(wait_seconds)
    if operation.error is not None:
        raise operation.error
    headers = {"Location": f"/v1/operations/{operation.id}"}
    return json_response(operation.card(), status=200 if operation.ended else 202, headers=headers)


def _number(request: web.Request, name: str) -> float | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{name}: a number, got {text[:64]!r}", code="field_type", param=name) from None


def _range(name: str, seconds: float) -> float:
    # Turned round, so that what is no number is refused too.
    if not 0 <= seconds <= WAIT_SECONDS_MAX:
        raise InvalidRequest(f"{name}: 0 to {WAIT_SECONDS_MAX:g}, got {seconds:g}", code="field_range", param=name)
    return seconds


def _wait(seconds: float) -> float:
    return _range("wait_seconds", seconds)
