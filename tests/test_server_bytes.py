"""Bytes that no route ever sees: lines that are too long, and what is no HTTP."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from aiohttp import web

from lorad.observe.listener import Scrapes
from lorad.server.runner import LINE_MAX, Runner
from serving import Client, serving


async def answer_to(client: Client, sent: bytes) -> tuple[bytes, bytes]:
    """Head and body of what comes back until the server hangs up."""
    host, port = client.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * LINE_MAX), "http_line_length"),
        (b"GET / HTTP/1.1\r\nX: %b\r\n\r\n" % (b"a" * (LINE_MAX + 1)), "http_line_length"),
        (b"GET / HTTP/1.1\r\n%b: x\r\n\r\n" % (b"a" * (LINE_MAX + 1)), "http_line_length"),
        (b"POST / HTTP/1.1\r\nContent-Length: secret\r\n\r\n", "http_form"),
        (b"GET / HTTP/1.1\r\nX: secret\x00\r\n\r\n", "http_form"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "http_form"),
        (b"secret\r\n\r\n", "http_form"),
        (b"GET / HTTP/1.1\r\n\r\n", "http_form"),  # HTTP/1.1 wants a host
    ],
)
async def test_they_get_the_usual_form(sent: bytes, code: str) -> None:
    async with serving() as client:
        head, body = await answer_to(client, sent)
        assert b" 400 " in head.splitlines()[0]
        error = msgspec.json.decode(body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
        assert b"\r\nServer: lorad\r\n" in head + b"\r\n" and b"aiohttp" not in head and b"secret" not in body
        await client.alive()


async def test_the_longest_lines_are_taken() -> None:
    async with serving() as client:
        long = b"a" * 8000
        lines = b"GET /health?%b HTTP/1.1" % long, b"Host: here", b"X: %b" % long, b"Connection: close"
        head, _ = await answer_to(client, b"\r\n".join((*lines, b"", b"")))
        assert b" 200 " in head.splitlines()[0] and b"\r\nServer: lorad\r\n" in head + b"\r\n"


async def test_the_listener_for_metrics_tells_no_versions() -> None:
    async with serving() as client:
        runner = Runner(Scrapes(client.front.metrics, client.engine).application(), shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        for path in ("/metrics", "/nothing"):
            async with client.session.get(f"http://{host}:{port}{path}") as answer:
                assert answer.headers["Server"] == "lorad"
        await runner.cleanup()
