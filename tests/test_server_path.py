"""Names in paths are text: percent-encoding that isn't of UTF-8 is refused on every route."""

from __future__ import annotations

from pathlib import Path

import pytest
from yarl import URL

from controlling import KEY, controlling
from serving import serving

ROUTES = [
    ("GET", "/v1/lora_adapters/"),
    ("PUT", "/v1/lora_adapters/"),
    ("PATCH", "/v1/lora_adapters/"),
    ("DELETE", "/v1/lora_adapters/"),
    ("PUT", "/v1/lora_aliases/"),
    ("DELETE", "/v1/lora_aliases/"),
    ("GET", "/v1/operations/"),
    ("GET", "/v1/models/"),
]
"""All that have a name in their path."""
NAMES = ["%FF", "a%FFb", "a/%C3", "%ED%A0%80", "%C0%AF", "%zz", "%", "%4"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_isnt_utf8_is_refused(tmp_path: Path, name: str) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        for method, path in ROUTES:
            headers = {"Authorization": f"Bearer {KEY}"}
            body = {"PUT": {"source": source} if "adapters" in path else {"target": "a"}, "PATCH": {"pinned": True}}
            url = URL(control.client.address + path + name, encoded=True)
            session = control.client.session
            async with session.request(method, url, json=body.get(method), headers=headers) as response:
                answer = await response.json()
            assert response.status == 400, (method, path, answer)
            assert answer["error"]["code"] == "path_encoding" and answer["error"]["param"] == "path"
            assert name in answer["error"]["message"]
        assert not control.manager.records and not control.manager.registry.aliases


async def test_every_route_with_a_name_is_among_them(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        app = control.client.app
        found = {
            (route.method, route.resource.canonical.partition("{")[0])
            for route in app.router.routes()
            if route.resource is not None and "{" in route.resource.canonical and route.method != "HEAD"
        }
    assert found == set(ROUTES)


@pytest.mark.parametrize("name", ["caf%C3%A9", "%F0%9F%90%88", "a%2Fb", "100%25FF"])
async def test_other_names_arent(tmp_path: Path, name: str) -> None:
    async with serving() as client:
        url = URL(f"{client.address}/v1/models/{name}", encoded=True)
        async with client.session.get(url) as response:
            assert response.status == 404 and (await response.json())["error"]["code"] == "model_not_found"
