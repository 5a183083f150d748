"""llama.cpp, where `make bench-peers` has installed it: its server and its converter of adapters."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(os.environ.get("LORAD_PEERS", Path(__file__).parents[1] / ".peers")) / "llama.cpp"
"""LORAD_PEERS: another checkout's folder of peers."""
SERVER = ROOT / "build" / "bin" / "llama-server"
CONVERTER = ROOT / "src" / "llama.cpp" / "convert_lora_to_gguf.py"
START_SECONDS_MAX = 60

needs_llama_cpp = pytest.mark.skipif(
    not SERVER.is_file(), reason="llama.cpp isn't installed: make bench-peers does that"
)


def convert_lora(base: Path, adapter: Path, target: Path) -> Path:
    """Converts an adapter with llama.cpp's own script, into f32."""
    words = [sys.executable, CONVERTER, "--base", base, "--outtype", "f32", "--outfile", target, adapter]
    subprocess.run([str(word) for word in words], check=True, capture_output=True)
    return target


@contextmanager
def serving(base: Path, adapter: Path) -> Iterator[str]:
    """A server of the base with the adapter; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [SERVER, "-m", base, "--lora", adapter, "--port", port, "-t", 1, "-np", 1, "-c", 256]
    # Its AMX kernels end with an illegal instruction on some machines; see benches/peers.
    words += ["--no-webui", "--no-repack", "--no-warmup", "--cache-ram", 0, "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    process = subprocess.Popen(
        [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(process, address)
        yield address
    finally:
        process.kill()
        process.communicate()


def greedy(address: str, prompt: list[int], tokens: int) -> list[int]:
    """Greedy tokens under the adapter; those that end a text are passed over."""
    asked = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_tokens": True,
        "cache_prompt": False,
        "lora": [{"id": 0, "scale": 1.0}],
    }
    found: list[int] = _call(f"{address}/completion", asked)["tokens"]
    return found


def _wait(process: subprocess.Popen[str], address: str) -> None:
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end and process.poll() is None:
        try:
            if _call(f"{address}/health", None)["status"] == "ok":
                return
        except OSError:
            time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"llama-server didn't start: {process.communicate()[0][-2000:]}")


def _call(url: str, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
        return json.load(answer)
