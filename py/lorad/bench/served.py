"""A real `lorad serve` as a child process, on a free port of the loopback interface, for as long as a block runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lorad.bench.streams import BASE
from lorad.config import EngineConfig, ServerConfig, as_flags, without_options
from lorad.engine.child import how_it_ended, python_path
from lorad.errors import LoradError

POLL_S = 0.05
STOP_S = 15.0
"""How long a server may take to end before it is killed; its engine ends when it's gone."""
READY = re.compile(r"^lorad: serving \S+ on (http://\S+)$", re.MULTILINE)


@contextmanager
def served(config: EngineConfig, adapters: Mapping[str, Path], log: Path) -> Iterator[str]:
    """Starts the server with these adapters, gives its address once it listens, and ends it in any case.

    `log`: a file for what it says. It stays in this process's group, so that a terminal that goes takes it along.
    """
    modules = [f"{name}={path}" for name, path in adapters.items()]
    server = ServerConfig(port=0, served_model_name=BASE, lora_modules=modules, drain_seconds=0.0)
    # Everything is said by flags: an api key in the environment is for the user's server.
    env = without_options(os.environ, EngineConfig, ServerConfig) | {"PYTHONPATH": python_path()}
    command = [sys.executable, "-P", "-m", "lorad", "serve", config.model]
    command += as_flags(replace(config, trace_file=""), server)
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield _address(process, log)
    finally:
        _stop(process)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    while True:
        code, said = process.poll(), log.read_text(errors="replace")
        if found := READY.search(said):
            return found[1]
        if code is not None:
            last = (said.strip().splitlines() or ["it said nothing"])[-1]
            raise LoradError(f"the bench's server {how_it_ended(code)}: {last}", code="bench_server")
        time.sleep(POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
