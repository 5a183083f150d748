"""The cache: what is in it is whole, what is held stays, what it takes has a limit."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter_files import adapter_files, digest_of_files, read_files, write_files
from loopback import Files, serving
from lorad.errors import LoradError
from lorad.sources import AdapterCache, Entry, SourcePolicy, parse_source

SIZE = 1000


class Clock:
    """Seconds that pass by call."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed in range(6):
        write_files(tmp_path / f"root/a{seed}", adapter_files(seed, SIZE))
    return tmp_path / "root"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[AdapterCache]:
    cache = AdapterCache(tmp_path / "data/adapters", 1 << 20, now=Clock())
    yield cache
    cache.close()


@pytest.fixture
def take(root: Path, cache: AdapterCache) -> Any:
    """Obtains adapter number n."""

    def obtain(seed: int, into: AdapterCache | None = None, **options: Any) -> Entry:
        return (into or cache).obtain(parse_source(f"a{seed}", SourcePolicy(roots=(root,))), **options)

    return obtain


def refused(call: Any, *arguments: Any, **options: Any) -> LoradError:
    with pytest.raises(LoradError) as caught:
        call(*arguments, **options)
    return caught.value


def nothing_staged(cache: AdapterCache) -> bool:
    return not list((cache.folder / ".staging").iterdir())


def names(cache: AdapterCache) -> list[str]:
    return [entry.source for entry in cache.listing()]


def test_an_entry_by_its_digest(take: Any, cache: AdapterCache) -> None:
    entry = take(1)
    assert cache.find(entry.digest) == entry
    assert cache.verify(entry.digest) == entry
    assert cache.find("0" * 64) is None
    assert take(1) == entry
    assert cache.listing() == [entry]
    assert nothing_staged(cache)
    for digest in ("", "0", "../" + "0" * 61, entry.digest.upper(), entry.digest + "\n", 5):
        assert refused(cache.find, digest).code == "source_digest"


def test_files_cant_be_changed_by_accident(take: Any) -> None:
    entry = take(1)
    assert {os.stat(entry.path / name).st_mode & 0o222 for name in entry.files} == {0}


def test_the_digest_is_of_names_and_contents(root: Path, take: Any) -> None:
    first = take(1)
    os.rename(root / "a1/adapter_model.safetensors", root / "a1/adapter_model_.safetensors")
    assert take(1).digest != first.digest
    assert first.digest == digest_of_files(adapter_files(1, SIZE))


def test_an_expected_digest(take: Any, cache: AdapterCache) -> None:
    good = digest_of_files(adapter_files(1, SIZE))
    refusal = refused(take, 2, digest=good)
    assert refusal.code == "source_digest"
    assert good in refusal.message and digest_of_files(adapter_files(2, SIZE)) in refusal.message
    assert not cache.listing()
    assert nothing_staged(cache)
    assert take(1, digest=good).digest == good
    # It's here, so that nobody is asked.
    assert take(5, digest=good).digest == good
    assert refused(take, 1, digest="x").code == "source_digest"


def test_known_content_that_isnt_the_expected(tmp_path: Path, cache: AdapterCache) -> None:
    files = Files({f"/a/{name}": content for name, content in adapter_files(1).items()})
    with serving(files.respond) as server:
        policy = SourcePolicy(schemes=frozenset({"http"}), private_addresses=True)
        entry = cache.obtain(parse_source(f"{server.url}/a", policy))
        refusal = refused(cache.obtain, parse_source(f"{server.url}/a", policy), digest="0" * 64)
    assert refusal.code == "source_digest"
    assert cache.listing() == [entry]


def test_the_least_recently_used_goes_first(take: Any, tmp_path: Path) -> None:
    small = AdapterCache(tmp_path / "small", 3500, now=Clock())
    first = [take(seed, small) for seed in range(3)]
    small.find(first[0].digest)
    take(3, small)
    assert names(small) == ["a2", "a0", "a3"]
    small.hold(first[2].digest)
    take(4, small)
    assert names(small) == ["a3", "a2", "a4"]
    assert small.evict_to(2100) < 2100
    assert names(small) == ["a2", "a4"]
    assert small.evict_to(0) == first[2].bytes
    small.release(first[2].digest)
    assert small.evict_to(0) == 0
    assert not small.listing()
    assert nothing_staged(small)


def test_what_is_held_is_counted(take: Any, cache: AdapterCache) -> None:
    entry = take(1, hold=True)
    assert cache.hold(entry.digest) == entry
    assert cache.held(entry.digest) == 2
    cache.release(entry.digest)
    assert cache.evict_to(0) == entry.bytes
    cache.release(entry.digest)
    with pytest.raises(ValueError, match="isn't held"):
        cache.release(entry.digest)
    assert cache.evict_to(0) == 0
    assert cache.hold(entry.digest) is None
    assert cache.held(entry.digest) == 0


def test_no_room_beside_what_is_held(take: Any, tmp_path: Path) -> None:
    small = AdapterCache(tmp_path / "small", 2500, now=Clock())
    held = [take(seed, small, hold=True) for seed in range(2)]
    refusal = refused(take, 2, small)
    assert refusal.code == "cache_full"
    assert "2500" in refusal.message and str(held[0].bytes + held[1].bytes) in refusal.message
    assert len(small.listing()) == 2
    assert nothing_staged(small)
    # What is there already needs no room, full or not.
    assert take(1, small) == held[1]
    small.release(held[0].digest)
    take(2, small)
    assert names(small) == ["a1", "a2"]


def test_larger_than_the_cache(take: Any, tmp_path: Path) -> None:
    small = AdapterCache(tmp_path / "small", 1000, now=Clock())
    refusal = refused(take, 1, small)
    assert refusal.code == "cache_full"
    assert "1000" in refusal.message and str(sum(map(len, adapter_files(1, SIZE).values()))) in refusal.message


def test_a_disk_that_says_it_is_full(take: Any, tmp_path: Path) -> None:
    """What is unused makes way, and no more than has to."""
    taken = 0
    disk = 3200

    def free(folder: Path) -> int:
        return disk - sum(entry.bytes for entry in cache.listing())

    cache = AdapterCache(tmp_path / "x", 1 << 20, now=Clock(), disk_free=free)
    for taken in range(3):
        take(taken, cache, hold=taken > 1)
    take(3, cache)
    assert names(cache) == ["a1", "a2", "a3"]
    disk = 1100
    refusal = refused(take, 4, cache)
    assert refusal.code == "cache_full"
    assert "disk" in refusal.message
    assert "a2" in names(cache)


LIMITED = """
import resource, sys, pathlib
from lorad.errors import LoradError
from lorad.sources import AdapterCache, SourcePolicy, parse_source
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
cache = AdapterCache(pathlib.Path(sys.argv[1]), 1 << 30)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    cache.obtain(parse_source("big", SourcePolicy(roots=(pathlib.Path(sys.argv[2]),))))
except LoradError as refusal:
    print(refusal.code, refusal.message)
"""


def test_a_disk_that_fills_in_mid_copy(root: Path, tmp_path: Path) -> None:
    """The system refuses to write on, as a full disk does: a clear refusal, and nothing stays."""
    write_files(root / "big", adapter_files(1, 100_000))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "adapters", root], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("cache_full "), done.stdout + done.stderr
    assert "disk is full" in done.stdout
    left = [file for file in (tmp_path / "adapters").rglob("*") if file.is_file() and file.stat().st_size]
    assert not left


def test_a_real_disk_that_is_full(root: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting needs root")
    try:
        write_files(root / "big", adapter_files(1, 400_000))
        cache = AdapterCache(disk / "adapters", 1 << 30, disk_free=lambda folder: 1 << 40)
        refusal = refused(cache.obtain, parse_source("big", SourcePolicy(roots=(root,))))
        assert refusal.code == "cache_full"
        assert os.strerror(errno.ENOSPC) in refusal.message
        assert nothing_staged(cache)
        assert cache.obtain(parse_source("a1", SourcePolicy(roots=(root,)))).bytes
        honest = AdapterCache(disk / "adapters", 1 << 30)
        refusal = refused(honest.obtain, parse_source("big", SourcePolicy(roots=(root,))))
        assert "the disk has" in refusal.message
        cache.close()
        honest.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_folder_that_cant_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert refused(AdapterCache, tmp_path / "file/adapters", 1000).code == "cache_unusable"
    assert refused(AdapterCache, tmp_path / "file", 1000).code == "cache_unusable"


@pytest.mark.parametrize("damage", ["shorter", "longer", "gone", "link", "manifest", "no manifest", "other manifest"])
def test_a_damaged_entry_is_dropped_and_fetched_anew(damage: str, take: Any, cache: AdapterCache) -> None:
    entry, other = take(1), take(2)
    tensors = entry.path / "adapter_model.safetensors"
    if damage == "manifest":
        (entry.path / ".manifest.json").write_text("{")
    elif damage == "no manifest":
        (entry.path / ".manifest.json").unlink()
    elif damage == "other manifest":
        (entry.path / ".manifest.json").write_bytes((other.path / ".manifest.json").read_bytes())
    else:
        content = tensors.read_bytes()
        tensors.unlink()
        if damage == "shorter":
            tensors.write_bytes(content[:-1])
        elif damage == "longer":
            tensors.write_bytes(content + b"x")
        elif damage == "link":
            tensors.symlink_to("/etc/hostname")
    assert cache.find(entry.digest) is None
    assert cache.listing() == [other]
    assert take(1) == entry
    assert read_files(entry.path) == adapter_files(1, SIZE)


def test_a_flipped_bit_is_found_on_demand(take: Any, cache: AdapterCache) -> None:
    entry = take(1)
    tensors = entry.path / "adapter_model.safetensors"
    for check in (lambda: cache.verify(entry.digest), lambda: take(1) and None):
        content = bytearray(tensors.read_bytes())
        content[5] ^= 1
        tensors.chmod(0o644)
        tensors.write_bytes(content)
        assert cache.find(entry.digest) is not None
        assert check() is None
        take(1)
        assert read_files(entry.path) == adapter_files(1, SIZE)


def test_an_entry_that_was_replaced_while_it_was_verified_stays(
    take: Any, cache: AdapterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evicted and fetched again in between, by somebody who holds it: what was seen of the old one is no reason."""
    entry = take(1)

    def replaced(folder: Path, manifest: Any) -> bool:
        cache.evict_to(0)
        take(1, hold=True)
        return False

    monkeypatch.setattr("lorad.sources.cache.intact", replaced)
    assert cache.verify(entry.digest) == entry
    assert read_files(entry.path) == adapter_files(1, SIZE)


def test_what_a_crash_left_is_removed(take: Any, cache: AdapterCache) -> None:
    entry = take(1)
    staging = cache.folder / ".staging"
    write_files(staging / "aaaa", {"x": b"1"})
    (staging / "aaaa.lock").write_bytes(b"")
    (staging / "bbbb.lock").write_bytes(b"")
    write_files(staging / "gone-cccc", {"x": b"1"})
    write_files(cache.folder / ("0" * 64), {"adapter_model.safetensors": b"1"})
    (cache.folder / "1234").mkdir()  # not ours
    with cache._staging.folder() as busy:
        (busy / "x").write_bytes(b"1")
        second = AdapterCache(cache.folder, 1 << 20)
        assert (busy / "x").exists()
        assert {path.name for path in staging.iterdir()} == {busy.name, f"{busy.name}.lock"}
    assert second.listing() == [entry]
    assert (cache.folder / "1234").exists()
    assert nothing_staged(cache)
    second.close()


def test_two_caches_share_a_folder(take: Any, cache: AdapterCache) -> None:
    """As two processes do: one sees what the other brought, and doesn't evict what the other holds."""
    second = AdapterCache(cache.folder, 1 << 20, now=Clock())
    entry, other = take(1, hold=True), take(2)
    assert second.find(entry.digest) == entry
    assert second.evict_to(0) == entry.bytes
    assert cache.find(other.digest) is None
    assert cache.listing() == second.listing() == [entry]
    cache.release(entry.digest)
    assert second.evict_to(0) == 0
    take(3, hold=True)
    cache.close()
    assert second.evict_to(0) == 0
    second.close()


def test_the_same_content_at_once_is_one_entry(root: Path, tmp_path: Path, cache: AdapterCache) -> None:
    for name in ("b1", "b2", "b3"):
        write_files(root / name, adapter_files(1, SIZE))
    policy = SourcePolicy(roots=(root,))
    second = AdapterCache(cache.folder, 1 << 20)
    found: list[Entry] = []
    barrier = threading.Barrier(16)

    def obtain(number: int) -> None:
        barrier.wait()
        found.append((cache, second)[number % 2].obtain(parse_source(f"b{number % 3 + 1}", policy), hold=True))

    threads = [threading.Thread(target=obtain, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len({entry.digest for entry in found}) == 1
    assert len(cache.listing()) == 1
    assert cache.held(found[0].digest) + second.held(found[0].digest) == 16
    assert read_files(found[0].path) == adapter_files(1, SIZE)
    assert nothing_staged(cache)
    second.close()


def test_a_remote_source_is_read_once_for_many_at_once(cache: AdapterCache) -> None:
    files = Files({f"/a/{name}": content for name, content in adapter_files(1).items()})
    with serving(files.respond) as server:
        policy = SourcePolicy(schemes=frozenset({"http"}), private_addresses=True)
        source = parse_source(f"{server.url}/a", policy)
        threads = [threading.Thread(target=cache.obtain, args=(source,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [path for method, path, _ in files.asked if method == "GET"].count("/a/adapter_model.safetensors") == 1
    assert not cache._turns


def test_who_waits_for_anothers_fetch_can_be_cancelled(root: Path, cache: AdapterCache) -> None:
    source = parse_source("a1", SourcePolicy(roots=(root,)))
    begun, go = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        go.wait(10)

    thread = threading.Thread(target=cache.obtain, args=(source,), kwargs={"on_progress": progress})
    thread.start()
    begun.wait(10)
    assert refused(cache.obtain, source, cancelled=lambda: True).code == "source_cancelled"
    assert not cache.listing()
    go.set()
    thread.join()
    assert not cache._turns
    assert len(cache.listing()) == 1


def test_a_callback_that_fails_leaves_nothing(root: Path, cache: AdapterCache) -> None:
    def fail(done: int, total: int) -> None:
        if done:
            raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError):
        cache.obtain(parse_source("a1", SourcePolicy(roots=(root,))), on_progress=fail)
    assert nothing_staged(cache)
    assert not cache._turns
    assert not cache.listing()


def test_many_entries(tmp_path: Path, root: Path) -> None:
    """No file stays open for an entry or for a hold."""
    cache = AdapterCache(tmp_path / "many", 1 << 30)
    before = len(os.listdir("/proc/self/fd"))
    for seed in range(20):
        write_files(root / "x", adapter_files(seed, 10))
        cache.obtain(parse_source("x", SourcePolicy(roots=(root,))), hold=True)
    assert len(cache.listing()) == 20
    assert len(os.listdir("/proc/self/fd")) == before
    assert cache.evict_to(0) == sum(entry.bytes for entry in cache.listing())
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before
    cache.close()
