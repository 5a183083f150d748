"""A server with tenants: no key sees, lists, uses or changes what isn't its own; limits, ledger, keys come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controlling import controlling
from lorad.errors import NotFound
from lorad.tenants.directory import LOOK_SECONDS
from lorad.tenants.file import TenantFile, Used
from lorad.tenants.tenant import Limits, Tenant
from scripted_engine import adapter_info
from serving import Client, serving

COMPLETIONS = "/v1/completions"


class Tenants:
    """A server, its state file and a key for each tenant."""

    def __init__(self, client: Client, file: TenantFile, keys: dict[str, str]) -> None:
        self.client = client
        self.file = file
        self.keys = keys

    async def ask(self, whose: str | None, method: str, path: str, **fields: Any) -> tuple[int, Any, Any]:
        """Status, body and headers of an answer to one of `keys`."""
        headers = {} if whose is None else {"Authorization": f"Bearer {self.keys.get(whose, whose)}"}
        url = self.client.address + path
        async with self.client.session.request(method, url, json=fields or None, headers=headers) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text()), response.headers

    async def complete(self, whose: str | None, model: str, **fields: Any) -> tuple[int, Any]:
        status, body, _ = await self.ask(whose, "POST", COMPLETIONS, model=model, **{"prompt": "hi", **fields})
        return status, body

    async def changed(self) -> None:
        """Waits until the server has seen what the file says now."""
        await asyncio.sleep(2.5 * LOOK_SECONDS)


@contextlib.asynccontextmanager
async def tenants(folder: Path, *made: Tenant, **options: Any) -> AsyncIterator[Tenants]:
    file = TenantFile(folder / "state.sqlite")
    made = made or (Tenant("acme", 0, ("devil",)), Tenant("umbrella", 0, ("org/*",), base=False))
    keys = {tenant.name: file.add_key(file.put(tenant).name)[0] for tenant in made}
    keys["operator"] = file.add_key(None)[0]
    async with serving(tenants=folder / "state.sqlite", **options) as client:
        try:
            yield Tenants(client, file, keys)
        finally:
            file.close()


async def test_a_key_uses_its_own_models_and_others_are_unknown(tmp_path: Path) -> None:
    async with tenants(tmp_path) as server:
        for whose, model, allowed in (
            ("acme", "base", True),
            ("acme", "devil", True),
            ("acme", "org/name:v2", False),
            ("umbrella", "org/name:v2", True),
            ("umbrella", "devil", False),
            ("umbrella", "base", False),
        ):
            status, body = await server.complete(whose, model)
            assert (status == 200) is allowed, (whose, model, body)
            chat = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
            status, _, _ = await server.ask(whose, "POST", "/v1/chat/completions", **chat)
            assert (status == 200) is allowed
            status, _, _ = await server.ask(whose, "GET", f"/v1/models/{model}")
            assert (status == 200) is allowed


async def test_a_refusal_does_not_tell_whether_a_name_exists(tmp_path: Path) -> None:
    async with tenants(tmp_path) as server:
        for path in (COMPLETIONS, "/v1/chat/completions", "/v1/models/"):
            answers = []
            for model in ("org/name:v2", "org/nobody:v2"):
                if path == "/v1/models/":
                    status, body, headers = await server.ask("acme", "GET", path + model)
                else:
                    fields = (
                        {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "a"}]}
                    )
                    status, body, headers = await server.ask("acme", "POST", path, model=model, **fields)
                kept = {
                    name: headers[name] for name in headers if name not in ("Date", "Content-Length", "X-Request-ID")
                }
                answers.append((status, str(body).replace(model, "NAME"), kept))
            assert answers[0] == answers[1] and answers[0][0] == 404


async def test_lists_have_what_is_the_keys(tmp_path: Path) -> None:
    async with tenants(tmp_path) as server:
        listed = {}
        for whose in ("acme", "umbrella"):
            _, body, _ = await server.ask(whose, "GET", "/v1/models")
            listed[whose] = [model["id"] for model in body["data"]]
        assert listed == {"acme": ["base", "devil"], "umbrella": ["org/name:v2"]}


async def test_an_alias_is_allowed_with_what_it_stands_for(tmp_path: Path) -> None:
    made = (Tenant("one", 0, ("prod",)), Tenant("two", 0, ("prod", "devil")))
    async with tenants(tmp_path, *made) as server:
        server.client.front.registry.set_alias("prod", "devil")
        assert (await server.complete("one", "prod"))[0] == 404
        assert (await server.complete("two", "prod"))[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", COMPLETIONS])
async def test_an_alias_thats_pointed_at_anothers_adapter_while_a_prompt_is_read(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tenants(tmp_path, Tenant("one", 0, ("prod", "devil"))) as server:
        front = server.client.front
        front.registry.set_alias("prod", "devil")
        encode = front.text.tokenizer.encode

        def slow(text: str, **options: Any) -> list[int]:
            front.registry.set_alias("prod", "org/name:v2")
            return encode(text, **options)

        monkeypatch.setattr(front.text.tokenizer, "encode", slow)
        prompt = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
        status, body, _ = await server.ask("one", "POST", path, model="prod", **prompt)
        assert status == 404 and body["error"]["code"] == "model_not_found"
        assert not server.client.engine.submitted


async def test_an_alias_thats_pointed_at_anothers_adapter_while_its_own_is_brought(tmp_path: Path) -> None:
    async with tenants(tmp_path, Tenant("one", 0, ("prod", "devil")), combined_max=2) as server:
        front = server.client.front

        async def bring(name: str, unknown: NotFound) -> None:
            front.registry.publish(adapter_info("devil"))
            front.registry.set_alias("prod", "org/name:v2")

        front.names.on_unknown = bring
        for adapters in (None, [{"name": "prod", "weight": 0.5}]):
            front.registry.set_alias("prod", "devil")
            front.registry.withdraw("devil")
            model = "prod" if adapters is None else "base"
            status, body = await server.complete("one", model, adapters=adapters)
            assert status == 404 and body["error"]["code"] == "model_not_found"
        assert not server.client.engine.submitted


@pytest.mark.parametrize(
    "path", [COMPLETIONS, "/v1/chat/completions", "/v1/models", "/v1/models/devil", "/version", "/nowhere"]
)
async def test_every_route_wants_a_tenants_key(tmp_path: Path, path: str) -> None:
    async with tenants(tmp_path) as server:
        method = "POST" if "completions" in path else "GET"
        for whose, status, code in (
            (None, 401, "missing_api_key"),
            ("lorad-wrong", 401, "invalid_api_key"),
            ("operator", 403, "tenants_only"),
        ):
            answer = await server.ask(whose, method, path)
            assert answer[0] == status and answer[1]["error"]["code"] == code


@pytest.mark.parametrize("path", ["/metrics", "/v1/tenants", "/v1/usage", "/v1/lora_adapters", "/v1/operations"])
async def test_what_tells_of_all_wants_an_operators_key(tmp_path: Path, path: str) -> None:
    async with tenants(tmp_path) as server:
        for whose, status, code in (
            (None, 401, "missing_api_key"),
            ("lorad-wrong", 401, "invalid_api_key"),
            ("acme", 403, "operators_only"),
        ):
            answer = await server.ask(whose, "GET", path)
            assert answer[0] == status and answer[1]["error"]["code"] == code
        assert (await server.ask("operator", "GET", path))[0] in (200, 404)  # 404: no control endpoints here


async def test_a_tenants_key_changes_no_adapter(tmp_path: Path) -> None:
    async with controlling(tmp_path / "server", tenants=tmp_path / "state.sqlite") as control:
        file = TenantFile(tmp_path / "state.sqlite")
        file.put(Tenant("acme", 0))
        key, operator = file.add_key("acme")[0], file.add_key(None)[0]
        await asyncio.sleep(2.5 * LOOK_SECONDS)
        source = control.write("one", "one")
        for method, path, fields in (
            ("PUT", "/v1/lora_adapters/mine", {"source": source}),
            ("DELETE", "/v1/lora_adapters/mine", {}),
            ("PATCH", "/v1/lora_adapters/mine", {"pinned": True}),
            ("PUT", "/v1/lora_aliases/mine", {"target": "x"}),
            ("POST", "/v1/lora_prewarm", {"names": ["mine"]}),
            ("POST", "/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": source}),
            ("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"}),
        ):
            status, body = await control.ask(method, path, key=key, **fields)
            assert status == 403 and body["error"]["code"] == "operators_only"
        body = {"source": source, "wait_seconds": 20}
        assert (await control.ask("PUT", "/v1/lora_adapters/mine", key=operator, **body))[0] == 200


async def test_a_combination_is_allowed_with_each_of_its_parts(tmp_path: Path) -> None:
    made = (Tenant("one", 0, ("devil",)), Tenant("two", 0, ("*",)))
    async with tenants(tmp_path, *made, combined_max=2) as server:
        parts = [{"name": "devil", "weight": 0.5}, {"name": "org/name:v2", "weight": 0.5}]
        nobody = [parts[0], {"name": "org/nobody", "weight": 0.5}]
        status, body = await server.complete("one", "base", adapters=parts)
        assert status == 404
        other = await server.complete("one", "base", adapters=nobody)
        assert str(other[1]).replace("org/nobody", "org/name:v2") == str(body)
        assert server.client.engine.submitted == []
        assert (await server.complete("two", "base", adapters=parts))[0] == 200


async def test_requests_carry_the_tenants_number_so_that_caches_are_apart(tmp_path: Path) -> None:
    async with tenants(tmp_path, Tenant("one", 0), Tenant("two", 0)) as server:
        for whose in ("one", "two"):
            await server.complete(whose, "devil")
        numbers = [request.tenant for request in server.client.engine.submitted]
        assert len(set(numbers)) == 2 and 0 not in numbers


async def test_shares_and_limits_reach_the_engine_before_the_key_works(tmp_path: Path) -> None:
    async with tenants(tmp_path, Tenant("one", 0, weight=7, limits=Limits(0, 0, 3, 4, 5))) as server:
        assert server.client.engine.tenants == {1: (7, 3, 4, 5)}
        server.file.put(Tenant("one", 0, weight=9))
        two = server.file.put(Tenant("two", 0, weight=8))
        server.keys["two"] = server.file.add_key("two")[0]
        await server.changed()
        assert (await server.complete("two", "base"))[0] == 200
        assert server.client.engine.tenants == {1: (9, 0, 0, 0), two.number: (8, 0, 0, 0)}


async def test_a_removed_tenant_is_as_one_that_was_never_seen(tmp_path: Path) -> None:
    """So that the core may forget it; one that had the usual share is so already."""
    made = Tenant("one", 0, weight=7, limits=Limits(running_max=3)), Tenant("two", 0), Tenant("three", 0)
    async with tenants(tmp_path, *made) as server:
        numbers = {tenant.name: tenant.number for tenant in server.file.tenants()}
        server.client.engine.tenants.clear()
        for name in ("one", "two"):
            server.file.remove(name)
        await server.changed()
        assert server.client.engine.tenants == {numbers["one"]: (100, 0, 0, 0)}


async def test_keys_come_and_go_while_it_runs(tmp_path: Path) -> None:
    async with tenants(tmp_path) as server:
        server.keys["new"], row = server.file.add_key("acme")
        await server.changed()
        assert (await server.complete("new", "base"))[0] == 200
        server.file.remove_key(row.id)
        await server.changed()
        assert (await server.complete("new", "base"))[0] == 401
        server.file.remove("acme")
        await server.changed()
        assert (await server.complete("acme", "base"))[0] == 401
        assert (await server.complete("umbrella", "org/name:v2"))[0] == 200


async def test_what_a_tenant_may_use_changes_while_it_runs(tmp_path: Path) -> None:
    async with tenants(tmp_path) as server:
        assert (await server.complete("acme", "org/name:v2"))[0] == 404
        server.file.put(server.file.tenant("acme")._replace(adapters=("org/*",)))
        await server.changed()
        assert (await server.complete("acme", "org/name:v2"))[0] == 200
        assert (await server.complete("acme", "devil"))[0] == 404


async def test_rates_are_refused_with_the_time_to_come_back(tmp_path: Path) -> None:
    made = (Tenant("slow", 0, limits=Limits(requests_per_minute=2)), Tenant("other", 0))
    async with tenants(tmp_path, *made) as server:
        assert [(await server.complete("slow", "base"))[0] for _ in range(2)] == [200, 200]
        status, body, headers = await server.ask("slow", "POST", COMPLETIONS, model="base", prompt="hi")
        assert status == 429 and body["error"]["code"] == "tenant_requests_per_minute"
        assert 25 <= int(headers["Retry-After"]) <= 30
        assert (await server.complete("other", "base"))[0] == 200


async def test_tokens_per_minute_count_prompts_and_answers(tmp_path: Path) -> None:
    async with tenants(tmp_path, Tenant("small", 0, limits=Limits(tokens_per_minute=20))) as server:
        assert (await server.complete("small", "base", prompt="ab" * 15, max_tokens=5))[0] == 200  # 30 + 5: owed
        status, body = await server.complete("small", "base")
        assert status == 429 and body["error"]["code"] == "tenant_tokens_per_minute"


async def test_the_ledger_has_all_that_was_used(tmp_path: Path) -> None:
    async with tenants(tmp_path) as server:
        server.client.engine.cached_tokens = 1
        for _ in range(3):
            await server.complete("acme", "devil", prompt="hi", max_tokens=2, n=2)
        await server.complete("umbrella", "org/name:v2", prompt="cat", max_tokens=1)
        assert (await server.complete("umbrella", "devil"))[0] == 404
        _, body, _ = await server.ask("operator", "GET", "/v1/usage?by=tenant,model")
        found = {(row["tenant"], row["model"]): row for row in body["data"]}
        assert found.keys() == {("acme", "devil"), ("umbrella", "org/name:v2")}
        of_acme = found["acme", "devil"]
        assert (of_acme["requests"], of_acme["prompt_tokens"], of_acme["generation_tokens"]) == (3, 6, 12)
        assert of_acme["cached_tokens"] == 3 and of_acme["seconds"] > 0
        status, text, _ = await server.ask("operator", "GET", "/v1/usage?by=tenant&format=csv&since_hours=2")
        assert status == 200 and text.splitlines()[0].startswith('"tenant","requests","prompt_tokens"')
        _, body, _ = await server.ask("operator", "GET", "/v1/tenants")
        assert [(one["name"], one["since_start"]["requests"]) for one in body["data"]] == [("acme", 3), ("umbrella", 1)]
        wrong = {
            "by": ("colour", "", "tenant,tenant"),
            "since_hours": ("-1", "x", "0", "", "9" * 9),
            "format": ("xml",),
        }
        for query, param in ((f"{param}={value}", param) for param, values in wrong.items() for value in values):
            status, body, _ = await server.ask("operator", "GET", f"/v1/usage?{query}")
            assert status == 400 and (body["error"]["code"], body["error"]["param"]) == ("query_field", param)


async def test_a_stop_writes_what_was_used(tmp_path: Path) -> None:
    async with tenants(tmp_path) as server:
        await server.complete("acme", "devil")
    file = TenantFile(tmp_path / "state.sqlite")
    (row,) = file.usage()
    assert (row.base, row.tenant, row.model, row.used.requests) == ("base-digest", "acme", "devil", 1)


async def test_a_client_that_leaves_pays_for_what_was_made(tmp_path: Path) -> None:
    async with tenants(tmp_path) as server:
        engine = server.client.engine
        engine.auto = False
        asked = asyncio.create_task(server.complete("acme", "devil", prompt="hihihi", max_tokens=6, stream=True))
        while not engine.running:
            await asyncio.sleep(0.005)
        for _ in range(2):
            engine.step()
        await asyncio.sleep(0.05)
        asked.cancel()
        engine.auto = True
        ledger = server.client.front.ledger
        assert ledger is not None
        async with asyncio.timeout(10):
            while not ledger.totals:
                await asyncio.sleep(0.01)
        used = ledger.totals["acme", "devil"]
        assert used._replace(seconds=0.0) == Used(1, 6, 0, 2)
        assert server.client.front.limits.in_flight(Tenant("acme", 1)) == 0


@pytest.mark.parametrize(
    "sent",
    [b"Bearer ", b"Bearer", b"Bearer \xff\xfe", b"Bearer " + b"k" * 7000, "Bearer schlüssel".encode(), b"Basic a2V5"],
)
async def test_a_header_with_odd_bytes_is_no_key(tmp_path: Path, sent: bytes) -> None:
    async with tenants(tmp_path) as server:
        host, port = server.client.address.removeprefix("http://").split(":")
        for path in (b"/v1/models", b"/v1/usage"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: " + sent)
            writer.write(b"\r\n\r\n")
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 401 "), answer[:200]


async def test_without_tenants_all_is_as_it_was(tmp_path: Path) -> None:
    async with serving() as client:
        assert (await client.post(COMPLETIONS, model="devil", prompt="hi", max_tokens=2))[0] == 200
        assert [model["id"] for model in (await client.get("/v1/models"))[1]["data"]] == [
            "base",
            "devil",
            "org/name:v2",
        ]
        assert (await client.get("/v1/tenants"))[1]["error"]["code"] == "control_off"


async def test_a_name_behind_the_bases_has_the_adapters_rights(tmp_path: Path) -> None:
    adapters = ("devil", "org/name:v2", "base:devil", "own")
    made = (Tenant("acme", 0, ("devil", "own")), Tenant("umbrella", 0, ("org/*",), base=False))
    async with tenants(tmp_path, *made, adapters=adapters) as server:
        for whose, model, served in (
            ("acme", "base:own", "own"),
            ("acme", "base:org/name:v2", None),
            ("umbrella", "base:org/name:v2", "org/name:v2"),
            ("umbrella", "base:own", None),
            ("acme", "base:devil", None),  # it's another tenant's adapter, by its own name
        ):
            status, body = await server.complete(whose, model)
            assert (status, body.get("model")) == ((200, served) if served else (404, None)), (whose, model)
            status, _, _ = await server.ask(whose, "POST", "/tokenize", model=model, prompt="hi")
            assert status == (200 if served else 404)


async def test_tokenising_is_for_models_that_the_key_may_use_and_a_request_of_its_rate(tmp_path: Path) -> None:
    limited = Tenant("acme", 0, ("devil",), base=False, limits=Limits(requests_per_minute=3))
    async with tenants(tmp_path, limited) as server:
        for path, fields in (("/tokenize", {"prompt": "hi"}), ("/detokenize", {"tokens": [1]})):
            assert (await server.ask(None, "POST", path, model="devil", **fields))[0] == 401
            assert (await server.ask("operator", "POST", path, model="devil", **fields))[0] == 403
            assert (await server.ask("acme", "POST", path, **fields))[0] == 404, "no model is the base"
            assert (await server.ask("acme", "POST", path, model="org/name:v2", **fields))[0] == 404
        for _ in range(3):
            assert (await server.ask("acme", "POST", "/tokenize", model="devil", prompt="hi"))[0] == 200
        status, body, _ = await server.ask("acme", "POST", "/detokenize", model="devil", tokens=[1])
        assert (status, body["error"]["code"]) == (429, "tenant_requests_per_minute")
