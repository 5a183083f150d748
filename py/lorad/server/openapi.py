"""`GET /openapi.json`: an OpenAPI 3.1 document of the routes that this server has, made from them and their structs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from lorad.server.auth import OPEN_ROUTES, wants_operator
from lorad.server.described import JSON, LEAST, ROUTES, VALUES, Described
from lorad.server.failures import json_response
from lorad.server.fields import LENGTHS, RANGES

PATH = "/openapi.json"
_REFERENCE = "#/components/schemas/{name}"
_FACTS = {False: ("minimum", "maximum"), True: ("exclusiveMinimum", "maximum")}


class ErrorFields(msgspec.Struct):
    """What is wrong. `code` is stable, `param` names the field."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    """OpenAI's error form."""

    error: ErrorFields


class Document:
    """The document of one application, which must have all its routes by the first request."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._made: dict[str, Any] | None = None

    def add_to(self, app: web.Application) -> None:
        """Adds the route."""
        app.router.add_get(PATH, self.answer)

    async def answer(self, request: web.Request) -> web.Response:
        """This document: OpenAPI 3.1."""
        if self._made is None:
            self._made = document(request.app, self._version)
        return json_response(self._made)


def routes_of(app: web.Application) -> dict[tuple[str, str], Any]:
    """Handlers by method and path, without HEAD."""
    return {
        (route.method, route.resource.canonical): route.handler
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }


def document(app: web.Application, version: str) -> dict[str, Any]:
    """OpenAPI 3.1 of an application. KeyError: a route that `described.py` doesn't know."""
    routes = routes_of(app)
    bodies = [body for key in routes if (body := ROUTES[key].body) is not None]
    _, schemas = msgspec.json.schema_components([*bodies, ErrorAnswer], ref_template=_REFERENCE)
    for key in routes:
        described = ROUTES[key]
        if described.body is not None:
            _complete(schemas[described.body.__name__], described.defaults_only)
    for struct, fields in VALUES.items():
        for name, values in fields.items():
            schemas[struct]["properties"][name] = {"enum": list(values)}
    for struct, least in LEAST.items():
        for name, low in least.items():
            schemas[struct]["properties"][name]["minimum"] = low
    paths: dict[str, Any] = {}
    for (method, path), handler in routes.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, handler, ROUTES[method, path])
    return {
        "openapi": "3.1.0",
        "info": {"title": "lorad", "version": version, "description": "Many LoRA adapters on one base model."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "where the server has API keys or tenants"},
                "operator": {"type": "http", "scheme": "bearer", "description": "the control key, or an operator's"},
            },
        },
    }


def _complete(schema: dict[str, Any], defaults_only: Mapping[str, tuple[Any, ...]]) -> None:
    """Adds what the structs don't say: ranges, lengths, fields that are taken at their defaults, and that there are no
    others. A keyword for numbers means nothing to other types, so it may stand beside whatever there is."""
    properties = schema["properties"]
    for name, one in properties.items():
        if name in RANGES:
            low, high, above = RANGES[name]
            one.update(zip(_FACTS[above], (low, high), strict=True))
        if name in LENGTHS and name != "prompt":  # a list of ids is one prompt, of any length
            one.update(dict.fromkeys(("maxItems", "maxProperties"), LENGTHS[name]))
    for name, values in defaults_only.items():
        properties[name] = {"enum": list(values), "description": "taken at its default only"}
    schema["additionalProperties"] = False


def _operation(method: str, path: str, handler: Any, described: Described) -> dict[str, Any]:
    open_to_all = (method, path) in OPEN_ROUTES
    made: dict[str, Any] = {
        "summary": (inspect.getdoc(handler) or path).splitlines()[0],
        "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', path)}".rstrip("_"),
        "security": [] if open_to_all else [{"operator": []}] if wants_operator(path) else [{"key": []}, {}],
        "responses": {
            str(status): {"description": "done" if status < 400 else "not now"}
            | ({"content": {kind: {} for kind in kinds}} if kinds else {})
            for status, kinds in described.answers.items()
        },
    }
    made["responses"]["default"] = {
        "description": "a refusal: docs/errors.md has all codes",
        "content": {JSON: {"schema": {"$ref": _REFERENCE.format(name=ErrorAnswer.__name__)}}},
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in described.query.items()]
    if parameters:
        made["parameters"] = parameters
    if described.body is not None:
        schema = {"$ref": _REFERENCE.format(name=described.body.__name__)}
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return made
