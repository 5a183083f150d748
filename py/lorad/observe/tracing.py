"""OpenTelemetry: a span for each request that asks for tokens, sent by OTLP over HTTP. Imported when it's asked for.

A span is made when its request has ended, with the times that it had: while tokens are made nothing is done for it.
Attributes have the names of the GenAI conventions where they have one, else `lorad.*`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lorad import __version__
from lorad.errors import InvalidRequest
from lorad.observe.record import CLIENT_LEFT, Record

if TYPE_CHECKING:
    from lorad.server.generation import Generation

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
"""The routes that are traced, by the conventions' names for what they do."""

HEADERS = ("traceparent", "tracestate")
CLOSE_SECONDS = 5.0
"""How long a stop waits for the receiver."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


class Tracing:
    """Makes spans of records and sends them, on a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: the receiver's address, without `/v1/traces`; "": what the environment says."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces" if endpoint else None)
        resource = Resource({"service.version": __version__}).merge(Resource.create())
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "lorad"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("lorad", __version__)
        self._context = TraceContextTextMapPropagator()
        self._kind, self._error = SpanKind.SERVER, Status(StatusCode.ERROR)

    def ended(self, record: Record) -> None:
        """Makes the span of a request, if it's one that asks for tokens."""
        operation = OPERATIONS.get(record.route)
        if operation is None:
            return
        generation = record.generation
        name = operation if generation is None else f"{operation} {generation.target.name}"
        span = self._tracer.start_span(
            name,
            context=self._context.extract(record.traceparent),
            kind=self._kind,
            start_time=record.began_unix_ns,
            attributes={**_of_request(record, operation), **({} if generation is None else _of_tokens(generation))},
        )
        if record.status >= 500 or (record.code and record.status < 400):
            span.set_status(self._error)
        span.end(record.began_unix_ns + int(record.seconds * 1e9))

    def close(self) -> None:
        """Sends what is left, for `CLOSE_SECONDS` at most."""
        # Its own time limits add up to more than a stop should take, and a thread of the loop's would be waited for.
        closing = threading.Thread(target=self._provider.shutdown, name="lorad-otlp-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def make_tracing(endpoint: str, environ: Mapping[str, str]) -> Tracing | None:
    """What the option or OpenTelemetry's own variables ask for; None: nothing."""
    asked = "otlp_endpoint" if endpoint else next((name for name in _ENDPOINTS if environ.get(name)), None)
    if asked is None or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc):
        raise InvalidRequest(
            f"otlp_endpoint: an address like http://127.0.0.1:4318, got {endpoint!r}",
            code="option_form",
            param="otlp_endpoint",
        )
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        raise InvalidRequest(
            f"{asked}: spans are sent by {_PROTOCOL}, got the protocol {protocol!r}",
            code="otlp_protocol",
            param="otlp_endpoint",
        )
    try:
        return Tracing(endpoint)
    except ImportError:
        raise InvalidRequest(
            f"{asked}: OpenTelemetry isn't installed; pip install 'lorad[otel]' brings it",
            code="otel_missing",
            param="otlp_endpoint",
        ) from None


def _of_request(record: Record, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "lorad",
        "http.request.method": record.method,
        "http.route": record.route,
        "lorad.request.id": record.id,
    }
    if record.status != CLIENT_LEFT:
        found["http.response.status_code"] = record.status
    if record.code:
        found["error.type"] = record.code
    if record.tenant:
        found["lorad.tenant"] = record.tenant
    if record.response_id:
        found["gen_ai.response.id"] = record.response_id
    return found


def _of_tokens(generation: Generation) -> dict[str, Any]:
    ask, usage, target = generation.ask, generation.usage, generation.target
    found: dict[str, Any] = {
        "gen_ai.request.model": ask.model,
        "gen_ai.response.model": target.name,
        "gen_ai.request.choice.count": ask.n,
        "gen_ai.request.temperature": ask.temperature,
        "gen_ai.request.top_p": ask.top_p,
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.output_tokens": usage.completion,
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "lorad.generation": target.fingerprint,
        "gen_ai.request.stream": ask.stream,
    }
    if ask.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = ask.max_tokens
    reasons = [choice.reason for choice in generation.choices if choice.reason is not None]
    if reasons:
        found["gen_ai.response.finish_reasons"] = reasons
    firsts = [choice.first_at for choice in generation.choices if choice.first_at is not None]
    if firsts:
        found["gen_ai.response.time_to_first_chunk"] = min(firsts) - generation.began
    waits = [choice.waits for choice in generation.choices if choice.waits is not None]
    if waits:
        # What held the answer up is the choice that waited longest.
        found["lorad.tier"] = waits[0].tier
        found["lorad.queue_wait_seconds"] = max(wait.queue_s for wait in waits)
        found["lorad.load_wait_seconds"] = max(wait.load_s for wait in waits)
    return found
