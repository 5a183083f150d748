"""Files that somebody names may be anything: nothing is waited for, nothing is read without end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lorad import cli
from lorad.adapters.read import read_adapter
from lorad.engine.costs import read_costs
from lorad.errors import LoradError
from lorad.models.files import data_folder, file_digest
from lorad.models.open import open_model
from lorad.models.operators import OWN, ROWS, Operators, candidates
from lorad.named_file import expanded, is_file, is_folder, read_json, read_small
from lorad.text.model import load_text_model
from tiny import make_tiny

LONG = "x" * 5000


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


ODD = [pipe, endless, folder]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_tiny(tmp_path / "tiny")


def replace(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink(missing_ok=True)
    make(path)


def refusal(act: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(LoradError) as refused:
        act()
    return refused.value.code, refused.value.message


@pytest.mark.parametrize("make", ODD)
def test_only_a_regular_file_is_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd")
    with pytest.raises(OSError, match="it isn't a regular file"):
        read_small(tmp_path / "odd", 10)
    assert not is_file(tmp_path / "odd")


def test_only_so_many_bytes_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"[1, 2, 3]")
    assert read_small(file, 9) == b"[1, 2, 3]" and read_json(file, 9) == [1, 2, 3]
    with pytest.raises(OSError, match="longer than 8 bytes"):
        read_small(file, 8)
    file.write_bytes(b"[" * 200_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(file, 1 << 20)


@pytest.mark.parametrize("path", [LONG, "\0", "~nobodyx/a", "/nope"])
def test_a_path_that_leads_nowhere_is_no_fault(path: str) -> None:
    assert not is_file(expanded(path)) and not is_folder(expanded(path))
    with pytest.raises(OSError, match=r"too long|No such file|no file can"):
        read_small(expanded(path), 10)


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_bases_odd_files_are_refused(base: Path, name: str, make: Callable[[Path], None]) -> None:
    if name != "config.json":
        (base / "model.safetensors").rename(base / "other.safetensors")
    replace(base / name, make)
    code, said = refusal(lambda: open_model(base))
    assert code == "model_file" and ("can't be read" in said or "has no model.safetensors" in said)


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]
)
def test_a_texts_odd_files_are_refused(base: Path, name: str, make: Callable[[Path], None]) -> None:
    replace(base / name, make)
    code, said = refusal(lambda: load_text_model(base))
    assert code == "model_file" and said.startswith(f"{name} can't be read")


@pytest.mark.parametrize("make", ODD)
def test_odd_files_of_options_are_refused(base: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    odd = tmp_path / "odd"
    make(odd)
    assert refusal(lambda: load_text_model(base, odd))[0] == "chat_template"
    assert refusal(lambda: read_costs(str(odd)))[0] == "costs_file"
    (tmp_path / "adapter").mkdir()
    replace(tmp_path / "adapter" / "adapter_config.json", make)
    assert refusal(lambda: read_adapter(tmp_path / "adapter"))[0] == "adapter_missing"


@pytest.mark.parametrize("make", ODD)
def test_odd_files_in_the_data_folder_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "data"))
    hashed = tmp_path / "hashed"
    hashed.write_text("x")
    digest = file_digest(hashed)
    (entry,) = (tmp_path / "data" / "digests").iterdir()
    replace(entry, make)
    assert file_digest(hashed) == digest
    monkeypatch.setattr(
        "lorad.models.operators.measure",
        lambda element, *_, **__: {name: [1.0] * len(ROWS) for name in candidates(element)},
    )
    make(tmp_path / "data" / "operators.json")
    assert Operators().choose("f32", 1024, 1024) == OWN


@pytest.mark.parametrize("given", [LONG, "~nobodyx/a", "", "/dev/zero"])
def test_a_base_that_isnt_there_is_refused_in_a_line(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", given, "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert said.endswith("[model_missing]\n") and said.count("\n") == 1 and len(said) < 200
    for read in (open_model, load_text_model) if given else (open_model,):
        assert refusal(lambda read=read: read(given))[0] == "model_missing"  # type: ignore[misc]


def test_a_folder_without_a_base_is_named(tmp_path: Path) -> None:
    assert refusal(lambda: load_text_model(tmp_path)) == (
        "tokenizer_missing",
        f"the model folder {str(tmp_path)!r} has no tokenizer.json",
    )


def test_end_tokens_and_templates_of_the_wrong_type(base: Path) -> None:
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": "x"}))
    assert refusal(lambda: load_text_model(base))[0] == "model_config"
    (base / "generation_config.json").unlink()
    config = json.loads((base / "tokenizer_config.json").read_text())
    (base / "chat_template.jinja").unlink(missing_ok=True)
    for given in ([3], [{}], [{"name": [], "template": 3}], [{"name": "default", "template": 3}], 7):
        (base / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": given}))
        assert load_text_model(base).template is None
    shutil.rmtree(base)


def test_a_data_folder_needs_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAD_DATA_DIR", "~nobodyx/data")
    assert refusal(data_folder) == (
        "data_folder",
        "LORAD_DATA_DIR: there is no home for '~nobodyx/data'; set LORAD_DATA_DIR to a folder",
    )
