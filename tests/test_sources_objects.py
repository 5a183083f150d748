"""Adapters from an S3-speaking server on loopback (moto's), through obstore and a proxy that breaks things."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter_files import adapter_files, read_files
from loopback import Fault, breaking, serving
from lorad.errors import LoradError
from lorad.sources import AdapterCache, Entry, Registry, SourcePolicy, parse_source

FILES = adapter_files(size=2_000_000)
TENSORS = "/bucket-1/a/adapter_model.safetensors"
LIMITS: dict[str, Any] = {"retry_seconds": 0.01, "idle_seconds": 5.0, "seconds_max": 20.0, "connect_seconds": 2.0}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of an S3 server."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def client(s3: str) -> Any:
    """boto3's client of that server."""
    import boto3

    return boto3.client(
        "s3", endpoint_url=s3, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret"
    )


@pytest.fixture
def bucket(s3: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The client, with one bucket that has the adapter `a` and nothing else."""
    with contextlib.closing(http.client.HTTPConnection(s3.removeprefix("http://"), timeout=10)) as connection:
        connection.request("POST", "/moto-api/reset")
        connection.getresponse().read()
    client.create_bucket(Bucket="bucket-1")
    for name, content in FILES.items():
        client.put_object(Bucket="bucket-1", Key=f"a/{name}", Body=content)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    return client


@pytest.fixture
def cache(tmp_path: Path) -> AdapterCache:
    return AdapterCache(tmp_path / "adapters", 1 << 24)


def policy(**limits: Any) -> SourcePolicy:
    return SourcePolicy(schemes=frozenset({"s3"}), **LIMITS | limits)


def obtain(cache: AdapterCache, text: str = "s3://bucket-1/a", **limits: Any) -> Entry:
    return cache.obtain(parse_source(text, policy(**limits)))


def refused(cache: AdapterCache, text: str = "s3://bucket-1/a", **limits: Any) -> LoradError:
    with pytest.raises(LoradError) as caught:
        obtain(cache, text, **limits)
    assert not cache.listing()
    assert not list((cache.folder / ".staging").iterdir())
    assert "127.0.0.1" not in caught.value.message
    return caught.value


def test_a_prefix(bucket: Any, cache: AdapterCache) -> None:
    bucket.put_object(Bucket="bucket-1", Key="a/optimizer.pt", Body=b"x")
    bucket.put_object(Bucket="bucket-1", Key="a/deeper/adapter_model.safetensors", Body=b"y")
    bucket.put_object(Bucket="bucket-1", Key="a/", Body=b"")
    progress: list[tuple[int, int]] = []
    entry = cache.obtain(parse_source("s3://bucket-1/a/", policy()), on_progress=lambda *now: progress.append(now))
    assert read_files(entry.path) == FILES
    assert (entry.source, entry.bytes) == ("s3://bucket-1/a", sum(map(len, FILES.values())))
    assert progress[0] == (0, entry.bytes)
    assert progress[-1] == (entry.bytes, entry.bytes)
    assert len(progress) > 5


def test_a_whole_bucket_and_one_file(bucket: Any, cache: AdapterCache) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors", "x/y z.gguf"):
        bucket.put_object(Bucket="bucket-1", Key=name, Body=name.encode())
    assert obtain(cache, "s3://bucket-1").files == ("adapter_config.json", "adapter_model.safetensors")
    assert read_files(obtain(cache, "s3://bucket-1/x/y z.gguf").path) == {"y z.gguf": b"x/y z.gguf"}


@pytest.mark.parametrize(
    "folder", ["ä ö", "a=1/b+c", "100%", "a%20b", "a#b", "a~b", "a'b", "a&b", "(a)", "a[1]", "a{b}", "*"]
)
def test_keys_of_all_kinds(folder: str, bucket: Any, cache: AdapterCache) -> None:
    """Either it's read, or refused by name: never another key's content."""
    for name, content in adapter_files(7).items():
        bucket.put_object(Bucket="bucket-1", Key=f"{folder}/{name}", Body=content)
    assert read_files(obtain(cache, f"s3://bucket-1/{folder}").path) == adapter_files(7)


def test_the_same_isnt_read_again(s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with breaking(s3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        first = obtain(cache)
        proxy.asked.clear()
        assert obtain(cache) == first
        assert not any(path == TENSORS and method == "GET" for method, path in proxy.asked)
        bucket.put_object(Bucket="bucket-1", Key="a/adapter_config.json", Body=b"{}")
        assert obtain(cache).digest != first.digest
        proxy.asked.clear()
        assert obtain(cache, "s3://bucket-1/a").files == first.files
        assert cache.obtain(parse_source("s3://bucket-1/gone", policy()), digest=first.digest) == first


def test_nothing_there(bucket: Any, cache: AdapterCache) -> None:
    assert refused(cache, "s3://bucket-1/b").code == "source_missing"
    assert refused(cache, "s3://bucket-1/b.gguf").code == "source_missing"
    assert refused(cache, "s3://bucket-2/a").code == "source_missing"
    bucket.delete_object(Bucket="bucket-1", Key="a/adapter_model.safetensors")
    assert refused(cache).code == "source_missing"


def test_too_much(bucket: Any, cache: AdapterCache) -> None:
    refusal = refused(cache, bytes_max=1000)
    assert refusal.code == "source_size"
    assert "1000" in refusal.message and "2000" in refusal.message
    for number in range(5):
        bucket.put_object(Bucket="bucket-1", Key=f"a/adapter_model-{number}.safetensors", Body=b"")
    assert refused(cache, files_max=5).code == "source_size"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "source_denied"),
        (401, "source_denied"),
        (500, "source_unreachable"),
        (503, "source_unreachable"),
    ],
)
def test_answers_that_stay(
    status: int, code: str, s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with breaking(s3, Fault(method="*", status=status, times=1000)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert refused(cache).code == code
        assert len(proxy.asked) == (5 if status >= 500 else 1)


def test_a_server_that_falters(s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = (
        Fault(path="/bucket-1.*list-type.*", status=500, times=2),
        Fault(method="HEAD", status=503, times=2),
        Fault(path=TENSORS, status=500),
        Fault(path=TENSORS, cut=700_000),
        Fault(path=TENSORS, cut=700_000),
    )
    with breaking(s3, *faults) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert read_files(obtain(cache).path) == FILES
        assert all(fault.times == 0 for fault in faults)


def test_always_cut(s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with breaking(s3, Fault(path=TENSORS, cut=1000, times=1000)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert refused(cache).code == "source_unreachable"


def test_wrong_lengths(s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for length in ("10", "2000001", "99999999999"):
        with breaking(s3, Fault(path=TENSORS, headers={"Content-Length": length}, times=1000)) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            assert refused(cache).code in ("source_changed", "source_unreachable")


def test_silence(s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with breaking(s3, Fault(path=TENSORS, cut=1000, silent=1, times=1000)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert refused(cache, idle_seconds=0.2, retries_max=1).code == "source_timeout"


def test_drops_that_never_end(s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with breaking(s3, Fault(path=TENSORS, slow=0.02, times=1000)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        begun = time.monotonic()
        assert refused(cache, seconds_max=1).code == "source_timeout"
        assert time.monotonic() - begun < 10


def test_cancelling(s3: str, bucket: Any, cache: AdapterCache) -> None:
    calls = []

    def cancelled() -> bool:
        calls.append(1)
        return len(calls) > 8

    with pytest.raises(LoradError) as caught:
        cache.obtain(parse_source("s3://bucket-1/a", policy()), cancelled=cancelled)
    assert caught.value.code == "source_cancelled"


def test_content_that_changes_in_between(s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch):
    """At any moment: what comes is the old or the new, never a mix."""
    v2 = adapter_files(2, 2_000_000)

    def change() -> None:
        for name, content in v2.items():
            bucket.put_object(Bucket="bucket-1", Key=f"a/{name}", Body=content)

    for fault in (
        Fault(path=TENSORS, before=change),
        Fault(path=TENSORS, cut=700_000, after=change),
        Fault(path=TENSORS, after=change),
        Fault(path="/bucket-1/a/adapter_config.json", after=change),
    ):
        for name, content in FILES.items():
            bucket.put_object(Bucket="bucket-1", Key=f"a/{name}", Body=content)
        cache.evict_to(0)
        with breaking(s3, fault) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            assert read_files(obtain(cache).path) == v2
            assert fault.times == 0


def test_content_that_changes_all_the_time(s3: str, bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch):
    counter = iter(range(1000))

    def change() -> None:
        bucket.put_object(Bucket="bucket-1", Key="a/adapter_model.safetensors", Body=b"%d" % next(counter))

    with breaking(s3, Fault(path=TENSORS, before=change, times=1000)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert refused(cache).code == "source_changed"


def test_nobody_there(bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda handler: None) as server:
        url = server.url
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    assert refused(cache, retries_max=1).code == "source_unreachable"


def test_no_credentials(bucket: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with serving(lambda handler: None) as server:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url)
        refusal = refused(cache, retries_max=0, connect_seconds=0.2)
    assert refusal.code == "source_denied"


def test_a_registry(bucket: Any, cache: AdapterCache) -> None:
    for key in (
        "r/one/x",
        "r/two b/x",
        "r/ä/x",
        "r/a@b/x",
        "r/file",
        "r//x",
        "other/x",
        "r/deep/er/x",
        "r/a?b/x",
        "r/-/x",
    ):
        bucket.put_object(Bucket="bucket-1", Key=key, Body=b"")
    for name, content in FILES.items():
        bucket.put_object(Bucket="bucket-1", Key=f"r/one/{name}", Body=content)
    registry = Registry("s3://bucket-1/r/", policy())
    with pytest.raises(LoradError, match="empty part") as caught:
        registry.listing()
    assert caught.value.code == "source_path"
    bucket.delete_object(Bucket="bucket-1", Key="r//x")
    assert registry.listing() == ["-", "deep", "one", "two b", "ä"]
    assert read_files(cache.obtain(registry.source_of("one")).path) == FILES
    assert Registry("s3://bucket-1", policy()).listing() == ["a", "other", "r"]
    assert Registry("s3://bucket-1/nothing", policy()).listing() == []
