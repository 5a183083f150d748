"""Adapters from a hub: a small one on loopback that speaks as much of the API as huggingface_hub asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter_files import adapter_files, digest_of_files, read_files
from loopback import Fault, Hub, Server, breaking, serving
from lorad.errors import LoradError
from lorad.sources import AdapterCache, Entry, SourcePolicy, parse_source

MAIN, OTHER = "1" * 40, "2" * 40
FILES = adapter_files(size=100_000)
TENSORS = f"/owner/name/resolve/{MAIN}/adapter_model.safetensors"
LIMITS: dict[str, Any] = {"retry_seconds": 0.01, "idle_seconds": 5.0, "seconds_max": 20.0}


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))


@pytest.fixture
def hub() -> Hub:
    extra = {"README.md": b"x", "optimizer.pt": b"y", "checkpoint-5/adapter_model.safetensors": b"z"}
    sub = {f"sub/dir/{name}": content for name, content in adapter_files(2).items()}
    repo = {MAIN: FILES | extra | sub | {"x.gguf": b"gguf"}, OTHER: adapter_files(3)}
    del repo[MAIN]["x.gguf"]
    return Hub({"owner/name": repo}, {("owner/name", "main"): MAIN, ("owner/name", "refs/pr/1"): OTHER})


@pytest.fixture
def server(hub: Hub) -> Iterator[Server]:
    with serving(hub.respond) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> AdapterCache:
    return AdapterCache(tmp_path / "adapters", 1 << 24)


def obtain(cache: AdapterCache, url: str, text: str = "hf://owner/name", **limits: Any) -> Entry:
    policy = SourcePolicy(schemes=frozenset({"hf"}), hub_endpoint=url, **LIMITS | limits)
    return cache.obtain(parse_source(text, policy))


def refused(cache: AdapterCache, url: str, text: str = "hf://owner/name", **limits: Any) -> LoradError:
    with pytest.raises(LoradError) as caught:
        obtain(cache, url, text, **limits)
    assert not cache.listing()
    assert not list((cache.folder / ".staging").iterdir())
    return caught.value


def test_a_repository(hub: Hub, server: Server, cache: AdapterCache) -> None:
    entry = obtain(cache, server.url)
    assert read_files(entry.path) == FILES
    assert entry.digest == digest_of_files(FILES)
    assert entry.source == f"hf://owner/name@{MAIN}"
    assert sorted(path for path, _ in hub.asked if "/resolve/" in path) == sorted(
        f"/owner/name/resolve/{MAIN}/{name}" for name in FILES
    )


def test_revisions_and_folders(hub: Hub, server: Server, cache: AdapterCache) -> None:
    assert read_files(obtain(cache, server.url, "hf://owner/name@main/sub/dir").path) == adapter_files(2)
    entry = obtain(cache, server.url, "hf://owner/name@refs%2Fpr%2F1")
    assert (read_files(entry.path), entry.source) == (adapter_files(3), f"hf://owner/name@{OTHER}")
    assert obtain(cache, server.url, f"hf://owner/name@{OTHER}").digest == entry.digest
    hub.repos["owner/name"][MAIN]["g/one.gguf"] = b"gguf"
    assert read_files(obtain(cache, server.url, "hf://owner/name/g/one.gguf").path) == {"one.gguf": b"gguf"}


def test_a_commit_isnt_read_again(hub: Hub, server: Server, cache: AdapterCache) -> None:
    first = obtain(cache, server.url)
    hub.asked.clear()
    assert obtain(cache, server.url) == first
    assert len(hub.asked) == 1
    hub.revisions[("owner/name", "main")] = OTHER
    assert read_files(obtain(cache, server.url).path) == adapter_files(3)


def test_what_isnt_there(hub: Hub, server: Server, cache: AdapterCache) -> None:
    for text in ("hf://owner/other", "hf://owner/name@v2", "hf://owner/name/nowhere", "hf://owner/name/x.gguf"):
        assert refused(cache, server.url, text).code == "source_missing"
    del hub.repos["owner/name"][MAIN]["adapter_config.json"]
    assert refused(cache, server.url).code == "source_missing"


def test_a_token_of_the_environment(
    hub: Hub, server: Server, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    assert refused(cache, server.url).code == "source_missing"  # the hub doesn't tell which
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert obtain(cache, server.url).bytes
    # Other hosts never see it, and private ones aren't followed at all.
    cache.evict_to(0)
    hub.storage = f"http://localhost:{server.port}"
    assert refused(cache, server.url).code == "source_address"
    hub.asked.clear()
    assert obtain(cache, server.url, private_addresses=True).bytes
    stored = [str(headers).lower() for path, headers in hub.asked if path.startswith("/stored/")]
    assert len(stored) == 2
    assert not any("authorization" in headers or "secret" in headers for headers in stored)
    rest = [str(headers).lower() for path, headers in hub.asked if not path.startswith("/stored/")]
    assert all("authorization" in headers for headers in rest)


def test_gated(server: Server, cache: AdapterCache) -> None:
    fault = Fault(path="/api.*", status=403, headers={"X-Error-Code": "GatedRepo"})
    with breaking(server.url, fault) as proxy:
        refusal = refused(cache, proxy.url)
    assert refusal.code == "source_denied"
    assert "gated" in refusal.message
    with breaking(server.url, Fault(path="/api.*", status=403)) as proxy:
        assert refused(cache, proxy.url).code == "source_denied"
    with breaking(server.url, Fault(path=TENSORS, status=403)) as proxy:
        assert refused(cache, proxy.url).code == "source_denied"


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_content_that_isnt_what_its_hash_says(name: str, hub: Hub, server: Server, cache: AdapterCache) -> None:
    hub.lies[name] = "0" * 40
    assert refused(cache, server.url).code == "source_changed"


def test_faults_that_pass(server: Server, cache: AdapterCache) -> None:
    faults = (
        Fault(path="/api.*", status=503, times=2),
        Fault(path=TENSORS, status=500),
        Fault(path=TENSORS, cut=50_000),
    )
    with breaking(server.url, *faults) as proxy:
        assert read_files(obtain(cache, proxy.url).path) == FILES
        assert not any(fault.times for fault in faults)


def test_faults_that_stay(server: Server, cache: AdapterCache) -> None:
    for path in ("/api.*", TENSORS):
        with breaking(server.url, Fault(path=path, status=500, times=1000)) as proxy:
            assert refused(cache, proxy.url).code == "source_unreachable"
        with breaking(server.url, Fault(path=path, hang=0.5, times=1000)) as proxy:
            assert refused(cache, proxy.url, idle_seconds=0.2, retries_max=1).code == "source_timeout"
        with breaking(server.url, Fault(path=path, status=418)) as proxy:
            assert refused(cache, proxy.url).code == "source_unreachable"
    assert refused(cache, proxy.url, retries_max=1).code == "source_unreachable"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"x", b'{"id": "x", "siblings": [1]}', b'{"id": 1, "sha": "../.."}']
)
def test_an_answer_of_nonsense(body: bytes, cache: AdapterCache) -> None:
    from loopback import answer

    with serving(lambda handler: answer(handler, 200, body)) as server:
        assert refused(cache, server.url).code == "source_unreachable"


def test_limits(server: Server, cache: AdapterCache) -> None:
    assert refused(cache, server.url, bytes_max=1000).code == "source_size"
    assert refused(cache, server.url, files_max=1).code == "source_size"


def test_offline(server: Server, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils import _http

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _http.close_session()
    try:
        refusal = refused(cache, server.url)
        assert refusal.code == "source_unreachable"
        assert "HF_HUB_OFFLINE" in refusal.message
    finally:
        _http.close_session()


def test_a_proxy_of_the_environment(
    hub: Hub, server: Server, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import _http

    monkeypatch.setenv("HTTP_PROXY", server.url.replace("//", "//user:pass@"))
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//user:pass@"))
    _http.close_session()
    try:
        assert read_files(obtain(cache, "http://hub.example").path) == FILES
    finally:
        _http.close_session()
    assert all(path.startswith("http://hub.example/") for path, _ in hub.asked)
    assert all(headers["Host"] == "hub.example" for path, headers in hub.asked if "/resolve/" in path)
    assert all("Proxy-Authorization" in headers for path, headers in hub.asked if "/resolve/" in path)
