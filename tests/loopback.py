"""Servers on loopback for tests of sources: files over HTTP, a hub, and a proxy that breaks what another says."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Server:
    """A server on a thread; `respond` is called with each request's handler."""

    def __init__(self, respond: Callable[[BaseHTTPRequestHandler], None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                respond(self)

            def do_HEAD(self) -> None:
                respond(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that hang up are what tests do

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Files:
    """Files by path, with ETags, ranges and HEAD."""

    files: dict[str, bytes] = field(default_factory=dict)
    etags: bool = True
    ranges: bool = True
    chunked: bool = False
    head: bool = True
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers of each request."""

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        self.asked.append((handler.command, path, dict(handler.headers)))
        content = self.files.get(path)
        if content is None or (handler.command == "HEAD" and not self.head):
            answer(handler, 405 if content is not None else 404, b"no")
            return
        etag = '"' + hashlib.md5(content).hexdigest() + '"'
        headers = {"ETag": etag} if self.etags else {}
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if wanted and self.ranges and handler.headers.get("If-Range", etag) == etag:
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            answer(handler, 206, content[start:], headers)
        else:
            answer(handler, 200, content, headers, chunked=self.chunked)


def answer(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    chunked: bool = False,
) -> None:
    """Sends one whole answer."""
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    if chunked:
        handler.send_header("Transfer-Encoding", "chunked")
    else:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command == "HEAD":
        return
    if chunked:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    handler.wfile.write(body)


@dataclass
class Hub:
    """As much of a hub as fetching needs: what a revision is, and files by commit, which lie on another host's name."""

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """Repository → commit → file → content."""
    revisions: dict[tuple[str, str], str] = field(default_factory=dict)
    token: str = ""
    lies: dict[str, str] = field(default_factory=dict)
    """File → the hash that the hub states."""
    storage: str = ""
    """Where files lead; empty: they are here."""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append((handler.path, dict(handler.headers)))
        path = unquote(urlsplit(handler.path).path)
        known = not self.token or handler.headers.get("Authorization") == f"Bearer {self.token}"
        if not known and not path.startswith("/stored/"):
            answer(handler, 401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(handler, found[1], found[2] or "main")
        elif found := re.fullmatch(r"/(stored/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            content = self.repos.get(found[2], {}).get(found[3], {}).get(found[4])
            if content is None:
                answer(handler, 404, b"", {"X-Error-Code": "EntryNotFound"})
            elif self.storage and not found[1]:
                answer(handler, 302, b"", {"Location": f"{self.storage}/stored{path}?signature=x"})
            else:
                answer(handler, 200, content)
        else:
            answer(handler, 404, b"")

    def _info(self, handler: BaseHTTPRequestHandler, repo: str, revision: str) -> None:
        commits = self.repos.get(repo)
        if commits is None:
            answer(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        commit = self.revisions.get((repo, revision), revision)
        if commit not in commits:
            answer(handler, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for name, content in commits[commit].items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            file: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": self.lies.get(name, blob)}
            if name.endswith(".safetensors"):
                stated = self.lies.get(name, hashlib.sha256(content).hexdigest())
                file["lfs"] = {"sha256": stated, "size": len(content), "pointerSize": 130}
            siblings.append(file)
        body = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": [], "downloads": 0}
        answer(handler, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})


@dataclass
class Fault:
    """Something that goes wrong, `times` times, with requests whose method and path fit."""

    path: str = ".*"
    """A regular expression that the whole path matches."""
    method: str = "GET"
    times: int = 1
    status: int = 0
    """Answers with this."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of that answer, or set in the real one."""
    cut: int = -1
    """Ends the connection after so many bytes of the body."""
    silent: float = 0.0
    """Seconds of silence before the body (or, with `cut`, after that many bytes of it)."""
    slow: float = 0.0
    """Seconds before each further 64 bytes of the body."""
    before: Callable[[], None] | None = None
    """Called before the request goes on."""
    after: Callable[[], None] | None = None
    """Called when the answer's head is there, before its body is sent."""
    hang: float = 0.0
    """Seconds without any answer; then the connection ends."""


class Proxy:
    """Passes requests on to a server, and answers back, but for its faults."""

    def __init__(self, upstream: str, faults: list[Fault] | None = None) -> None:
        self._upstream = urlsplit(upstream)
        self.faults = faults or []
        self.asked: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self.server = Server(self._respond)
        self.url, self.port = self.server.url, self.server.port

    def _take(self, method: str, path: str) -> Fault:
        with self._lock:
            self.asked.append((method, path))
            for fault in self.faults:
                if fault.times > 0 and fault.method in (method, "*") and re.fullmatch(fault.path, unquote(path)):
                    fault.times -= 1
                    return fault
        return Fault()

    def _respond(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        fault = self._take(handler.command, handler.path)
        if fault.before:
            fault.before()
        if fault.hang:
            time.sleep(fault.hang)
            return
        if fault.status:
            answer(handler, fault.status, b"", fault.headers)
            return
        upstream = http.client.HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=10)
        try:
            # The host's name stays: signatures cover it.
            upstream.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in handler.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders()
            found = upstream.getresponse()
            body = found.read()
        finally:
            upstream.close()
        if fault.after:
            fault.after()
        handler.send_response_only(found.status)
        headers = {name: value for name, value in found.getheaders() if name.lower() not in ("connection", "server")}
        if "transfer-encoding" in map(str.lower, headers):
            headers = {name: value for name, value in headers.items() if name.lower() != "transfer-encoding"}
            headers["Content-Length"] = str(len(body))
        for name, value in {**headers, **fault.headers, "Connection": "close"}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            self._send(handler, body, fault)

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, body: bytes, fault: Fault) -> None:
        if fault.cut >= 0:
            handler.wfile.write(body[: fault.cut])
            body = body[fault.cut :] if fault.silent else b""
        if fault.silent:
            time.sleep(fault.silent)
        if fault.slow:
            for start in range(0, len(body), 64):
                time.sleep(fault.slow)
                handler.wfile.write(body[start : start + 64])
        else:
            handler.wfile.write(body)

    def close(self) -> None:
        self.server.close()


@contextmanager
def serving(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Server]:
    """A server as long as the block runs."""
    server = Server(respond)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def breaking(upstream: str, *faults: Fault) -> Iterator[Proxy]:
    """A proxy with faults as long as the block runs."""
    proxy = Proxy(upstream, list(faults))
    try:
        yield proxy
    finally:
        proxy.close()
