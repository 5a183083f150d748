"""Log lines and request ids: what is in them, and what never is."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lorad.errors import EngineFailure
from lorad.observe import logs
from lorad.observe.record import REQUEST_ID, request_id
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Tenant
from scripted_engine import ProcessScript, adapter_info
from serving import TEXT, Client, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HERE = Path(__file__).parent


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where log lines go; the loggers are as they were afterwards."""
    root, names = logging.getLogger(), ("lorad", logs.ACCESS)
    before = root.handlers, root.level, [logging.getLogger(name).level for name in names]
    yield io.StringIO()
    root.handlers, root.level = before[0], before[1]
    for name, level in zip(names, before[2], strict=True):
        logging.getLogger(name).setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def ask(client: Client, path: str, body: dict[str, Any] | bytes, **headers: str) -> tuple[int, str]:
    """Status of an answer and its request id."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with client.session.post(client.address + path, data=data, headers=headers) as response:
        await response.read()
        return response.status, response.headers[REQUEST_ID]


# request ids


@pytest.mark.parametrize("given", ["a", "req_1.2:3/4+5=6@7-8", "x" * 128])
def test_a_clients_id_is_kept(given: str) -> None:
    assert request_id(given) == given


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "a\nb", 'a"b', "größe", "a\x1b[0m"])
def test_an_id_that_could_forge_a_line_is_replaced(given: str | None) -> None:
    assert request_id(given) != given and len(request_id(given)) == 32
    assert request_id(given) != request_id(given)


async def test_every_answer_has_its_id() -> None:
    async with serving(api_key="sk-right") as client:
        good = {"model": "base", "prompt": "hi"}
        for body, status in ((good, 200), ({**good, "stream": True}, 200), ({**good, "model": "nobody"}, 404)):
            answer = await ask(client, COMPLETIONS, body, Authorization="Bearer sk-right", X_Request_Id="mine-1")
            assert answer == (status, "mine-1")
        assert await ask(client, "/nowhere", good, X_Request_Id="mine-2") == (401, "mine-2")
        first, second = [(await ask(client, COMPLETIONS, good))[1] for _ in range(2)]
        assert first != second and len(first) == 32
        async with client.session.get(client.address + "/health") as response:
            assert len(response.headers[REQUEST_ID]) == 32


# the access log


async def test_a_line_for_each_request(stream: io.StringIO, tmp_path: Path) -> None:
    logs.configure("json", "error", access=True, stream=stream)
    file = TenantFile(tmp_path / "state.sqlite")
    key = file.add_key(file.put(Tenant("acme", 0)).name)[0]
    file.close()
    async with serving(tenants=tmp_path / "state.sqlite", log_requests=True) as client:
        client.engine.cached_tokens = 1
        own = {"Authorization": f"Bearer {key}", "X-Request-Id": "mine"}
        await ask(client, COMPLETIONS, {"model": "devil", "prompt": "hi"}, **own)
        await ask(client, COMPLETIONS, {"model": "devil", "prompt": "hi", "stream": True}, **own)
        await ask(client, COMPLETIONS, {"model": "nobody", "prompt": "hi"}, **own)
        await ask(client, COMPLETIONS, {"model": "devil", "prompt": "hi"})
        client.engine.auto = False
        asked = asyncio.create_task(ask(client, COMPLETIONS, {"model": "devil", "prompt": "hi", "stream": True}, **own))
        while not client.engine.running:
            await asyncio.sleep(0.01)
        client.engine.step()
        await asyncio.sleep(0.05)
        client.engine.refuse = EngineFailure("lost", code="worker_lost")
        client.engine.step()
        await asked
    whole, streamed, unknown, keyless, broken = lines(stream)
    assert (whole["level"], whole["logger"], whole["message"]) == ("info", "lorad.access", "request")
    assert whole["time"].endswith("+00:00") and whole.pop("ms") > 0
    kept = {
        "id": "mine",
        "tenant": "acme",
        "model": "devil",
        "method": "POST",
        "route": COMPLETIONS,
        "status": 200,
        "code": "",
        "generation": "gen-devil",
        "prompt_tokens": 2,
        "cached_tokens": 1,
        "completion_tokens": 2,
    }
    assert {name: whole[name] for name in kept} == kept
    assert {name: streamed[name] for name in kept} == kept
    assert (unknown["status"], unknown["code"], unknown["tenant"], unknown["model"]) == (
        404,
        "model_not_found",
        "acme",
        "",
    )
    assert (keyless["status"], keyless["code"], keyless["tenant"]) == (401, "missing_api_key", "")
    assert (broken["status"], broken["code"], broken["completion_tokens"]) == (200, "worker_lost", 1)


async def test_no_line_unless_asked(stream: io.StringIO) -> None:
    logs.configure("text", "debug", stream=stream)
    async with serving() as client:
        await client.alive()
    assert stream.getvalue() == ""


def test_text_lines_can_be_taken_apart(stream: io.StringIO) -> None:
    logs.configure("text", "warning", access=True, stream=stream)
    logs.access({"id": "a", "model": 'größe "x"=\n', "code": "", "status": 200, "ms": 1.5})
    logging.getLogger("lorad.server").info("too low")
    logging.getLogger("lorad.server").warning("high enough")
    logging.getLogger("httpx").info("an address with a token")
    assert stream.getvalue() == (
        'INFO lorad.access: request id=a model="größe \\"x\\"=\\n" code="" status=200 ms=1.5\n'
        "WARNING lorad.server: high enough\n"
    )


def test_a_json_line_has_its_traceback(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream=stream)
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("lorad.engine").exception("plan %d\nfailed", 7)
    (line,) = lines(stream)
    assert line["message"] == "plan 7\nfailed" and "KeyError: 'x'" in line["exception"]


async def test_an_answer_that_cant_be_told_of_is_given_all_the_same(stream: io.StringIO) -> None:
    logs.configure("text", "warning", stream=stream)

    class Full:
        def ended(self, record: Any) -> None:
            raise OSError("no space left")

    async with serving() as client:
        client.front.observer._tracing = Full()  # type: ignore[assignment]
        assert (await ask(client, COMPLETIONS, {"model": "base", "prompt": "hi"}))[0] == 200
        client.front.observer._tracing = None
    assert "a request couldn't be told of: OSError" in stream.getvalue()


async def test_what_is_no_http_is_no_line(stream: io.StringIO) -> None:
    logs.configure("text", "info", access=True, stream=stream)
    async with serving() as client:
        host, port = client.address.removeprefix("http://").split(":")
        for header in ("Content-Length: ", "Content-Length: -1", "X: \x00", "Transfer-Encoding: what"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST /v1/completions HTTP/1.1\r\nAuthorization: secret\r\n{header}\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.0 400") or b" 400 " in await reader.read()
            writer.close()
        await client.alive()
    assert "Traceback" not in stream.getvalue() and "secret" not in stream.getvalue()


async def test_adapters_that_come_and_go_are_told_at_level_info(stream: io.StringIO) -> None:
    logs.configure("text", "info", stream=stream)
    async with serving(adapters=()) as client:
        client.front.registry.publish(adapter_info("devil"))
        client.front.registry.publish(adapter_info("devil", "new"))
        client.front.registry.withdraw("devil")
    assert stream.getvalue().splitlines() == [
        f"INFO lorad.server: adapter 'devil' was {change}" for change in ("added", "replaced", "removed")
    ]


# what is never logged


class Broken(Exception):
    """A fault whose message quotes the client."""


@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_prompt_no_answer_no_key_ever(form: logs.LogFormat, stream: io.StringIO) -> None:
    logs.configure(form, "debug", access=True, stream=stream)
    secret = "XYZZY"
    async with serving(api_key=f"sk-{secret}", log_requests=True) as client:
        key = {"Authorization": f"Bearer sk-{secret}"}
        good = {"model": "devil", "prompt": secret}
        asks: list[tuple[str, Any, dict[str, str]]] = [
            (COMPLETIONS, good, key),
            (COMPLETIONS, {**good, "stream": True, "logprobs": 2, "stop": [secret]}, key),
            (CHAT, {"model": "base", "messages": [{"role": "user", "content": secret}]}, key),
            (COMPLETIONS, good, {"Authorization": f"Bearer {secret}"}),
            (COMPLETIONS, good, {"Authorization": f"Basic {secret}"}),
            (COMPLETIONS, {**good, "model": secret}, key),
            (COMPLETIONS, {**good, secret: 1}, key),
            (COMPLETIONS, f'{{"prompt": "{secret}'.encode(), key),
            (f"/{secret}?key={secret}", good, key),
            (COMPLETIONS, good, {**key, "X-Request-Id": f"{secret} is mine"}),
        ]
        for path, body, headers in asks:
            await ask(client, path, body, **headers)

        def explodes(request: Any) -> list[int]:
            try:
                raise KeyError(secret)
            except KeyError as error:
                raise Broken(f"can't run {secret}") from error

        client.engine.script = explodes
        assert (await ask(client, COMPLETIONS, good, **key))[0] == 500

        client.engine.script = lambda request: list(request.prompt)
        client.engine.auto = False
        asked = asyncio.create_task(ask(client, COMPLETIONS, {**good, "stream": True}, **key))
        while not client.engine.running:
            await asyncio.sleep(0.01)
        client.engine.step()
        await asyncio.sleep(0.05)
        for generation in client.front.in_flight:
            generation._error = Broken(f"can't tell {secret}")  # type: ignore[assignment]
            generation.close()
            generation.flush()
        await asked
    said = stream.getvalue()
    assert secret not in said
    assert said.count("lorad.access") == len(asks) + 2
    # Faults are told all the same, by kind and place.
    assert said.count(": Broken") == 2 and "KeyError" in said and "explodes" in said and "failed in mid-stream" in said


# both processes


SERVE = """
import sys
from lorad.config import EngineConfig, ServerConfig
from lorad.server.run import serve
sys.exit(serve(EngineConfig(model=sys.argv[1], log_format="json"), ServerConfig(port=0, served_model_name="base",
    lora_modules=["a=x"], log_requests=True), engine="scripted_engine:process_script"))
"""


def _wait_for_the_next_engine(address: str) -> None:
    """The one before is buried then, and its end told."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            with urllib.request.urlopen(address + "/health", timeout=20):
                return
        except urllib.error.HTTPError:
            time.sleep(0.05)
    raise AssertionError("no engine came")


def test_both_processes_write_json(tmp_path: Path) -> None:
    TEXT.tokenizer.core.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        address = process.stdout.readline().split()[-1]
        for model, prompt, status in (("a", "x", 200), ("base", chr(ProcessScript.DIES), 500)):
            body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 5}).encode()
            request = urllib.request.Request(
                address + COMPLETIONS, body, {"Content-Type": "application/json", "X-Request-Id": f"to-{model}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=20) as response:
                    assert response.status == status
            except urllib.error.HTTPError as error:
                assert error.code == status
        _wait_for_the_next_engine(address)
        process.send_signal(signal.SIGTERM)
        said = [json.loads(line) for line in process.stderr.read().splitlines() if line.startswith("{")]
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    ours = [line for line in said if line["logger"] == "lorad.access" and line["id"].startswith("to-")]
    assert [(line["id"], line["status"]) for line in ours] == [
        ("to-a", 200),
        ("to-base", 500),
    ]
    (failed,) = [line for line in said if line["logger"] == "lorad.engine"]
    assert failed["message"] == "the engine failed" and "RuntimeError: as asked" in failed["exception"]
    assert [line for line in said if line["logger"] == "lorad.server" and "the engine process" in line["message"]]
