"""Bodies before their fields are looked at: what is no JSON or no request, their headers, their length."""

from __future__ import annotations

import asyncio
import gzip

import msgspec
import pytest
from multidict import CIMultiDict

from asking import BOTH, GOOD, refused
from serving import serving


@BOTH
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b'{"model": "base",}',
        b"{'model': 'base'}",
        b'{"model": "base"} x',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800", "prompt": "x", "messages": []}',
        b"\xef\xbb\xbf{}",
        b"[" * 200 + b"]" * 200,
        b'{"model": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"model": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a": ' + b'{"a":' * 100_000,
        b'{"model": "base", "model": "devil", "prompt": "x"}',
        b'{"model": "base", "m\\u006fdel": "devil", "prompt": "x"}',
        b'{"model": "base", "messages": [{"role": "user", "role": "system", "content": "x"}]}',
        b"[]",
        b"[1]",
        b"true",
        b"null",
        b"123",
        b'"x"',
        b"{}",
        b"\x00",
    ],
    ids=lambda body: repr(body[:30]),
)
async def test_bodies_that_are_no_request(path: str, body: bytes) -> None:
    async with serving() as client:
        refused(await client.raw(path, body))
        assert client.engine.submitted == []
        await client.alive()


@BOTH
async def test_content_types(path: str) -> None:
    async with serving() as client:
        body = msgspec.json.encode(GOOD[path])
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json", "*"):
            refused(await client.raw(path, body, {"Content-Type": kind}))
        for kind in ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"):
            assert (await client.raw(path, body, {"Content-Type": kind}))[0] == 200


@BOTH
async def test_bodies_arent_unpacked(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(api_key="key") as client:
        body, key = msgspec.json.encode(GOOD[path]), {"Authorization": "Bearer key"}
        for coding in ("gzip", "GZIP", "deflate", "br", "zstd", "x", "identity, gzip"):
            for sent in (body, gzip.compress(body)):
                headers = {"Content-Type": "application/json", "Content-Encoding": coding}
                assert refused(await client.raw(path, sent, headers | key))["code"] == "content_encoding"
                assert refused(await client.raw(path, sent, headers), status=401)["code"] == "missing_api_key"
        headers = {"Content-Type": "application/json", "Content-Encoding": "identity"}
        assert (await client.raw(path, body, headers | key))[0] == 200
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


@BOTH
async def test_two_keys_arent_one(path: str) -> None:
    async with serving(api_key="key") as client:
        for keys in (("key", "other"), ("other", "key"), ("key", "key")):
            headers = CIMultiDict([("Authorization", f"Bearer {key}") for key in keys])
            headers["Content-Type"] = "application/json"
            error = refused(await client.raw(path, msgspec.json.encode(GOOD[path]), headers), "Authorization")
            assert error["code"] == "duplicate_field"
        assert client.engine.submitted == []


@BOTH
async def test_a_body_that_is_too_long(path: str) -> None:
    async with serving(body_bytes_max=4096) as client:
        error = refused(await client.raw(path, b" " * 5000), status=413)
        assert "4096" in error["message"] and error["code"] == "request_entity_too_large"
        await client.alive()


@BOTH
async def test_a_body_that_will_be_too_long_is_refused_before_it_comes(path: str) -> None:
    async with serving(body_bytes_max=4096) as client:
        host, port = client.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4097\r\n\r\n{{".encode())
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")
        writer.close()
        await client.alive()
