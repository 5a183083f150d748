"""Traces: spans as a real OTLP/HTTP receiver on loopback gets them."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lorad.config import EngineConfig, ServerConfig
from lorad.engine.messages import Waits
from lorad.errors import EngineFailure, InvalidRequest
from lorad.observe.tracing import Tracing, make_tracing
from lorad.server.run import Server
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Tenant
from serving import Client, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Span:
    """One span as it came."""

    def __init__(self, resource: dict[str, Any], span: Any) -> None:
        self.resource = resource
        self.name: str = span.name
        self.trace: str = span.trace_id.hex()
        self.parent: str = span.parent_span_id.hex()
        self.kind: int = span.kind
        self.failed: bool = span.status.code == 2
        self.seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        self.attributes = {item.key: _value(item.value) for item in span.attributes}
        self.raw = str(span)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)


class Receiver:
    """An OTLP/HTTP receiver."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.paths: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.paths.append(self.path)
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    resource = {item.key: _value(item.value) for item in group.resource.attributes}
                    receiver.spans += [Span(resource, span) for some in group.scope_spans for span in some.spans]
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, format: str, *args: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


async def post(client: Client, path: str, headers: dict[str, str] | None = None, **body: Any) -> int:
    async with client.session.post(client.address + path, json=body, headers=headers) as response:
        await response.read()
        return response.status


async def test_a_span_has_waits_tier_and_tokens(receiver: Receiver, tmp_path: Path) -> None:
    file = TenantFile(tmp_path / "state.sqlite")
    key = file.add_key(file.put(Tenant("acme", 0)).name)[0]
    file.close()
    tracing = make_tracing(receiver.address + "/", {})
    async with serving(tenants=tmp_path / "state.sqlite", tracing=tracing) as client:
        client.engine.cached_tokens = 1
        client.engine.waits = Waits("cold", 0.5, 0.25)
        client.front.registry.set_alias("prod", "devil")
        headers = {
            "Authorization": f"Bearer {key}",
            "X-Request-Id": "mine",
            "traceparent": f"00-{TRACE}-{PARENT}-01",
        }
        assert await post(client, COMPLETIONS, headers, model="prod", prompt="hello", max_tokens=9, top_p=0.5) == 200
    assert receiver.paths == ["/v1/traces"]
    (span,) = receiver.spans
    assert (span.name, span.trace, span.parent, span.kind, span.failed) == (
        "text_completion devil",
        TRACE,
        PARENT,
        2,  # a server's
        False,
    )
    first = span.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first <= span.seconds
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "lorad",
        "gen_ai.request.model": "prod",
        "gen_ai.response.model": "devil",
        "gen_ai.response.id": "cmpl-0001",
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stream": False,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "http.request.method": "POST",
        "http.route": COMPLETIONS,
        "http.response.status_code": 200,
        "lorad.request.id": "mine",
        "lorad.tenant": "acme",
        "lorad.generation": "gen-devil",
        "lorad.tier": "cold",
        "lorad.queue_wait_seconds": 0.5,
        "lorad.load_wait_seconds": 0.25,
    }
    assert span.resource["service.name"] == "lorad" and span.resource["service.version"]


async def test_each_request_for_tokens_is_a_span_and_nothing_else_is(receiver: Receiver) -> None:
    tracing = Tracing(receiver.address)
    async with serving(tracing=tracing) as client:
        messages = [{"role": "user", "content": "XYZZY"}]
        assert await post(client, CHAT, model="base", messages=messages, stream=True, n=2, max_tokens=3) == 200
        assert await post(client, CHAT, model="XYZZY", messages=messages) == 404
        client.engine.refuse = EngineFailure("lost", code="worker_lost")
        assert await post(client, COMPLETIONS, model="devil", prompt="XYZZY") == 500
        await client.get("/v1/models")
        async with client.session.get(client.address + "/metrics") as response:
            await response.read()
    chat, unknown, lost = receiver.spans
    assert chat.name == "chat base" and chat.parent == ""
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert chat.attributes["gen_ai.request.stream"] is True and chat.attributes["gen_ai.usage.output_tokens"] == 6
    assert (unknown.name, unknown.failed) == ("chat", False)
    assert unknown.attributes["error.type"] == "model_not_found" and "gen_ai.request.model" not in unknown.attributes
    assert lost.failed and lost.attributes["error.type"] == "worker_lost"
    assert lost.attributes["http.response.status_code"] == 500
    assert len({span.trace for span in receiver.spans}) == 3
    assert not [span for span in receiver.spans if "XYZZY" in span.raw]


async def test_a_client_that_leaves(receiver: Receiver) -> None:
    async with serving(tracing=Tracing(receiver.address)) as client:
        client.engine.auto = False
        asked = asyncio.create_task(post(client, COMPLETIONS, model="base", prompt="hi"))
        while not client.engine.running:
            await asyncio.sleep(0.01)
        asked.cancel()
        while client.front.gate.inside:
            await asyncio.sleep(0.01)
    (span,) = receiver.spans
    assert span.attributes["error.type"] == "client_left" and "http.response.status_code" not in span.attributes


@pytest.mark.parametrize("header", ["nonsense", f"00-{'0' * 32}-{PARENT}-01", ""])
async def test_a_traceparent_that_says_nothing_is_passed_over(receiver: Receiver, header: str) -> None:
    async with serving(tracing=Tracing(receiver.address)) as client:
        assert await post(client, COMPLETIONS, {"traceparent": header}, model="base", prompt="hi") == 200
    (span,) = receiver.spans
    assert span.parent == "" and span.trace != TRACE


async def test_what_its_caller_left_out_isnt_sampled(receiver: Receiver) -> None:
    async with serving(tracing=Tracing(receiver.address)) as client:
        header = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert await post(client, COMPLETIONS, header, model="base", prompt="hi") == 200
    assert receiver.spans == []


async def test_a_receiver_that_is_away_costs_requests_nothing(receiver: Receiver) -> None:
    address = receiver.address
    receiver._server.server_close()
    async with serving(tracing=Tracing(address)) as client:
        await client.alive()


# when it's on


def test_opentelemetrys_own_variables(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_tracing("", {}) is None
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address, "OTEL_SERVICE_NAME": "mine"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert make_tracing("", {**environment, "OTEL_SDK_DISABLED": "true"}) is None
    found = make_tracing("", environment)
    assert found is not None
    found._tracer.start_span("x").end()
    found.close()
    assert receiver.spans[0].resource["service.name"] == "mine" and receiver.paths == ["/v1/traces"]


@pytest.mark.parametrize(
    ("endpoint", "environment", "code", "message"),
    [
        ("127.0.0.1:4318", {}, "option_form", "otlp_endpoint: an address like http"),
        ("grpc://127.0.0.1:4317", {}, "option_form", "got 'grpc://127.0.0.1:4317'"),
        ("http://", {}, "option_form", "got 'http://'"),
        (
            "",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "otlp_protocol",
            "OTEL_EXPORTER_OTLP_ENDPOINT: spans are sent by http/protobuf, got the protocol 'grpc'",
        ),
    ],
)
def test_what_cant_be_sent_to_is_refused(endpoint: str, environment: dict[str, str], code: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make_tracing(endpoint, environment)
    assert refused.value.code == code and message in refused.value.message
    assert refused.value.param == "otlp_endpoint"


@pytest.mark.parametrize("asked", ["otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_without_the_extra_the_server_doesnt_start(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    if asked != "otlp_endpoint":
        monkeypatch.setenv(asked, "http://127.0.0.1:1")
    config = ServerConfig(otlp_endpoint="http://127.0.0.1:1" if asked == "otlp_endpoint" else "")
    with pytest.raises(InvalidRequest) as refused:
        Server(EngineConfig(model="/no/such/model"), config)
    assert (refused.value.code, refused.value.param) == ("otel_missing", "otlp_endpoint")
    assert refused.value.message == f"{asked}: OpenTelemetry isn't installed; pip install 'lorad[otel]' brings it"


def test_it_isnt_imported_unless_asked() -> None:
    code = (
        "import sys, lorad.server.run as run\n"
        "from lorad.config import EngineConfig, ServerConfig\n"
        "server = run.Server(EngineConfig(model='/x/y.gguf'), ServerConfig())\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
