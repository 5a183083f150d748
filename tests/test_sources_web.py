"""Adapters from http(s): real servers on loopback, and a proxy that breaks what they say."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adapter_files import adapter_files, digest_of_files, read_files
from loopback import Fault, Files, Proxy, Server, breaking, serving
from lorad.errors import LoradError
from lorad.sources import AdapterCache, Entry, SourcePolicy, parse_source
from lorad.sources.files import Item
from lorad.sources.transfer import Sink, Transfer
from lorad.sources.web import Web

TENSORS = "/a/adapter_model.safetensors"
LIMITS: dict[str, Any] = {"retry_seconds": 0.01, "idle_seconds": 5.0, "seconds_max": 20.0, "private_addresses": True}


@pytest.fixture
def cache(tmp_path: Path) -> AdapterCache:
    return AdapterCache(tmp_path / "adapters", 1 << 24)


@pytest.fixture
def files() -> Files:
    return Files({f"/a/{name}": content for name, content in adapter_files(size=300_000).items()})


@pytest.fixture
def server(files: Files) -> Iterator[Server]:
    with serving(files.respond) as server:
        yield server


def policy(**limits: Any) -> SourcePolicy:
    return SourcePolicy(schemes=frozenset({"http", "https"}), **LIMITS | limits)


def obtain(cache: AdapterCache, url: str, **limits: Any) -> Entry:
    return cache.obtain(parse_source(f"{url}/a", policy(**limits)))


def refused(cache: AdapterCache, url: str, **limits: Any) -> LoradError:
    with pytest.raises(LoradError) as caught:
        obtain(cache, url, **limits)
    assert not cache.listing()
    assert not list((cache.folder / ".staging").iterdir())
    return caught.value


def test_a_folder(cache: AdapterCache, files: Files, server: Server) -> None:
    progress: list[tuple[int, int]] = []
    entry = cache.obtain(parse_source(f"{server.url}/a/", policy()), on_progress=lambda *now: progress.append(now))
    assert read_files(entry.path) == adapter_files(size=300_000)
    assert progress[0] == (0, entry.bytes)
    assert progress[-1] == (entry.bytes, entry.bytes)
    assert {headers["Accept-Encoding"] for _, _, headers in files.asked} == {"identity"}
    assert "Authorization" not in files.asked[0][2]


def test_the_same_isnt_read_again(cache: AdapterCache, files: Files, server: Server) -> None:
    first = obtain(cache, server.url)
    files.asked.clear()
    assert obtain(cache, server.url) == first
    assert {method for method, _, _ in files.asked} == {"HEAD"}
    files.files[TENSORS] = b"v2"
    second = obtain(cache, server.url)
    assert read_files(second.path)["adapter_model.safetensors"] == b"v2"
    # Without its entry what was seen means nothing.
    cache.evict_to(0)
    assert obtain(cache, server.url).digest == second.digest


@pytest.mark.parametrize(
    "how", [{"etags": False}, {"head": False}, {"chunked": True}, {"ranges": False}, {"etags": False, "ranges": False}]
)
def test_servers_that_can_less(how: dict[str, bool], cache: AdapterCache, files: Files, server: Server) -> None:
    for name, value in how.items():
        setattr(files, name, value)
    for _ in range(2):
        assert read_files(obtain(cache, server.url).path) == adapter_files(size=300_000)


def test_a_split_adapter_and_a_gguf_file(cache: AdapterCache, files: Files, server: Server) -> None:
    parts = {f"adapter_model-0000{n}-of-00002.safetensors": b"%d" % n for n in (1, 2)}
    index = json.dumps({"weight_map": {"x": "adapter_model-00001-of-00002.safetensors", "y": [*parts][1]}}).encode()
    split = {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors.index.json": index,
        "tokenizer.json": b"{}",
    } | parts
    files.files = {f"/a/{name}": content for name, content in split.items()} | {"/one two.gguf": b"gguf"}
    assert read_files(obtain(cache, server.url).path) == split
    entry = cache.obtain(parse_source(f"{server.url}/one%20two.gguf", policy()))
    assert read_files(entry.path) == {"one two.gguf": b"gguf"}
    del files.files["/a/adapter_model-00002-of-00002.safetensors"]
    with pytest.raises(LoradError, match="00002-of-00002") as caught:
        obtain(cache, server.url)
    assert caught.value.code == "source_missing"


@pytest.mark.parametrize(
    "index", [b"", b"[]", b"{}", b'{"weight_map": {}}', b'{"weight_map": {"x": 1}}', b'{"weight_map": {"x": "y.bin"}}',
              b'{"weight_map": {"x": "../../y.safetensors"}}', b"[" * 100_000]
)  # fmt: skip
def test_an_index_of_nonsense(index: bytes, cache: AdapterCache, files: Files, server: Server) -> None:
    files.files = {"/a/adapter_config.json": b"{}", "/a/adapter_model.safetensors.index.json": index}
    assert refused(cache, server.url).code in ("source_missing", "source_path")


def test_nothing_there(cache: AdapterCache, files: Files, server: Server) -> None:
    del files.files[TENSORS]
    assert refused(cache, server.url).code == "source_missing"
    files.files.clear()
    assert refused(cache, server.url).code == "source_missing"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_nobody_there(scheme: str, cache: AdapterCache) -> None:
    with serving(Files().respond) as server:
        port = server.port
    refusal = refused(cache, f"{scheme}://127.0.0.1:{port}", retries_max=1)
    assert refusal.code == "source_unreachable"
    assert "(2 times)" in refusal.message


def test_loopback_isnt_asked_by_default(cache: AdapterCache, files: Files, server: Server) -> None:
    for host in ("127.0.0.1", "localhost", "127.1", "0x7f000001"):
        refusal = refused(cache, f"http://{host}:{server.port}", private_addresses=False)
        assert refusal.code == "source_address"
    assert not files.asked


def test_the_checked_address_is_the_one_that_is_asked(tmp_path: Path, files: Files, server: Server) -> None:
    """A name that resolves to another address the second time gains nothing: it's resolved once a connection."""
    answers: list[list[str]] = []

    def ask(host: str, port: int) -> list[str]:
        assert host == "rebinding.example"
        answers.append(["127.0.0.1"] if len(answers) % 2 else ["198.51.100.1", "127.0.0.1"])
        return answers[-1]

    cache = AdapterCache(tmp_path / "x", 1 << 24, ask=ask)
    source = f"http://rebinding.example:{server.port}/a"
    with pytest.raises(LoradError) as caught:
        cache.obtain(parse_source(source, policy(private_addresses=False, connect_seconds=0.1, retries_max=1)))
    assert caught.value.code in ("source_address", "source_unreachable", "source_timeout")
    assert not files.asked
    entry = cache.obtain(parse_source(source, policy(connect_seconds=0.1)))
    assert entry.digest == digest_of_files(adapter_files(size=300_000))
    assert files.asked[0][2]["Host"] == f"rebinding.example:{server.port}"


@pytest.mark.parametrize("status", [500, 503, 429])
def test_answers_that_pass(status: int, cache: AdapterCache, server: Server) -> None:
    faults = (Fault(status=status, times=2, headers={"Retry-After": "0"}), Fault(method="HEAD", status=status, times=2))
    with breaking(server.url, *faults) as proxy:
        assert obtain(cache, proxy.url).bytes > 300_000
    with breaking(server.url, Fault(status=status, times=1000)) as proxy:
        cache.evict_to(0)
        refusal = refused(cache, proxy.url)
    assert refusal.code == "source_unreachable"
    assert str(status) in refusal.message


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "source_denied"),
        (403, "source_denied"),
        (404, "source_missing"),
        (410, "source_missing"),
        (418, "source_unreachable"),
    ],
)
def test_answers_that_stay(status: int, code: str, cache: AdapterCache, server: Server) -> None:
    with breaking(server.url, Fault(path=TENSORS, status=status)) as proxy:
        assert refused(cache, proxy.url).code == code
        assert proxy.asked.count(("GET", TENSORS)) == 1


def test_cut_connections_go_on_where_they_ended(cache: AdapterCache, files: Files, server: Server) -> None:
    with breaking(server.url, Fault(path=TENSORS, cut=100_000), Fault(path=TENSORS, cut=50_000)) as proxy:
        entry = obtain(cache, proxy.url)
    assert read_files(entry.path) == adapter_files(size=300_000)
    ranges = [headers.get("Range") for method, path, headers in files.asked if (method, path) == ("GET", TENSORS)]
    assert ranges == [None, "bytes=100000-", "bytes=150000-"]


@pytest.mark.parametrize("how", [{"etags": False}, {"ranges": False}])
def test_cut_connections_begin_anew_where_they_must(
    how: dict[str, bool], cache: AdapterCache, files: Files, server: Server
):
    for name, value in how.items():
        setattr(files, name, value)
    with breaking(server.url, Fault(path=TENSORS, cut=100_000, times=2)) as proxy:
        assert read_files(obtain(cache, proxy.url).path) == adapter_files(size=300_000)


def test_always_cut(cache: AdapterCache, files: Files, server: Server) -> None:
    with breaking(server.url, Fault(path=TENSORS, cut=100, times=1000)) as proxy:
        refusal = refused(cache, proxy.url)
    assert refusal.code == "source_unreachable"
    assert "(5 times)" in refusal.message


def test_wrong_lengths(cache: AdapterCache, server: Server) -> None:
    for length in ("10", "300001", "999999999999999999"):
        with breaking(server.url, Fault(path=TENSORS, headers={"Content-Length": length}, times=1000)) as proxy:
            assert refused(cache, proxy.url).code == "source_changed"
    both = (Fault(path=TENSORS, method="*", headers={"Content-Length": "400000"}, times=1000),)
    with breaking(server.url, *both) as proxy:
        assert refused(cache, proxy.url).code in ("source_unreachable", "source_changed")
    for odd in ("-1", "x", "١"):
        with breaking(server.url, Fault(path=TENSORS, headers={"Content-Length": odd}, times=1000)) as proxy:
            assert refused(cache, proxy.url).code in ("source_unreachable", "source_changed")


def test_other_answers_that_cant_be_used(cache: AdapterCache, files: Files, server: Server) -> None:
    with breaking(server.url, Fault(path=TENSORS, headers={"Content-Encoding": "gzip"})) as proxy:
        assert "compressed" in refused(cache, proxy.url).message
    wrong = Fault(path=TENSORS, headers={"Content-Range": "bytes 0-1/300000"}, times=2)
    with breaking(server.url, Fault(path=TENSORS, cut=5), wrong) as proxy:
        assert "another range" in refused(cache, proxy.url).message


def test_too_much(cache: AdapterCache, files: Files, server: Server) -> None:
    refusal = refused(cache, server.url, bytes_max=1000)
    assert refusal.code == "source_size"
    assert "1000" in refusal.message
    assert not any(method == "GET" for method, _, _ in files.asked)
    files.chunked = True
    with breaking(server.url) as proxy:
        proxy.faults.append(Fault(method="HEAD", status=405, times=1000))
        assert refused(cache, proxy.url, bytes_max=1000).code == "source_size"


def test_silence(cache: AdapterCache, server: Server) -> None:
    with breaking(server.url, Fault(path=TENSORS, silent=0.6)) as proxy:
        assert obtain(cache, proxy.url, idle_seconds=0.3).bytes
    cache.evict_to(0)
    with breaking(server.url, Fault(path=TENSORS, cut=10, silent=0.6, times=1000)) as proxy:
        refusal = refused(cache, proxy.url, idle_seconds=0.25, retries_max=1)
    assert refusal.code == "source_timeout"
    with breaking(server.url, Fault(method="HEAD", hang=0.6, times=1000)) as proxy:
        assert refused(cache, proxy.url, idle_seconds=0.25, retries_max=1).code == "source_timeout"


def test_drops_that_never_end(cache: AdapterCache, server: Server) -> None:
    """A server that says something all the time is stopped by the whole fetch's limit."""
    with breaking(server.url, Fault(path=TENSORS, slow=0.02, times=1000)) as proxy:
        refusal = refused(cache, proxy.url, seconds_max=0.5)
    assert refusal.code == "source_timeout"
    assert "0.5 s" in refusal.message


def test_headers_that_never_end(cache: AdapterCache) -> None:
    """The client leaves; it doesn't wait until the server has said all."""
    said_all = threading.Event()

    def drip(handler: Any) -> None:
        with suppress(OSError):
            for _ in range(1500):
                handler.wfile.write(b"X")
                time.sleep(0.02)
            said_all.set()

    with serving(drip) as server:
        assert refused(cache, server.url, seconds_max=0.4).code == "source_timeout"
        assert not said_all.is_set()


def test_cancelling(cache: AdapterCache, server: Server) -> None:
    wanted = threading.Event()
    threading.Timer(0.3, wanted.set).start()
    with breaking(server.url, Fault(path=TENSORS, silent=3)) as proxy, pytest.raises(LoradError) as caught:
        cache.obtain(parse_source(f"{proxy.url}/a", policy()), cancelled=wanted.is_set)
    assert caught.value.code == "source_cancelled"


def test_content_that_changes_in_between(cache: AdapterCache, files: Files, server: Server) -> None:
    """Between a look and the read, in mid-read, and in a file that was read already: the old and the new never mix."""
    v2 = {f"/a/{name}": content for name, content in adapter_files(2, 300_000).items()}

    def change() -> None:
        files.files.update(v2)

    v1 = dict(files.files)
    for fault in (
        Fault(path=TENSORS, before=change),
        Fault(path=TENSORS, cut=1000, after=change),
        Fault(path="/a/adapter_config.json", after=change),
        Fault(path=TENSORS, after=change),
    ):
        files.files = dict(v1)
        cache.evict_to(0)
        with breaking(server.url, fault) as proxy:
            assert read_files(obtain(cache, proxy.url).path) == adapter_files(2, 300_000)


@pytest.mark.parametrize("etags", [True, False])
def test_content_that_changes_all_the_time(etags: bool, cache: AdapterCache, files: Files, server: Server) -> None:
    files.etags = etags

    def change() -> None:
        files.files[TENSORS] += b"more"

    with breaking(server.url, Fault(path=TENSORS, after=change, times=1000)) as proxy:
        assert refused(cache, proxy.url).code == "source_changed"


def leads(location: str, times: int = 1000) -> Fault:
    return Fault(path=TENSORS, method="*", status=302, headers={"Location": location}, times=times)


def test_redirects(cache: AdapterCache, files: Files, server: Server) -> None:
    files.files["/b"] = files.files[TENSORS]
    files.files["/own/adapter_model.safetensors"] = files.files[TENSORS]
    with breaking(server.url, leads("/b")) as proxy:
        assert obtain(cache, proxy.url).bytes > 300_000
    for location in (f"http://localhost:{server.port}/b", f"//localhost:{server.port}/b"):
        with breaking(server.url, leads(location)) as proxy:
            cache.evict_to(0)
            refusal = refused(cache, proxy.url)
            assert refusal.code == "source_address"
            assert "'localhost'" in refusal.message
            assert obtain(cache, proxy.url, redirect_hosts=frozenset({"localhost"})).bytes > 300_000
    cache.evict_to(0)
    with breaking(server.url, leads(TENSORS)) as proxy:
        assert "more than 5 times" in refused(cache, proxy.url).message
    for location in ("", "ftp://127.0.0.1/x", "file:///etc/passwd", "http://", "http://u:p@127.0.0.1/x", "http://h:x/"):
        with breaking(server.url, leads(location)) as proxy:
            assert refused(cache, proxy.url).code == "source_unreachable"
    with breaking(server.url, leads("http://169.254.169.254/latest")) as proxy:
        hosts = frozenset({"169.254.169.254"})
        assert refused(cache, proxy.url, redirect_hosts=hosts).code == "source_address"
    with breaking(server.url, leads("/b")) as proxy:
        assert refused(cache, proxy.url, prefixes=(f"{proxy.url}/a",)).code == "source_prefix"


def test_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Files, server: Server) -> None:
    pem = certificate(tmp_path, "localhost")
    with breaking(server.url) as plain, breaking(server.url) as proxy:
        wrap(proxy, pem)
        url = f"https://localhost:{proxy.port}"
        cache = AdapterCache(tmp_path / "adapters", 1 << 24)
        refusal = refused(cache, url, retries_max=0)
        assert refusal.code == "source_unreachable"
        assert "certificate" in refusal.message
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        assert obtain(cache, url).bytes > 300_000
        cache.evict_to(0)
        assert "certificate" in refused(cache, f"https://127.0.0.1:{proxy.port}").message
        proxy.faults.append(leads(f"http://localhost:{plain.port}{TENSORS}"))
        assert "from https to http" in refused(cache, url).message


@pytest.mark.parametrize("answer", ["HTTP/1.1 200 OK", "HTTP/1.1 407 Who", "HTTP/1.1 200 O" + "K" * 100_000, ""])
def test_https_through_a_proxy(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Files, server: Server
) -> None:
    """Only the hub's files are read so: see `Web`."""
    pem = certificate(tmp_path, "hub.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    asked: list[bytes] = []

    def tunnel(listener: socket.socket, port: int) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += client.recv(1)
                asked.append(head)
                client.sendall(f"{answer}\r\n\r\n".encode() if answer else b"")
                if " 200 OK" not in answer:
                    client.close()
                    continue
                inner = socket.create_connection(("127.0.0.1", port))
                for one, other in ((client, inner), (inner, client)):
                    threading.Thread(target=pump, args=(one, other), daemon=True).start()

    with breaking(server.url) as proxy, socket.create_server(("127.0.0.1", 0)) as listener:
        wrap(proxy, pem)
        threading.Thread(target=tunnel, args=(listener, proxy.port), daemon=True).start()
        monkeypatch.setenv("https_proxy", f"http://us%40er:pa%3Ass@127.0.0.1:{listener.getsockname()[1]}")
        web = Web(policy(retries_max=0), leads=True)
        transfer = Transfer("x", policy(retries_max=0))
        with Sink(tmp_path, "x", transfer) as sink:
            url, item = f"https://hub.example{TENSORS}", Item("x", 300_000)
            if " 200 OK" in answer and len(answer) < 100:
                web.read(url, item, sink, transfer)
                assert sink.path.read_bytes() == files.files[TENSORS]
            else:
                with pytest.raises(LoradError) as caught:
                    web.read(url, item, sink, transfer)
                assert caught.value.code == "source_unreachable"
        listener.shutdown(socket.SHUT_RDWR)
    assert asked[0].startswith(b"CONNECT hub.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"us@er:pa:ss") in asked[0]


def pump(source: socket.socket, target: socket.socket) -> None:
    """Passes bytes on until one side ends."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def certificate(folder: Path, host: str) -> Path:
    """A self-signed certificate for `host` and its key, in one file."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), False)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "server.pem"
    path.write_bytes(key.private_bytes(*form) + made.public_bytes(serialization.Encoding.PEM))
    return path


def wrap(proxy: Proxy, pem: Path) -> None:
    """Makes a proxy speak TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    inner = proxy.server._server
    inner.socket = context.wrap_socket(inner.socket, server_side=True, do_handshake_on_connect=False)
