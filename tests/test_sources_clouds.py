"""`gs://` and `az://`: that names, endpoints, credentials and tags reach their stores. How reading fails: with S3.

The server speaks as much of both protocols as listing and reading need.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from adapter_files import adapter_files, read_files
from loopback import Fault, Server, answer, breaking, serving
from lorad.errors import LoradError
from lorad.sources import AdapterCache, Registry, SourcePolicy, parse_source

DATE = "Mon, 30 Nov 2026 16:04:45 GMT"
FILES = adapter_files(size=100_000)


class Blobs:
    """One bucket or container called `box-1`."""

    def __init__(self) -> None:
        self.blobs = {f"a b/{name}": content for name, content in FILES.items()}
        self.seen: set[str] = set()

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        path, query = unquote(url.path), parse_qs(url.query)
        self.seen.add(handler.headers.get("Authorization", "").split(":")[0])
        if path == "/box-1" and ("list-type" in query or query.get("comp") == ["list"]):
            answer(handler, 200, self._list(query.get("prefix", [""])[0], "comp" in query))
            return
        content = self.blobs.get(path.removeprefix("/box-1/"))
        if content is None:
            answer(handler, 404, b"<Error/>")
            return
        etag = '"' + hashlib.md5(content).hexdigest() + '"'
        headers = {"ETag": etag, "Last-Modified": DATE, "x-goog-generation": "1"}
        if handler.headers.get("If-Match", etag) != etag:
            answer(handler, 412, b"<Error/>")
        elif wanted := re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", "")):
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            answer(handler, 206, content[start:], headers)
        else:
            answer(handler, 200, content, headers)

    def _list(self, prefix: str, azure: bool) -> bytes:
        below = [name for name in self.blobs if name.startswith(prefix)]
        files = [name for name in below if "/" not in name[len(prefix) :]]
        folders = sorted({prefix + name[len(prefix) :].partition("/")[0] + "/" for name in below if name not in files})
        if azure:
            blobs = "".join(
                f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{DATE}</Last-Modified><Etag>0x1</Etag>"
                f"<Content-Type>x</Content-Type><Content-Length>{len(self.blobs[name])}</Content-Length></Properties></Blob>"
                for name in files
            ) + "".join(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in folders)
            return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()
        contents = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-30T16:04:45.000Z</LastModified>"
            f"<ETag>&quot;1&quot;</ETag><Size>{len(self.blobs[name])}</Size></Contents>"
            for name in files
        ) + "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()


@pytest.fixture
def blobs() -> Blobs:
    return Blobs()


@pytest.fixture
def server(blobs: Blobs) -> Iterator[Server]:
    with serving(blobs.respond) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> AdapterCache:
    return AdapterCache(tmp_path / "adapters", 1 << 24)


def environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name, value in {
        "NO_PROXY": "127.0.0.1",
        "GOOGLE_BASE_URL": url,
        "GOOGLE_BEARER_TOKEN": "token",
        "GOOGLE_BUCKET": "another",
        "AZURE_STORAGE_ENDPOINT": url,
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "AZURE_CONTAINER_NAME": "another",
    }.items():
        monkeypatch.setenv(name, value)


def policy(scheme: str) -> SourcePolicy:
    return SourcePolicy(schemes=frozenset({scheme}), retry_seconds=0.01, seconds_max=20)


@pytest.mark.parametrize(("scheme", "credential"), [("gs", "Bearer token"), ("az", "SharedKey account")])
def test_a_prefix(
    scheme: str, credential: str, blobs: Blobs, server: Server, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "/box-1/a(%20| )b(%2F|/)adapter_model.safetensors"
    v2 = adapter_files(2, 100_000)

    def change() -> None:
        blobs.blobs.update({f"a b/{name}": content for name, content in v2.items()})

    faults = [Fault(path=file, status=503), Fault(path=file, cut=50_000)]
    with breaking(server.url, *faults) as proxy:
        environment(monkeypatch, proxy.url)
        source = parse_source(f"{scheme}://box-1/a b", policy(scheme))
        first = cache.obtain(source)
        assert read_files(first.path) == FILES
        assert not any(fault.times for fault in faults)
        assert blobs.seen == {credential}
        proxy.asked.clear()
        assert cache.obtain(source) == first
        assert len(proxy.asked) == 3
        cache.evict_to(0)
        proxy.faults.append(Fault(path=file, cut=50_000, after=change))
        assert read_files(cache.obtain(source).path) == v2


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_refusals_and_names(
    scheme: str, blobs: Blobs, server: Server, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, server.url)
    for path, code in (("nothing", "source_missing"), ("x.gguf", "source_missing")):
        with pytest.raises(LoradError) as caught:
            cache.obtain(parse_source(f"{scheme}://box-1/{path}", policy(scheme)))
        assert caught.value.code == code
    assert Registry(f"{scheme}://box-1", policy(scheme)).listing() == ["a b"]
    for status, code in ((403, "source_denied"), (404, "source_missing"), (400, "source_unreachable")):
        with breaking(server.url, Fault(status=status, times=100)) as proxy:
            environment(monkeypatch, proxy.url)
            with pytest.raises(LoradError) as caught:
                cache.obtain(parse_source(f"{scheme}://box-1/a b", policy(scheme)))
            assert caught.value.code == code
