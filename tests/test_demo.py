"""The demo over a scripted engine: its signals, the names it shows, and the command that it prints to paste."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorad.demo.run import curl_line
from serving import TEXT

HERE = Path(__file__).parent

DEMO = """
import functools, sys
from lorad.config import EngineConfig, ServerConfig
from lorad.demo import run
run.fetch_base, run.tenants = lambda console: None, lambda: []
run.Server = functools.partial(run.Server, engine="scripted_engine:" + sys.argv[2])
config = ServerConfig(port=0, served_model_name="mybase", lora_modules=["a=x"], drain_seconds=float(sys.argv[3]))
sys.exit(run.demo(EngineConfig(model=sys.argv[1]), config, prompt="x", once=sys.argv[4] == "once"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tests' tokenizer and a chat template."""
    found = tmp_path_factory.mktemp("model")
    TEXT.tokenizer.core.save(str(found / "tokenizer.json"))
    (found / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return found


@contextlib.contextmanager
def demo(
    folder: Path, factory: str = "process_script", drain_seconds: float = 20, pause: float = 0.001, how: str = "serve"
) -> Iterator[subprocess.Popen[str]]:
    """`lorad demo` as a process."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", DEMO, str(folder), factory, str(drain_seconds), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SCRIPT_PAUSE": str(pause), "PYTHONPATH": path, "COLUMNS": "100"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(process: subprocess.Popen[str], mark: str) -> str:
    """What the demo said, up to the line that holds `mark`."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if mark in line:
            return said
    raise AssertionError(f"{mark!r} was never said:\n{said}")


def test_the_base_has_the_name_that_it_was_given(folder: Path) -> None:
    with demo(folder, how="once") as process:
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "mybase" in said and "the base, no adapter" in said and "does not exist" not in said, said
    assert "2 models in one batch: 128 tokens" in said
    assert "curl" not in said, "the server has stopped"


def test_ctrl_c_is_answered_and_drains(folder: Path) -> None:
    with demo(folder) as process:
        assert "Try it yourself" in read_until(process, "Ctrl-C stops")
        process.send_signal(signal.SIGINT)
        assert "lorad: stopping; running requests have 20 s" in read_until(process, "stopping")
        assert process.wait(20) == 0


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def test_a_second_ctrl_c_ends_at_once(folder: Path) -> None:
    with demo(folder, pause=0.2, drain_seconds=600) as process:
        address = read_until(process, "Ctrl-C stops").split("Serving on ")[1].split(";")[0]
        (engine,) = children(process)
        body = json.dumps({"model": "a", "prompt": "x", "max_tokens": 400})
        asked = subprocess.Popen(
            [sys.executable, "-c", ASK, address + "/v1/completions", body], stdout=subprocess.PIPE, text=True
        )
        assert asked.stdout is not None and asked.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        read_until(process, "stopping")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert not Path(f"/proc/{engine}").exists()
        asked.kill()
        asked.wait()


ASK = """
import json, sys, urllib.request
body = json.dumps({**json.loads(sys.argv[2]), "stream": True}).encode()
with urllib.request.urlopen(urllib.request.Request(sys.argv[1], body, {"Content-Type": "application/json"})) as answer:
    answer.readline()
    print("running", flush=True)
    answer.read()
"""


def test_ctrl_c_while_it_loads_ends_it(folder: Path) -> None:
    with demo(folder, "slow_to_load") as process:
        while not children(process):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    "prompt", ["Define: war", 'a "quoted" word', "it's", "back\\slash", "two\nlines", "[b]ä😀$HOME`x`"]
)
def test_the_command_to_paste_is_json_in_a_shell_word(prompt: str) -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8000", "a'b", prompt, "k'ey").split("\n", 2)[2])
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:8000/v1/chat/completions"]
    assert "Authorization: Bearer k'ey" in words
    body = json.loads(words[-1])
    assert body["model"] == "a'b" and body["messages"][0]["content"] == prompt
