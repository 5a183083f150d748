"""Adapters from folders of this machine: what is copied, and every way out of a root."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter_files import adapter_files, digest_of_files, read_files, write_files
from lorad.errors import LoradError
from lorad.sources import AdapterCache, Registry, SourcePolicy, parse_source, trusted_source
from lorad.sources.local import SETTLED_SECONDS, LocalFolder
from lorad.sources.reject import Changed
from lorad.sources.transfer import Transfer

Refused = Callable[..., str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def policy(root: Path) -> SourcePolicy:
    return SourcePolicy(roots=(root,))


@pytest.fixture
def cache(tmp_path: Path) -> AdapterCache:
    return AdapterCache(tmp_path / "adapters", 1 << 20)


def code(cache: AdapterCache, text: str, policy: SourcePolicy) -> str:
    """The code of a refusal, after which nothing is left in the cache."""
    with pytest.raises(LoradError) as caught:
        cache.obtain(parse_source(text, policy))
    assert not cache.listing()
    assert not list((cache.folder / ".staging").iterdir())
    return caught.value.code


def test_a_folder_is_copied(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    files = adapter_files()
    write_files(root / "a b/ä", files | {"optimizer.pt": b"x", "README.md": b"y", ".hidden.safetensors": b"z"})
    progress: list[tuple[int, int]] = []
    entry = cache.obtain(
        parse_source("a b//ä/", policy), on_progress=lambda done, total: progress.append((done, total))
    )
    assert read_files(entry.path) == files
    assert (entry.digest, entry.bytes) == (digest_of_files(files), sum(map(len, files.values())))
    assert (entry.source, entry.files) == ("a b/ä", tuple(sorted(files)))
    assert progress[0] == (0, entry.bytes)
    assert progress[-1] == (entry.bytes, entry.bytes)


def test_what_is_served_stays_when_the_folder_is_overwritten(root: Path, policy: SourcePolicy, cache: AdapterCache):
    write_files(root / "a", adapter_files(1))
    first = cache.obtain(parse_source("a", policy))
    with open(root / "a/adapter_model.safetensors", "r+b") as file:
        file.write(b"overwritten in place")
    assert read_files(first.path) == adapter_files(1)
    second = cache.obtain(parse_source("a", policy))
    assert second.digest != first.digest
    assert cache.verify(first.digest) is not None


def test_tokenizer_files_and_parts_come_along(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    files = {
        "adapter_config.json": b"{}",
        "adapter_model-00001-of-00002.safetensors": b"1",
        "adapter_model-00002-of-00002.safetensors": b"2",
        "adapter_model.safetensors.index.json": b"{}",
        "added_tokens.json": b"{}",
        "tokenizer.json": b"{}",
    }
    write_files(root / "a", files | {"adapter_model.bin": b"pickle"})
    assert read_files(cache.obtain(parse_source("a", policy)).path) == files


def test_a_gguf_file_by_itself(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    write_files(root / "a", {"one.gguf": b"1", "two.gguf": b"2"})
    entry = cache.obtain(parse_source("a/one.gguf", policy))
    assert read_files(entry.path) == {"one.gguf": b"1"}
    both = cache.obtain(parse_source("a", policy))
    assert both.files == ("one.gguf", "two.gguf")


@pytest.mark.parametrize("files", [{}, {"adapter_config.json": b"{}"}, {"adapter_model.safetensors": b"x"}])
def test_no_adapter(files: dict[str, bytes], root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    write_files(root / "a", files)
    assert code(cache, "a", policy) == "source_missing"


def test_a_pickle_is_refused_by_name(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    write_files(root / "a", {"adapter_config.json": b"{}", "adapter_model.bin": b"x"})
    with pytest.raises(LoradError, match=r"adapter_model\.bin is a pickle"):
        cache.obtain(parse_source("a", policy))


def test_nothing_there(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    assert code(cache, "missing", policy) == "source_missing"
    write_files(root / "a", adapter_files())
    assert code(cache, "a/adapter_config.json", policy) == "source_missing"
    assert code(cache, "a/adapter_config.json/x", policy) == "source_missing"
    assert code(cache, "x" * 255 + "/y", policy) == "source_missing"


def test_percent_signs_mean_nothing(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    write_files(root.parent / "outside", adapter_files())
    assert code(cache, "%2e%2e/outside", policy) == "source_missing"


def test_several_roots_are_tried_in_order(tmp_path: Path, cache: AdapterCache) -> None:
    write_files(tmp_path / "r2/a", adapter_files(2))
    write_files(tmp_path / "r1/b", adapter_files(1))
    write_files(tmp_path / "r2/b", adapter_files(3))
    policy = SourcePolicy(roots=(tmp_path / "r0", tmp_path / "r1", tmp_path / "r2"))
    (tmp_path / "r0").mkdir()
    assert read_files(cache.obtain(parse_source("a", policy)).path) == adapter_files(2)
    assert read_files(cache.obtain(parse_source("b", policy)).path) == adapter_files(1)
    assert read_files(cache.obtain(parse_source(f"{tmp_path}/r2/b", policy)).path) == adapter_files(3)


def test_a_root_that_is_not_there(tmp_path: Path, cache: AdapterCache) -> None:
    with pytest.raises(LoradError) as caught:
        cache.obtain(parse_source("a", SourcePolicy(roots=(tmp_path / "gone",))))
    assert caught.value.code == "source_unreachable"
    assert "gone" not in caught.value.message


def test_links_below_the_root_are_followed(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    """As trainers (`latest`) and the hub's own cache (files that link to ../../blobs) lay them."""
    write_files(root / "blobs", {"b1": b"{}", "b2": b"tensors"})
    snapshot = root / "snapshots/c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "adapter_config.json").symlink_to("../../blobs/b1")
    (snapshot / "adapter_model.safetensors").symlink_to("../../blobs/b2")
    (root / "latest").symlink_to("snapshots/../snapshots/./c0ffee/")
    (root / "one.gguf").symlink_to("latest/../../blobs/b2")
    (root / "blobs/absolute").symlink_to(f"{root}//snapshots/./c0ffee")
    for text in ("snapshots/c0ffee", "latest", "blobs/absolute"):
        entry = cache.obtain(parse_source(text, policy))
        assert read_files(entry.path) == {"adapter_config.json": b"{}", "adapter_model.safetensors": b"tensors"}
    assert read_files(cache.obtain(parse_source("one.gguf", policy)).path) == {"one.gguf": b"tensors"}


@pytest.mark.parametrize(
    "target",
    [
        "../../outside",
        "/{outside}",
        "..",
        "../..",
        "a/../../..",
        "sub/../../../outside",
        "loop",
        "/",
        ".",
        "/{root}/../outside",
    ],
)
def test_links_that_lead_out(target: str, root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    outside = write_files(root.parent / "outside", adapter_files())
    (root / "sub").mkdir()
    (root / "loop").symlink_to("loop")
    (root / "deep").mkdir()
    (root / "deep/link").symlink_to(target.format(outside=outside, root=root).replace("//", "/"))
    assert code(cache, "deep/link", policy) in ("source_path", "source_missing")
    assert code(cache, "deep/link/outside", policy) in ("source_path", "source_missing")


def test_what_the_operator_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: AdapterCache) -> None:
    """No root confines it, and it may lead anywhere; what it is called stays as it was written."""
    write_files(tmp_path / "elsewhere/real", adapter_files(1))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere/real")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for path in ("real", "../link", str(tmp_path / "link"), "./real/"):
        entry = cache.obtain(trusted_source(Path(path), SourcePolicy()))
        assert (entry.digest, entry.source) == (digest_of_files(adapter_files(1)), str(Path(path)))
    with pytest.raises(LoradError) as caught:
        cache.obtain(trusted_source(Path("missing"), SourcePolicy()))
    assert caught.value.code == "source_missing"


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"])
def test_files_that_are_links_out(name: str, root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    secret = root.parent / "secret"
    secret.write_bytes(b"secret")
    folder = write_files(root / "a", adapter_files())
    (folder / name).unlink(missing_ok=True)
    for target in (str(secret), "../../secret"):
        (folder / name).symlink_to(target)
        assert code(cache, "a", policy) == "source_path"
        (folder / name).unlink()


def test_files_that_are_no_files(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    folder = write_files(root / "a", adapter_files())
    tensors = folder / "adapter_model.safetensors"
    tensors.unlink()
    os.mkfifo(tensors)
    assert code(cache, "a", policy) == "source_path"
    tensors.unlink()
    tensors.mkdir()
    assert code(cache, "a", policy) == "source_path"
    os.mkfifo(root / "x.gguf")
    assert code(cache, "x.gguf", policy) == "source_missing"


def test_limits(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    write_files(root / "a", adapter_files(size=1000))
    assert code(cache, "a", SourcePolicy(roots=(root,), bytes_max=1000)) == "source_size"
    assert code(cache, "a", SourcePolicy(roots=(root,), files_max=1)) == "source_size"
    assert code(cache, "a", SourcePolicy(roots=(root,), seconds_max=1e-3)) == "source_timeout"
    with pytest.raises(LoradError) as caught:
        cache.obtain(parse_source("a", policy), cancelled=lambda: True)
    assert caught.value.code == "source_cancelled"


def test_a_file_that_grows_while_it_is_copied(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    """A trainer that writes all the time is refused; one that stops is read anew, from the start."""
    folder = write_files(root / "a", adapter_files(1))
    tensors = folder / "adapter_model.safetensors"
    writes = 0

    def write(done: int, total: int) -> None:
        nonlocal writes
        if done and writes < limit:
            writes += 1
            with open(tensors, "ab") as file:
                file.write(b"more")

    limit = 10_000
    with pytest.raises(LoradError, match=r"changed|had") as caught:
        cache.obtain(parse_source("a", policy), on_progress=write)
    assert caught.value.code == "source_changed"
    writes, limit = 0, 1
    entry = cache.obtain(parse_source("a", policy), on_progress=write)
    assert read_files(entry.path) == read_files(folder)


def test_a_file_that_was_just_written_settles(root: Path, policy: SourcePolicy) -> None:
    """Within one tick of the file system's clock it could be written again with the same times."""
    write_files(root / "a", adapter_files(1))
    source = parse_source("a", policy)
    for age, waits in ((0.0, True), (10.0, False)):
        slept: list[float] = []
        transfer = Transfer("a", policy, clock=lambda slept=slept: sum(slept), wait=slept.append)  # type: ignore[misc]
        newest = max(file.stat().st_ctime for file in (root / "a").iterdir())
        folder = LocalFolder(source, now=lambda newest=newest, age=age: newest + age)  # type: ignore[misc]
        folder.items(transfer)
        folder.close()
        assert (sum(slept) >= SETTLED_SECONDS) == waits


def test_a_folder_swapped_while_it_is_copied(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    """Old and new files never end up in one entry."""
    write_files(root / "v1", adapter_files(1, 300_000))
    write_files(root / "v2", adapter_files(2, 300_000))
    (root / "current").symlink_to("v1")
    stop = threading.Event()

    def swap() -> None:
        for round in range(1 << 30):
            if stop.is_set():
                return
            (root / "next").symlink_to(f"v{round % 2 + 1}")
            os.replace(root / "next", root / "current")
            stop.wait(0.001)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        good = (adapter_files(1, 300_000), adapter_files(2, 300_000))
        for _ in range(30):
            try:
                assert read_files(cache.obtain(parse_source("current", policy)).path) in good
            except LoradError as refusal:
                assert refusal.code == "source_changed"
    finally:
        stop.set()
        thread.join()


def test_a_link_swapped_against_a_folder_never_leads_out(root: Path, policy: SourcePolicy, cache: AdapterCache):
    """The race between looking and opening: nothing of the folder outside may ever come in."""
    write_files(root / "inside", adapter_files(1))
    outside = write_files(root.parent / "outside", adapter_files(66))
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "link").symlink_to(outside)
            os.rename(root / "inside", root / "x")
            os.rename(root / "link", root / "inside")
            os.rename(root / "inside", root / "link")
            os.rename(root / "x", root / "inside")
            (root / "link").unlink()

    thread = threading.Thread(target=swap)
    thread.start()
    codes = set()
    try:
        for _ in range(150):
            try:
                folder = LocalFolder(parse_source("inside", policy))
            except LoradError as refusal:
                codes.add(refusal.code)
                continue
            except Changed:  # a fetch begins anew then
                continue
            assert folder._place.names() is not None
            file = folder._place.open("adapter_model.safetensors")
            assert os.read(file, 1 << 20) == adapter_files(1)["adapter_model.safetensors"]
            os.close(file)
            folder.close()
    finally:
        stop.set()
        thread.join()
    assert codes <= {"source_path", "source_missing"}


def test_no_file_stays_open(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    write_files(root / "a", adapter_files())
    (root / "out").symlink_to("/etc")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        cache.obtain(parse_source("a", policy))
        for text in ("out/x", "missing/y", "a/z", "out"):
            with pytest.raises(LoradError):
                cache.obtain(parse_source(text, policy))
        Registry(".", policy).listing()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_registry_lists_what_its_names_give(root: Path, policy: SourcePolicy, cache: AdapterCache) -> None:
    for name in ("a", "b c", "ä", ".hidden", "a@b", "100%", "x:y", "back\\slash", "no\u202etext"):
        write_files(root / "tenant" / name, adapter_files())
    write_files(root / "tenant/gguf", {"x.gguf": b"1"})
    write_files(root / "tenant/other", {"README.md": b"1"})
    (root / "tenant/file").write_bytes(b"")
    (root / "tenant/out").symlink_to("/")
    (root / "tenant/link").symlink_to("a")
    registry = Registry("tenant", policy)
    assert registry.listing() == ["a", "b c", "gguf", "link", "ä"]
    for name in registry.listing():
        assert cache.obtain(registry.source_of(name)).bytes
    assert Registry(str(root / "tenant"), policy).listing() == registry.listing()
    write_files(root / "top", adapter_files())
    assert Registry(".", policy).listing() == ["top"]
    assert Registry(".", policy).source_of("top").text == "top"
    assert Registry("missing", policy).listing() == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "../a",
        "/a",
        "a\\b",
        "a\0",
        "a@b",
        "a?b",
        "a#b",
        "a%2fb",
        "a:b",
        ".git",
        " a",
        "a\n",
        "x" * 256,
    ],
)
def test_names_that_a_registry_refuses(name: str, policy: SourcePolicy) -> None:
    remote = SourcePolicy(schemes=frozenset({"hf", "https", "s3"}))
    for registry in (
        Registry(".", policy),
        Registry("sub", policy),
        Registry("s3://bucket/x", remote),
        Registry("https://h.example/x", remote),
        Registry("hf://owner/name", remote),
    ):
        with pytest.raises(LoradError) as caught:
            registry.source_of(name)
        assert caught.value.code == "source_path"


def test_a_registry_without_roots(policy: SourcePolicy) -> None:
    with pytest.raises(LoradError) as caught:
        Registry(".", SourcePolicy())
    assert caught.value.code == "source_scheme"
    with pytest.raises(LoradError) as caught:
        Registry("https://h.example/x", SourcePolicy(schemes=frozenset({"https"}))).listing()
    assert caught.value.code == "source_scheme"
