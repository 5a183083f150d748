"""What the offline tools write gets its name when it's verified; whatever ends them before leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lorad.adapters.staged import staged
from lorad.cli import main
from lorad.errors import Conflict, InvalidRequest
from lorad.models.open import open_model
from make_adapter import make_adapter
from tiny import make_tiny

STOPS_IN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background hands it down as ignored
import sys
import {module} as module
from lorad.cli import main

def stop(*arguments, **options):
    print("here", flush=True)
    sys.stdin.read()

right = module.{name}
module.{name} = lambda *arguments, **options: (right(*arguments, **options), stop())
sys.exit(main(sys.argv[1:]))
"""
TOOLS = {
    "merge": ("lorad.adapters.merge_command", "merge", ["merge", "made", "adapter", "--model", "base"]),
    "convert": ("lorad.adapters.convert", "write_peft", ["convert", "adapter", "made", "--model", "base"]),
    "to gguf": (
        "lorad.adapters.convert",
        "write_gguf",
        ["convert", "adapter", "made.gguf", "--model", "base", "--to", "gguf"],
    ),
    "combine": (
        "lorad.adapters.combine.command",
        "write_peft",
        ["combine", "made", "adapter", "--model", "base"],
    ),
}
"""What each is stopped in, when it has written: the module, its function, the command."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged")
    make_tiny(folder / "base")
    make_adapter(folder / "adapter", open_model(folder / "base").config, rank=2)
    return folder


def stopped(folder: Path, tool: str) -> subprocess.Popen[str]:
    """The tool in a process of its own, when it has written and not yet verified."""
    module, name, command = TOOLS[tool]
    words = [sys.executable, "-c", STOPS_IN.format(module=module, name=name), "adapters", *command]
    process = subprocess.Popen(
        words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline() != "here\n":
        raise RuntimeError(process.communicate()[1])
    return process


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"base", "adapter"}


@pytest.mark.parametrize(
    ("tool", "number", "code"),
    [*((tool, signal.SIGTERM, 128 + signal.SIGTERM) for tool in TOOLS), ("convert", signal.SIGINT, 130)],
)
def test_a_signal_leaves_nothing(tool: str, number: int, code: int, folder: Path) -> None:
    process = stopped(folder, tool)
    output = TOOLS[tool][2][2 if "convert" in TOOLS[tool][2] else 1]
    assert names(folder) == {f".{output}.unverified"}
    process.send_signal(number)
    error = process.communicate()[1]
    assert process.returncode == code and "Traceback" not in error, error
    assert names(folder) == set()


def test_what_a_kill_leaves_is_taken_away_by_the_next(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    command = ["adapters", *TOOLS["convert"][2]]
    process = stopped(folder, "convert")
    assert main(command) == 1, "while the other one is there"
    assert "[output_busy]" in capsys.readouterr().err and (folder / ".made.unverified" / "made").is_dir()
    process.kill()
    process.communicate()
    assert names(folder) == {".made.unverified"}
    assert main(command) == 0
    assert names(folder) == {"made"}
    assert main(command) == 1 and "[output_exists]" in capsys.readouterr().err


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), staged(tmp_path / "made") as made:
        made.mkdir()
        raise KeyError
    assert names(tmp_path) == set()
    before = signal.getsignal(signal.SIGTERM)
    with staged(tmp_path / "made") as made:
        made.write_text("a file")
        with pytest.raises(Conflict), staged(tmp_path / "made"):
            pass
    assert (tmp_path / "made").read_text() == "a file" and names(tmp_path) == {"made"}
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_is_written_over_or_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("")
    (tmp_path / ".made.unverified").symlink_to(tmp_path / "other")
    with pytest.raises(InvalidRequest) as refusal, staged(tmp_path / "made"):
        pass
    assert refusal.value.code == "output_write" and (tmp_path / "other" / "kept").exists()
    os.unlink(tmp_path / ".made.unverified")
    (tmp_path / ".made.unverified").mkdir()
    (tmp_path / ".made.unverified" / "link").symlink_to(tmp_path / "other")
    with pytest.raises(InvalidRequest) as refusal, staged(tmp_path / "made") as made:
        made.write_text("")
        (tmp_path / "made").write_text("another's")
    assert refusal.value.code == "output_exists" and (tmp_path / "made").read_text() == "another's"
    assert (tmp_path / "other" / "kept").exists() and names(tmp_path) == {"made", "other"}
