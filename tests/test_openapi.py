"""`GET /openapi.json`: all routes and no others, valid, and requests that are made of it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator

import fuzz_http
from controlling import controlling
from lorad.server.described import ROUTES
from lorad.server.fields import UNSUPPORTED
from lorad.server.openapi import routes_of
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Tenant
from serving import serving

OPENAPI = "/openapi.json"


def listed(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, item in document["paths"].items() for method in item}


async def test_every_route_is_in_it_and_no_other(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    file = TenantFile(state)
    key = file.add_key(file.put(Tenant("acme", 0)).name)[0]
    file.close()
    async with controlling(tmp_path / "data", tenants=state) as control:
        _, document = await control.ask("GET", OPENAPI, key=key)
        assert listed(document) == set(routes_of(control.client.app)) == set(ROUTES)
    async with serving() as client:
        _, document = await client.get(OPENAPI)
        assert listed(document) == set(routes_of(client.app)) < set(ROUTES), "what is off isn't listed"


async def test_it_is_valid_and_says_what_bodies_may_be(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        status, document = await control.client.get(OPENAPI)
    assert status == 200 and document["openapi"] == "3.1.0"
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
    schemas = document["components"]["schemas"]
    chat = schemas["ChatRequest"]
    assert chat["additionalProperties"] is False and set(chat["required"]) == {"model", "messages"}
    assert chat["properties"]["temperature"]["maximum"] == 2
    assert chat["properties"]["max_tokens"]["minimum"] == 1
    assert schemas["CompletionRequest"]["properties"]["max_tokens"]["minimum"] == 0, "with echo"
    assert chat["properties"]["top_p"]["exclusiveMinimum"] == 0
    assert set(UNSUPPORTED["chat"]) < set(chat["properties"])
    for method, path in listed(document):
        operation = document["paths"][path][method.lower()]
        assert operation["summary"] and (method in ("GET", "DELETE")) == ("requestBody" not in operation)
        assert ("operator" in str(operation["security"])) is path.startswith(
            ("/v1/lora_", "/v1/op", "/v1/ov", "/v1/inv", "/v1/load_", "/v1/un")
        )
    names = [document["paths"][path][method.lower()]["operationId"] for method, path in listed(document)]
    assert len(set(names)) == len(names)


async def test_it_wants_a_key_where_other_routes_do() -> None:
    async with serving(api_key="right") as client:
        assert (await client.get(OPENAPI))[0] == 401
        assert (await client.get(OPENAPI, headers={"Authorization": "Bearer right"}))[0] == 200


def test_requests_made_of_it_neither_fault_nor_hang() -> None:
    """In a process of its own: beside what a whole run leaves in this one it took minutes."""
    command = [sys.executable, fuzz_http.__file__, "--examples", "6", "--seeded"]
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    statuses = ast.literal_eval(done.stdout.partition(": ")[2])
    assert statuses[200] > 50 and statuses[400] > 50, statuses
